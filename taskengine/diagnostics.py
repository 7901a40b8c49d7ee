"""The engine's own log lines, which must never harm it."""

import logging
import traceback
from typing import Any


class _Diagnostics(logging.LoggerAdapter[logging.Logger]):
    """Logs like its logger, except that a handler that raises is told on stderr and goes no further."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Pass `extra` on; an adapter would put its own in place of it."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            if logging.raiseExceptions:
                traceback.print_exc()  # as logging itself does for a handler's trouble


def diagnostics(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return a logger of that name for lines about the engine itself."""
    return _Diagnostics(logging.getLogger(name), {})
