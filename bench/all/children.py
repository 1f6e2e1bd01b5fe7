"""
Child processes which never outlive the run, and never outlast their time.

A child has a session of its own, and everything in it ends with it: when it exits, when its time is over, and when
this process dies in any way, SIGKILL too. For that a warden stands beside: a fork that holds the end of a pipe, is told
of each session, and ends them all, and MPS, once the pipe closes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shmem"))

from mps import end_mps  # type: ignore[import-not-found]

GRACE_S = 1.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int  # as of subprocess; negative: by a signal
    seconds: float
    timed_out: bool


@dataclass(frozen=True)
class Job:
    """What is to be started."""

    command: list[str]
    environment: dict[str, str]
    seconds: float
    out: Path
    errors: Path


def members(session: int) -> list[int]:
    """Processes of a session that are no zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name, in parentheses, may hold anything.
            after = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
            if int(after[3]) == session and after[0] not in "ZX":
                found.append(int(entry))
    return found


def end_session(session: int, number: int, patience: float) -> bool:
    """Sends a signal to all of a session until none is left, so many seconds at most; whether none is."""
    until = time.monotonic() + patience
    while pids := members(session):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
        if number == signal.SIGTERM:  # once is enough
            while members(session) and time.monotonic() < until:
                time.sleep(0.02)
    return True


def quit_mps(folder: str) -> None:
    """Ends the MPS daemon whose pipe lies in folder/pipe, and removes the folder."""
    end_mps({**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"})
    shutil.rmtree(folder, ignore_errors=True)


def _guard(read: int, watched: int, seconds: float) -> NoReturn:
    """
    The warden: what it is told are lines, `+` or `-` and a session, or `m` or `n` and MPS' folder.

    Where its parent still runs after so many seconds, that ends, too.
    """
    until = time.monotonic() + seconds
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    text = b""
    while True:
        if not select.select([read], [], [], max(until - time.monotonic(), 0))[0]:
            os.kill(watched, signal.SIGKILL)
            break
        if not (part := os.read(read, 4096)):
            break
        text += part
    sessions: set[int] = set()
    folders: set[str] = set()
    for line in text.decode().splitlines():
        if line[0] in "+-":
            (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
        else:
            (folders.add if line[0] == "m" else folders.discard)(line[1:])
    for session in sessions:
        end_session(session, signal.SIGKILL, 5)
    for folder in folders:
        quit_mps(folder)
    os._exit(0)


class Children:
    """Starts them, one at a time. To be made before there are threads."""

    def __init__(self, seconds: float = 24 * 3600) -> None:
        """Starts the warden, which ends this process, too, after so many seconds."""
        own = os.getpid()
        read, self._told = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._warden = os.fork()
        if self._warden == 0:
            os.close(self._told)
            # A process that waits for this program's output waits for the end of the pipe it writes to.
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            with contextlib.suppress(BaseException):
                _guard(read, own, seconds)
            os._exit(1)
        os.close(read)

    def _tell(self, line: str) -> None:
        os.write(self._told, f"{line}\n".encode())

    def mps_runs(self, folder: str) -> None:
        """The warden ends the daemon of this folder, too."""
        self._tell(f"m{folder}")

    def mps_ended(self, folder: str) -> None:
        """It no longer has to."""
        self._tell(f"n{folder}")

    def run(self, command: list[str], environment: dict[str, str], seconds: float, out: Path, errors: Path) -> Ended:
        """Runs it until it ends or its time is over; nothing of it is left then. Throws OSError where it cannot."""
        (ended,) = self.run_together([Job(command, environment, seconds, out, errors)])
        if isinstance(ended, OSError):
            raise ended
        return ended

    def run_together(self, jobs: list[Job]) -> list[Ended | OSError]:
        """Runs them at once, each until it ends or its time is over; nothing is left then. OSError: it cannot start."""
        begin = time.monotonic()
        ended: dict[int, Ended | OSError] = {}
        running: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for place, job in enumerate(jobs):
                try:
                    running[place] = self._start(job)
                except OSError as fault:
                    ended[place] = fault
            while running:
                for place, child in list(running.items()):
                    is_late = time.monotonic() - begin > max(jobs[place].seconds, 0.01)
                    if child.poll() is None and not is_late:
                        continue
                    ended[place] = self._end(child, begin, child.returncode is None)
                    del running[place]
                time.sleep(0.01)
        finally:
            for child in running.values():
                self._end(child, begin, False)
        return [ended[place] for place in range(len(jobs))]

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        with open(job.out, "wb") as to, open(job.errors, "wb") as faults:
            return subprocess.Popen(
                job.command,
                env=job.environment,
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=faults,
                start_new_session=True,
                preexec_fn=lambda: self._tell(f"+{os.getpid()}"),
            )

    def _end(self, child: subprocess.Popen[bytes], begin: float, timed_out: bool) -> Ended:
        if timed_out:
            end_session(child.pid, signal.SIGTERM, GRACE_S)
        end_session(child.pid, signal.SIGKILL, 3)
        code: int = -signal.SIGKILL
        # A process in the kernel's hands may not end yet; the run does not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(1)
            self._tell(f"-{child.pid}")
        return Ended(code, time.monotonic() - begin, timed_out)

    def close(self) -> None:
        """Ends the warden, and what is left."""
        os.close(self._told)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._warden, 0)
