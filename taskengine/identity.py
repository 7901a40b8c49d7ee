"""Which process this is, and which others are gone: what the kernel tells under /proc (proc(5))."""

import os
from pathlib import Path

from taskengine.core.leases import ProcessIdentity


def _start_time(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot, or None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields behind the last one are plain.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def this_process() -> ProcessIdentity:
    """Describe this process. Where there is no /proc, the boot id is empty and nothing is comparable."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pid_namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot_id = pid_namespace = ""
    pid = os.getpid()
    return ProcessIdentity(boot_id=boot_id, pid_namespace=pid_namespace, pid=pid, started=_start_time(pid) or "")


def is_gone(process: ProcessIdentity) -> bool:
    """Tell whether a process of this boot and pid namespace has ended; a reused pid is another process."""
    return _start_time(process.pid) != process.started
