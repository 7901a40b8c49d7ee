"""Committed facts as log records: stdlib `logging`, and a formatter that makes each one JSON object a line.

The library configures nothing. Records carry their fields as attributes (logging's `extra`), so that any handler can
use them; `JsonFormatter` writes them all.
"""

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from taskengine.core.facts import Fact
from taskengine.diagnostics import diagnostics

# Without a handler of ours, logging would print warnings to stderr in a host that configured nothing.
logging.getLogger("taskengine").addHandler(logging.NullHandler())

logger = logging.getLogger("taskengine.tasks")
told = diagnostics("taskengine.tasks")

_LEVELS = {"task_retry": logging.WARNING, "task_interrupted": logging.WARNING}


class LogTeller:
    """Logs facts; the contract is `ports.Teller`."""

    def is_listening(self) -> bool:
        """See `Teller.is_listening`: whether some handler would get at least a warning."""
        if not logger.isEnabledFor(logging.WARNING):
            return False
        listening: logging.Logger | None = logger
        while listening is not None:
            if any(not isinstance(handler, logging.NullHandler) for handler in listening.handlers):
                return True
            listening = listening.parent if listening.propagate else None
        return False

    def tell(self, fact: Fact) -> None:
        """Log one fact. A handler that raises is the handler's trouble and not the engine's."""
        fields = fields_of(fact)
        told.log(_LEVELS.get(fact.event, logging.INFO), _sentence(fields), extra={"taskengine": fields})


def fields_of(fact: Fact) -> dict[str, Any]:
    """Lay a fact out as the fields of its record (also the attributes of a span)."""
    row = fact.row
    fields: dict[str, Any] = {"event": fact.event, "task_id": row.id, "attempt": row.attempt, "name": row.name}
    if row.label is not None:
        fields["label"] = row.label
    facts = fact.facts or {}
    if fact.event == "task_start":
        fields |= {key: value for key, value in facts.items() if key != "http_status"}
    elif fact.event == "task_retry":
        fields |= {"reason": fact.reason, "delay_s": fact.delay_s, "retry": fact.retry, "duration_ms": fact.duration_ms}
    elif fact.event == "task_done":
        fields |= {"state": fact.state.value, "retry": fact.retry, "duration_ms": fact.duration_ms}
        if "http_status" in facts:
            fields["http_status"] = facts["http_status"]
        if fact.failure is not None:
            fields["error"] = str(fact.failure)
    elif fact.event == "task_snooze":
        fields |= {"reason": fact.reason, "delay_s": fact.delay_s, "duration_ms": fact.duration_ms}
    else:
        fields |= {"duration_ms": fact.duration_ms, "reason": fact.reason}
    return fields


def _sentence(fields: dict[str, Any]) -> str:
    # Control characters in names and reasons must not make a second line of a record.
    parts = [f"{key}={_escape(value)}" for key, value in fields.items() if key != "event"]
    return f"{fields['event']} {' '.join(parts)}"


def _escape(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else ascii(text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts` (RFC 3339, UTC), `level`, `logger`, and the record's fields or its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as one line."""
        out: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "taskengine", None)
        if isinstance(fields, dict):
            out |= fields
        else:
            out["event"] = "message"
            out["message"] = record.getMessage()
            out |= {key: getattr(record, key) for key in ("task_id", "attempt") if hasattr(record, key)}
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(out, enc_hook=str).decode()
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return msgspec.json.encode({key: ascii(value) for key, value in out.items()}).decode()
