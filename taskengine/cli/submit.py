"""`submit`: one task by its name, or a file of HTTP tasks, one JSON object a line."""

import os
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from taskengine.cli.calls import given_options, known_tasks, make_call, parse_arguments, submit_options
from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import note, plain, run_async, say, write_json

if TYPE_CHECKING:
    from taskengine.engine import Engine
    from taskengine.handles import Submission

CHUNK = 1_000
"""Lines stored in one transaction."""

BLOCK = 256 * 1024
"""Bytes read at once."""

_SPOOL = 4 * 1024 * 1024
"""Bytes of reports on bad lines that are kept in memory; the rest goes to a temporary file."""


@click.command(cls=EngineCommand)
@shared_options
@click.argument("name", required=False)
@click.option("--from", "source", metavar="FILE", help="HTTP tasks, one JSON object a line; `-` is stdin.")
@submit_options
@click.option("--durability", type=click.Choice(("full", "fast")), help='"fast" does not survive power loss.')
@click.pass_obj
def submit(
    shared: Shared,
    /,
    name: str | None,
    source: str | None,
    arguments: tuple[str, ...],
    durability: str | None,
    **given: Any,
) -> int:
    """Store tasks for a worker to run.

    Either one task by its NAME, with --arg; the id is printed. Or, with --from, a file of HTTP tasks; a line has `url`,
    and may have json or body, method, headers, timeout, idempotency_key, max_attempts, priority, delay, tags, label.
    Bad lines are reported with their numbers, the good ones are stored, and the exit code is 1 if any was bad.
    """
    options = given_options(**given)
    if (name is None) == (source is None):
        raise click.UsageError("give either the NAME of a task or --from FILE")
    if source is not None:
        if options or arguments:
            raise click.UsageError("--from takes everything from the file's lines; no --arg, --key, --delay … with it")
        return _submit_file(shared, source, durability)
    assert name is not None, "one of the two was given"
    return _submit_one(shared, name, parse_arguments(arguments), options, durability)


def _submit_one(
    shared: Shared, name: str, arguments: dict[str, Any], options: dict[str, Any], durability: str | None
) -> int:
    from taskengine.engine import Engine

    path = shared.path()
    known = known_tasks(shared.modules())
    call = make_call(name, arguments, known, must_be_known=False)

    async def store() -> tuple[str, bool]:
        async with Engine(path, durability=durability) as engine:
            handle = await engine.submit(call, **options)
            return handle.id, handle.created

    task_id, created = run_async(store)
    if name not in known:
        note(f"{plain(name)} is not known here, so its arguments were not checked (--tasks MODULE)")
    if shared.as_json:
        write_json({"id": task_id, "created": created})
    else:
        say(task_id)
    return 0


# --- files ------------------------------------------------------------------------------------------------------


def _submit_file(shared: Shared, source: str, durability: str | None) -> int:
    from taskengine.engine import Engine

    path = shared.path()
    with ExitStack() as stack:
        if source == "-":
            stream: BinaryIO = sys.stdin.buffer
        else:
            try:
                stream = stack.enter_context(open(source, "rb"))
            except OSError as error:
                raise click.ClickException(f"cannot read {source}: {error.strerror}") from error
        intake = stack.enter_context(Intake(as_json=shared.as_json))

        async def store() -> None:
            async with Engine(path, durability=durability) as engine:
                await intake.take(engine, reading(stream))

        run_async(store)
        intake.sum_up()
        return 1 if intake.rejected else 0


def reading(stream: BinaryIO) -> Callable[[], Awaitable[bytes]]:
    """Return a function that gives the next bytes of a stream, as soon as there are some; b"" at its end.

    Cancellation: of a wait for a pipe, socket or terminal: nothing is lost.
    """
    import anyio

    def waits() -> bool:
        # Plain files are always ready, and the event loop refuses to wait for them.
        try:
            mode = os.fstat(stream.fileno()).st_mode
        except (OSError, ValueError):
            return False
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()

    read_some: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    has_to_wait = waits()

    async def read() -> bytes:
        if has_to_wait:
            await anyio.wait_readable(stream.fileno())
        return read_some(BLOCK)

    return read


class Intake:
    """Stores a stream of lines chunk by chunk, and keeps account of them in bounded memory."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._reports: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(_SPOOL)  # noqa: SIM115  # closed by __exit__
        self.submitted = 0
        self.existing = 0
        self.rejected = 0
        self._done_line = 0

    def __enter__(self) -> "Intake":
        return self

    def __exit__(self, *exc: object) -> None:
        self._reports.close()

    async def take(self, engine: "Engine", read: Callable[[], Awaitable[bytes]]) -> None:
        """Store every good line.

        Raises:
            StoreError: the store cannot be used; a note tells how far we came.
        """
        from taskengine.cli.lines import numbered_lines
        from taskengine.core.errors import StoreError

        try:
            async for batch in numbered_lines(read):
                for start in range(0, len(batch), CHUNK):
                    await self._take_chunk(engine, batch[start : start + CHUNK])
        except StoreError as error:
            error.add_note(f"everything up to line {self._done_line} was dealt with")
            raise

    async def _take_chunk(self, engine: "Engine", lines: Sequence[tuple[int, bytes | None]]) -> None:
        from taskengine.cli.lines import MAX_LINE, BadLine, read_line

        good: list[tuple[int, Submission[Any]]] = []
        bad: list[tuple[int, str]] = []
        for number, line in lines:
            if line is None:
                bad.append((number, f"longer than {MAX_LINE:,} bytes"))
                continue
            try:
                good.append((number, read_line(line)))
            except BadLine as error:
                bad.append((number, str(error)))
        if good:
            bad.extend(await self._store(engine, good))
        for number, problem in sorted(bad):
            self._report(number, problem)
        self._done_line = lines[-1][0]

    async def _store(self, engine: "Engine", good: "Sequence[tuple[int, Submission[Any]]]") -> list[tuple[int, str]]:
        """Store lines in one transaction, or, if one of them is refused, each for itself; return the refused."""
        from taskengine.core.errors import UsageError

        try:
            handles = await engine.submit_many([submission for _, submission in good])
        except UsageError:
            return await self._store_singly(engine, good)
        for handle in handles:
            self._count(handle.created)
        return []

    async def _store_singly(
        self, engine: "Engine", good: "Sequence[tuple[int, Submission[Any]]]"
    ) -> list[tuple[int, str]]:
        import anyio

        from taskengine.core.errors import TaskExpired, UsageError

        bad: list[tuple[int, str]] = []

        async def store_one(number: int, submission: "Submission[Any]") -> None:
            try:
                (handle,) = await engine.submit_many([submission])
            except (UsageError, TaskExpired) as error:
                bad.append((number, str(error)))
            else:
                self._count(handle.created)

        # All at once, so that they share a few transactions; anyio's asyncio starts them in order, which decides who
        # is first of two lines with one key.
        async with anyio.create_task_group() as tg:
            for number, submission in good:
                tg.start_soon(store_one, number, submission)
        return bad

    def _count(self, created: bool) -> None:
        if created:
            self.submitted += 1
        else:
            self.existing += 1

    def _report(self, number: int, problem: str) -> None:
        import msgspec

        self.rejected += 1
        if not self._as_json:
            note(f"line {number}: {plain(problem)}")
            return
        self._reports.write(b"," if self.rejected > 1 else b"")
        self._reports.write(msgspec.json.encode({"line": number, "error": problem}))

    def sum_up(self) -> None:
        """Write the account to stdout."""
        if not self._as_json:
            say(f"submitted {self.submitted:,}, existing {self.existing:,}, rejected {self.rejected:,}")
            return
        out = sys.stdout.buffer
        out.write(f'{{"submitted":{self.submitted},"existing":{self.existing},"rejected":['.encode())
        self._reports.seek(0)
        while block := self._reports.read(BLOCK):
            out.write(block)
        out.write(b"]}\n")
        out.flush()
