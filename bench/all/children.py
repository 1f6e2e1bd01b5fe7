"""
Child processes which never outlive the run, and never outlast their time.

A child has a session of its own, and everything in it ends with it: when it exits, when its time is over, and when
this process dies in any way, SIGKILL too. For that a warden stands beside: a fork that holds the end of a pipe, is told
of each session, and ends them all, and MPS, once the pipe closes.
"""

from __future__ import annotations

import contextlib
import fcntl
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
LAST_WORDS_S = 5.0  # between SIGKILL to the run and what its warden does even where the kernel still holds the run
CLOSE_S = 15.0  # for the warden: it may have to kill, and to end MPS


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


def members(sessions: set[int]) -> list[tuple[int, int]]:
    """Session and process group of each process of these sessions that has not ended."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name, in parentheses, may hold anything.
            after = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
            group, session, threads = int(after[2]), int(after[3]), int(after[17])
            # A process whose first thread has ended looks like a zombie while its other threads run.
            if session in sessions and (after[0] not in "ZX" or threads > 1):
                found.append((session, group))
    return found


def end_sessions(sessions: set[int], number: int, patience: float) -> set[int]:
    """
    Sends a signal to all of these sessions until none is left, so many seconds at most. Returns those that are left.

    A signal to a group reaches all of it at once, and no member's fork gets past it. One to each process does not: a
    process that forks and ends between the listing of /proc and the reading of it hides its child from that look. What
    is in a group of its own is found by looks only, so that one which finds nothing is no proof: a second one has to.
    """
    until = time.monotonic() + patience
    signaled: set[int] = set()

    def send(groups: set[int]) -> None:
        for group in groups - signaled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        if number != signal.SIGKILL:  # once is enough
            signaled.update(groups)

    send(sessions)
    empty = 0
    while empty < 2:
        found = members(sessions)
        send({group for _, group in found})
        empty = 0 if found else empty + 1
        if found and time.monotonic() > until:
            return {session for session, _ in found}
        time.sleep(0.02 if found else 0)
    return set()


def told(text: bytes) -> tuple[set[int], set[str]]:
    """Sessions and MPS' folders that are there yet, by what a warden was told."""
    sessions: set[int] = set()
    folders: set[str] = set()
    started: set[int] = set()
    for line in filter(None, os.fsdecode(text).split("\n")):
        if line[0] == "?":
            started = set()
        elif line[0] == "!":
            sessions -= started
        elif line[0] in "+-":
            (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
            started = {int(line[1:])}
        else:
            (folders.add if line[0] == "m" else folders.discard)(line[1:])
    return sessions, folders


def quit_mps(folder: str) -> None:
    """Ends the MPS daemon whose pipe lies in folder/pipe, and removes the folder."""
    end_mps({**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"})
    shutil.rmtree(folder, ignore_errors=True)


def _guard(read: int, watched: int, seconds: float) -> NoReturn:
    """
    The warden: what it is told are lines, `+` or `-` and a session, or `m` or `n` and MPS' folder; `?` before a start
    and `!` where it failed, so that a session which has never been is not ended: its number may be another's by then.

    Where its parent still runs after so many seconds, that ends, too.
    """
    until = time.monotonic() + seconds
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    text = b""
    killed = False
    while True:
        if not select.select([read], [], [], max(until - time.monotonic(), 0))[0]:
            if killed:
                break
            if os.getppid() == watched:  # else it has ended, and its number may be another's
                os.kill(watched, signal.SIGKILL)
            # A child that was just forked tells its session yet, and closes its end when it starts its program.
            killed, until = True, time.monotonic() + LAST_WORDS_S
        elif part := os.read(read, 4096):
            text += part
        else:
            break
    sessions, folders = told(text)
    left = _ended_at_last(sessions, 5)
    for folder in folders:
        quit_mps(folder)
    # On a machine that stood still, or for a process in the kernel's hands, seconds say nothing.
    while left:
        time.sleep(0.5)
        left = _ended_at_last(left, 0)
    os._exit(0)


def _ended_at_last(sessions: set[int], patience: float) -> set[int]:
    """As end_sessions with SIGKILL; where looking fails, which it may for lack of memory, all of them are left."""
    try:
        return end_sessions(sessions, signal.SIGKILL, patience)
    except OSError:
        return sessions


def _is_over(child: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended. It's not reaped: until its session is empty, no other process may get its number."""
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # SIGCHLD is ignored, and the kernel reaps
        return True


class Children:
    """Starts them, one at a time. To be made before there are threads."""

    def __init__(self, seconds: float = 24 * 3600) -> None:
        """Starts the warden, which ends this process, too, after so many seconds."""
        own = os.getpid()
        # Above the numbers of input and output, which the warden closes: where one is free, a pipe would get it.
        ends = os.pipe()
        read, self._told = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
        for end in ends:
            os.close(end)
        for stream in filter(None, (sys.stdout, sys.stderr)):  # one that was closed is none
            stream.flush()
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
        os.write(self._told, os.fsencode(f"{line}\n"))

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
                    is_over = _is_over(child)
                    if not is_over and not is_late:
                        continue
                    ended[place] = self._end(child, begin, not is_over)
                    del running[place]
                time.sleep(0.01)
        finally:
            for child in running.values():
                if child.returncode is None:  # else it was interrupted behind its end
                    self._end(child, begin, False)
        return [ended[place] for place in range(len(jobs))]

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        with open(job.out, "wb") as to, open(job.errors, "wb") as faults:
            self._tell("?")
            try:
                return subprocess.Popen(
                    job.command,
                    env=job.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=to,
                    stderr=faults,
                    start_new_session=True,
                    preexec_fn=lambda: self._tell(f"+{os.getpid()}"),
                )
            except OSError:
                self._tell("!")
                raise

    def _end(self, child: subprocess.Popen[bytes], begin: float, timed_out: bool) -> Ended:
        if timed_out:
            end_sessions({child.pid}, signal.SIGTERM, GRACE_S)
        # What is left is the warden's. It's told before the child is reaped, as its number may be another's then.
        if not end_sessions({child.pid}, signal.SIGKILL, 3):
            self._tell(f"-{child.pid}")
        code: int = -signal.SIGKILL
        # A process in the kernel's hands may not end yet; the run does not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(1)
        return Ended(code, time.monotonic() - begin, timed_out)

    def close(self) -> None:
        """Ends the warden, and what is left. What the kernel still holds then, the warden waits for alone."""
        os.close(self._told)
        until = time.monotonic() + CLOSE_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._warden, os.WNOHANG)[0] == 0 and time.monotonic() < until:
                time.sleep(0.01)
