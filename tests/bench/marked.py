"""Processes that a test started, found by a word among their arguments."""

import contextlib
import os
import time
from pathlib import Path


def processes_marked(mark):
    """Those that have it among their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and mark.encode() in Path("/proc", entry, "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def left_of(mark, patience=60):
    """Those that have the mark and do not end within so many seconds, which say nothing where the machine is busy."""
    end = time.monotonic() + patience
    while (found := processes_marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def runs_on(pid):
    """Whether there is such a process, and its first thread has not ended."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False
