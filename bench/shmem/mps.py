"""CUDA's MPS for programs whose processes share a GPU at once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def end_mps(environment: dict[str, str]) -> None:
    """Ends the daemon of this environment: it is asked to, and killed where it does not answer within seconds."""
    try:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=8, env=environment, check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        with contextlib.suppress(OSError, ValueError):
            folder = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
            os.kill(int((folder / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)


@contextmanager
def mps(percentage: int | None = None) -> Iterator[dict[str, str]]:
    """
    The environment of processes under MPS, of which each has so much of the GPU; all of it, without.

    One that runs already is used. Else it is started in a folder of its own, and ended. Throws ValueError where there is none.
    """
    environment = dict(os.environ)
    if percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
    if Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"), "control").exists():
        yield environment
        return
    if shutil.which("nvidia-cuda-mps-control") is None:
        raise ValueError("no nvidia-cuda-mps-control: PEs on one GPU would take turns, and times mean nothing")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("PIPE", "LOG"):
            environment[f"CUDA_MPS_{name}_DIRECTORY"] = str(Path(folder, name.lower()))
            Path(folder, name.lower()).mkdir()
        # Into a file: the daemon keeps what it was given to write to.
        with open(Path(folder, "said"), "w") as said:
            subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=60, env=environment, stdout=said, stderr=said)
        if environment.get("CUDA_VISIBLE_DEVICES"):  # clients count anew what the daemon was shown
            count = environment["CUDA_VISIBLE_DEVICES"].count(",") + 1
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
        try:
            yield environment
        finally:
            end_mps(environment)
