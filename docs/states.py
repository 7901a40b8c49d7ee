"""Write docs/states.md from the table of states: `python docs/states.py` (with --check: only compare).

A drawing by hand is wrong after the first change of the table; this one cannot be. A test compares the file with what
is generated here.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from taskengine.core import lifecycle
from taskengine.core.lifecycle import CLAIMABLE, FINAL, LEASED, TIMED, TRANSITIONS, WAITING, State, Trigger

PATH = Path(__file__).with_suffix(".md")

_HEAD = """# States

<!-- Generated from taskengine/core/lifecycle.py by `python docs/states.py`. Do not edit. -->

Every task is in one state, and moves only along the table below: a trigger that a state's row does not have is an
`IllegalTransition` and changes nothing. Each move leaves one row in the task's history, in the same transaction. The
table is data (`taskengine.TRANSITIONS`); the SQL constraints, this page and the property tests are derived from it.

Triggers read `source:cause`: two causes may lead to one state and are still told apart. Some rows wait for features
that are not there yet: `pipeline:*`, `signal:*` and `body:wait` have no callers in this version.

A hold is no state. It is a mark on the task (`Task.held`) that the claim passes over.
"""

_FINAL_MEANINGS = {State.SUCCEEDED: "The body returned.", State.FAILED: "It failed, and is not tried again."}


def render() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_states(), "", *_diagram(), "", *_table(), ""])


def _states() -> Iterator[str]:
    meanings = _docstrings()
    yield "## What each state means"
    yield ""
    yield "| state | meaning | kind |"
    yield "| --- | --- | --- |"
    for state in TRANSITIONS:
        meaning = meanings.get(state.name) or _FINAL_MEANINGS[state]
        yield f"| `{state.value}` | {meaning} | {_kind(state)} |"


def _kind(state: State) -> str:
    kinds = [
        word
        for word, states in (
            ("final", FINAL),
            ("waits", WAITING),
            ("claimable", CLAIMABLE),
            ("moved on by the clock", TIMED),
            ("held by an owner", LEASED),
        )
        if state in states
    ]
    return ", ".join(kinds) or "not stored"


def _docstrings() -> dict[str, str]:
    """Read the text under each member of `State`, which Python itself throws away."""
    (tree,) = ast.parse(inspect.getsource(State)).body
    assert isinstance(tree, ast.ClassDef), "State is a class"
    found: dict[str, str] = {}
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        if not isinstance(node, ast.Assign) or not isinstance(following, ast.Expr):
            continue
        target, text = node.targets[0], following.value
        if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
            found[target.id] = str(text.value)
    return found


def _diagram() -> Iterator[str]:
    yield "## The diagram"
    yield ""
    yield "A label is a trigger with a blank for its colon, which the drawing program wants for itself."
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for source, row in TRANSITIONS.items():
        by_target: dict[State, list[Trigger]] = {}
        for trigger, target in row.items():
            by_target.setdefault(target, []).append(trigger)
        for target, triggers in by_target.items():
            label = ", ".join(trigger.value.replace(":", " ") for trigger in triggers)
            start = "[*]" if source is State.PENDING else source.value
            yield f"    {start} --> {target.value} : {label}"
        if not row:
            yield f"    {source.value} --> [*]"
    yield "```"


def _table() -> Iterator[str]:
    yield "## The table"
    yield ""
    yield "| from | trigger | to |"
    yield "| --- | --- | --- |"
    for source, row in TRANSITIONS.items():
        for trigger, target in row.items():
            yield f"| `{source.value}` | `{trigger.value}` | `{target.value}` |"
    finals = ", ".join(f"`{state.value}`" for state in TRANSITIONS if state in FINAL)
    yield ""
    yield f"Final states have an empty row and never change: {finals}. `requeue` makes a new task."


def main(arguments: list[str]) -> int:
    """Write the page, or tell whether it is up to date."""
    text = render()
    if "--check" in arguments:
        is_current = PATH.exists() and PATH.read_text() == text
        sys.stdout.write(f"{PATH.name} is {'current' if is_current else 'STALE; run python docs/states.py'}\n")
        return 0 if is_current else 1
    PATH.write_text(text)
    sys.stdout.write(f"wrote {PATH.name} from {lifecycle.__name__}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
