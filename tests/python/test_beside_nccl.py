"""What the measurement of operators beside NCCL refuses; all else of it needs GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from launch_for_tests import run

import imbrex

SCRIPT = Path(__file__).resolve().parents[2] / "bench/python/beside_nccl.py"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sms", "-1"], "--sms -1: it must be 0 or more"),
        (["--rounds", "0"], "--rounds 0: it must be at least 1"),
        (["--groups", "0"], "--groups 0: it must be at least 1"),
        (["--sms", "0", "--hold", "1"], "no GPU was found"),
    ],
)
def test_what_it_refuses(arguments, told):
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    done = run([str(SCRIPT), *arguments], environment)
    assert done.returncode != 0
    assert told in done.stderr
