"""
How tests start programs of several ranks.

By torchrun itself where the launcher is part of what is shown. Elsewhere ranks are forked from a process that has
loaded torch: most of a program's seconds go to loading it, once a rank and once for torchrun.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

from pool import GRACE, forking


def torchrun(ranks: int) -> list[str]:
    """The command, up to the program: at a port of its own, so that other jobs of the machine are in no way."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def _be(arguments: list[str], environment: dict[str, str], out: str, err: str) -> None:
    """Makes this process what `python script arguments...` is, and ends it as Python does."""
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, out), (2, err)):
        kept = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(kept, number)
        os.close(kept)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    import torch

    gc.freeze()  # what was loaded before is not looked through when this process ends, which would take a second
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))  # OpenMP has read the variable before
    sys.argv = arguments
    of_pytest = ("", os.getcwd(), str(Path(__file__).parent))
    sys.path[:] = [str(Path(arguments[0]).parent), *(one for one in sys.path if one not in of_pytest)]
    vars(sys.modules["__main__"]).update(__file__=arguments[0])
    # Not runpy: what a script leaves lives until after the functions of atexit. Python itself handles what is raised.
    failed = ctypes.pythonapi.PyRun_SimpleString(
        b"exec(compile(open(__file__, 'rb').read(), __file__, 'exec', dont_inherit=True))"
    )
    ctypes.pythonapi.Py_Exit(1 if failed else 0)


class Program:
    """A script in a process of its own; what it writes is kept."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.arguments = arguments
        self.folder = tempfile.TemporaryDirectory(prefix="imbrex-program-")
        self.files = [Path(self.folder.name) / name for name in ("out", "err")]
        for file in self.files:
            file.touch()
        names = [str(file) for file in self.files]
        self.process = forking().Process(target=_be, args=(arguments, environment, *names))
        self.process.start()

    @property
    def returncode(self) -> int | None:
        """As subprocess.Popen's."""
        return self.process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout, *self.told())
        return self.told()

    def told(self) -> tuple[str, str]:
        """What it wrote so far, to standard output and to standard error."""
        out, err = (file.read_text(errors="replace") for file in self.files)
        return out, err

    def close(self) -> None:
        """Kills it where it still runs."""
        self.process.kill()
        self.process.join()
        self.folder.cleanup()


def run(arguments: list[str], environment: dict[str, str], timeout: float = 180) -> subprocess.CompletedProcess[str]:
    """`python script arguments...` in this environment, as subprocess.run has it."""
    return _end([Program(arguments, environment)], timeout)


def launch(
    ranks: int, arguments: list[str], environment: dict[str, str], timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """As `torchrun script arguments...`: with the variables that it sets, and a store that this process keeps."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    names |= {"TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    names |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default"}
    names |= {f"{whose}WORLD_SIZE": str(ranks) for whose in ("", "LOCAL_", "ROLE_")}
    environment = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **environment, **names}
    programs: list[Program] = []
    try:
        for rank in range(ranks):
            own = {f"{whose}RANK": str(rank) for whose in ("", "LOCAL_", "ROLE_")}
            programs.append(Program(arguments, environment | own))
    except BaseException:
        for program in programs:
            program.close()
        raise
    return _end(programs, timeout)


def _end(programs: list[Program], timeout: float) -> subprocess.CompletedProcess[str]:
    """Waits for all of them; where one fails, the others are ended, and the status is its."""
    try:
        end = time.monotonic() + timeout
        status, running = 0, programs
        while running and not status:
            if not wait([one.process.sentinel for one in running], max(0.0, end - time.monotonic())):
                raise subprocess.TimeoutExpired(programs[0].arguments, timeout, *_told(programs))
            ended = [one for one in running if one.returncode is not None]
            status = next((one.returncode for one in ended if one.returncode), 0)
            running = [one for one in running if one not in ended]
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.join(GRACE)
        return subprocess.CompletedProcess(programs[0].arguments, status, *_told(programs))
    finally:
        for one in programs:
            one.close()


def _told(programs: list[Program]) -> tuple[str, str]:
    """What all of them wrote, one after another."""
    out, err = zip(*(one.told() for one in programs), strict=True)
    return "".join(out), "".join(err)
