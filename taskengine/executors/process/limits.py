"""What a child may use; in the child. Each returns the problem, if the limit cannot be set."""

import math
import os
import resource
import signal
from contextlib import suppress


def limit_memory(limit: int | None) -> str | None:
    """Limit the address space of this process, and of those that it starts, to that many bytes."""
    if limit is None or resource.getrlimit(resource.RLIMIT_AS)[0] == limit:
        return None
    used = _address_space()
    if used >= limit:
        return f"memory_limit is {limit:,} bytes, and the interpreter alone takes {used:,} bytes of address space"
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError) as error:
        return f"memory_limit cannot be set: {error}"
    return None


def limit_processor(seconds: int | None) -> str | None:
    """Limit the processor time from now on, rounded up to a whole second; the kernel then sends SIGXCPU.

    The limit is counted from the start of the process, so it is moved on for each body: none pays for those before it.
    """
    if seconds is None:
        return None
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # whatever the body before has made of it
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end = math.ceil(usage.ru_utime + usage.ru_stime) + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (end if hard == resource.RLIM_INFINITY else min(end, hard), hard))
    except (ValueError, OSError) as error:
        return f"cpu_limit cannot be set: {error}"
    return None


def _address_space() -> int:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0
