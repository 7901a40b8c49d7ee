"""Every default of the engine, in one place; docs/settings.md prints them."""

CONCURRENCY = 50
"""Bodies in flight."""
PREFETCH = 200
"""Short tasks claimed beyond the free slots at most; long ones are never claimed early."""
MAX_ATTEMPTS = 3
PRIORITY = 0
AGEING_STEP = 60.0
"""Seconds that one step of priority is worth: how much longer a task one step lower down waits at most."""
RETRY_AFTER_CAP = 3600.0
"""Seconds; a longer Retry-After is cut to this."""
CANCEL_WAIT = 10.0
"""Seconds that `cancel` waits for the body to end before it answers with the state as it is."""
KILL_GRACE = 2.0
"""Seconds between the forced end of a body and the verdict that it cannot be ended."""
STOP_GRACE = 10.0
"""Seconds that a body has to reach a checkpoint after a stop, before force is used."""
PAUSE_WINDOW = 10.0
"""Seconds that a body has to reach a checkpoint after a pause, before the pause is taken back."""
LOOP_BLOCK_WARNING = 5.0
"""Seconds without a sign of life from the event loop after which the log says what it is doing."""
MAX_LOG_LINES = 1_000
"""Lines that are kept of what one attempt logs; the oldest are dropped."""
MAX_LOG_BYTES = 8 * 1024
"""One such line; longer ones are cut, marked as cut."""
CHILD_MAX_TASKS = 1_000
"""Calls that a child process runs before another takes its place."""
KEEP_ARTIFACTS = "always"
"""Whose artifact folders stay after the attempt: "always", "failed" or "never"."""
SHUTDOWN_GRACE = 25.0
"""Seconds that bodies have to finish when the engine is left."""
LEASE = 30.0
"""Seconds without a beat after which an owner counts as dead."""
BEAT = 5.0
"""Seconds between two beats of an owner."""
MAX_LOOP_BLOCK = 60.0
"""Seconds that a blocked event loop may keep its lease."""
MAX_VALUE_BYTES = 1024 * 1024
"""Arguments and results, as JSON."""
MAX_ERROR_BYTES = 64 * 1024
"""Error texts; longer ones are cut, marked as cut."""
MAX_HTTP_BYTES = 1024 * 1024
"""An HTTP answer's body, before and after decompression."""
HTTP_TIMEOUT = 5.0
"""Seconds for one HTTP call, and the total deadline of the exchange."""
LIST_LIMIT = 100
SUBMIT_CHUNK = 10_000
"""Tasks that `submit_many` stores in one transaction."""
STORE_PATIENCE = 30.0
"""Seconds that a submit waits for a locked or unreachable store before StoreUnavailable."""
MAX_SPARE_SLOTS = 50
"""Slots that may be replaced because a body could not be ended."""
DURABILITY = "full"
