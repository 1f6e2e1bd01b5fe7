"""The DLRM over 4 ranks comes to the losses of the same model in one piece, and to the same bits each time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from device_for_tests import DEVICE, fewer_gpus_than
from launch_for_tests import launch

import imbrex

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/dlrm"


def trained(*arguments: str) -> tuple[int, str]:
    """Exit status and output of the example on 4 ranks."""
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment |= fewer_gpus_than(4) if DEVICE == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    done = launch(4, [str(EXAMPLE / "train.py"), *arguments], environment, timeout=240)
    assert "largest relative difference" in done.stdout, done.stderr[-3000:]
    return done.returncode, done.stdout


def test_the_dlrm(tmp_path):
    log = tmp_path / "clicks.npz"
    subprocess.run([sys.executable, str(EXAMPLE / "click_log.py"), str(log)], check=True, timeout=60)
    status, told = trained(str(log))
    assert status == 0, told
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+) over", told)]
    # Were the tables not to step, the last loss would be 0.0090 higher.
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.04, losses
    assert float(re.findall(r"difference: ([\de.+-]+);", told)[0]) < 1e-4
    # It makes the same log itself, and comes to the same losses; the status tells of a bound that does not hold.
    status, again = trained("--tolerance", "0")
    assert status == 1 and re.findall("loss.*", again) == re.findall("loss.*", told), (told, again)
