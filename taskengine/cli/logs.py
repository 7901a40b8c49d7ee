"""Logging of this process while a command runs. The library configures none; the command line does, and undoes it."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from taskengine.cli.output import plain
from taskengine.observe.logs import JsonFormatter

_ROOT = "taskengine"


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # the stream is a property here
    """Writes to what `sys.stderr` is at that moment, which a progress bar replaces."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):  # type: ignore[no-untyped-def]  # a plain attribute in the base class
        return sys.stderr


class TextFormatter(logging.Formatter):
    """One line a record, control characters escaped; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower()} {plain(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            line = "\n".join([line, *map(plain, trace)])
        return line


@contextmanager
def logging_to_stderr(level: str, form: str) -> Iterator[None]:
    """Send the library's records from `level` on to stderr, as "text" or as "json"."""
    logger = logging.getLogger(_ROOT)
    handler = _Stderr()
    handler.setLevel(level.upper())
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
