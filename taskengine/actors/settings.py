"""Every setting that actors read, checked once."""

from attrs import frozen

from taskengine import defaults
from taskengine.core.errors import InvalidOption

_BOUNDS: dict[str, tuple[float, float]] = {
    "concurrency": (1, 10_000),
    "prefetch": (0, 10_000),
    "max_pending": (1, 10**12),
    "ageing_step": (0, 10**6),
    "cancel_wait": (0, 10**7),
    "stop_grace": (0, 10**7),
    "pause_window": (0, 10**7),
    "loop_block_warning": (0.1, 10**7),
    "max_log_lines": (0, 10**6),
    "max_log_bytes": (64, 2**20),
    "kill_grace": (0, 3600),
    "shutdown_grace": (0, 10**7),
    "lease": (1, 10**6),
    "beat": (0.01, 10**5),
    "max_loop_block": (1, 10**7),
    "max_value_bytes": (64, 2**30),
    "max_error_bytes": (256, 2**30),
    "retry_after_cap": (0, 10**9),
    "store_patience": (0, 10**7),
    "max_spare_slots": (0, 10_000),
    "child_max_tasks": (1, 10**9),
    "child_memory_bytes": (2**20, 2**50),
    "child_cpu_seconds": (1, 10**7),
}


@frozen(kw_only=True)
class Settings:
    """Limits of one engine; docs/settings.md explains each."""

    concurrency: int = defaults.CONCURRENCY
    prefetch: int = defaults.PREFETCH
    max_pending: int | None = None
    ageing_step: float = defaults.AGEING_STEP
    cancel_wait: float = defaults.CANCEL_WAIT
    stop_grace: float = defaults.STOP_GRACE
    pause_window: float = defaults.PAUSE_WINDOW
    kill_grace: float = defaults.KILL_GRACE
    shutdown_grace: float = defaults.SHUTDOWN_GRACE
    lease: float = defaults.LEASE
    beat: float = defaults.BEAT
    max_loop_block: float = defaults.MAX_LOOP_BLOCK
    max_value_bytes: int = defaults.MAX_VALUE_BYTES
    max_error_bytes: int = defaults.MAX_ERROR_BYTES
    retry_after_cap: float = defaults.RETRY_AFTER_CAP
    store_patience: float = defaults.STORE_PATIENCE
    max_spare_slots: int = defaults.MAX_SPARE_SLOTS
    child_max_tasks: int = defaults.CHILD_MAX_TASKS
    child_memory_bytes: int | None = None
    child_cpu_seconds: int | None = None
    keep_artifacts: str = defaults.KEEP_ARTIFACTS
    loop_block_warning: float = defaults.LOOP_BLOCK_WARNING
    max_log_lines: int = defaults.MAX_LOG_LINES
    max_log_bytes: int = defaults.MAX_LOG_BYTES

    def __attrs_post_init__(self) -> None:
        if self.keep_artifacts not in ("always", "failed", "never"):
            raise InvalidOption("keep_artifacts", f"{self.keep_artifacts!r} is neither 'always', 'failed' nor 'never'")
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            kind = Settings.__annotations__[name]
            if value is None and kind == int | None:
                continue
            whole = kind in (int, int | None)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise InvalidOption(name, f"{value!r} is not a {'whole ' if whole else ''}number")
            if not low <= value <= high:
                raise InvalidOption(name, f"{value!r} is not between {low:g} and {high:g}")
        if self.beat * 2 > self.lease:
            raise InvalidOption("beat", f"{self.beat:g} s is more than half of the lease of {self.lease:g} s")
