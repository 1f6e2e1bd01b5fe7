"""The example trains, on 4 ranks as on 1, and comes to the same bits each time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")


from launch_for_tests import launch

import imbrex

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/python/llama_layer.py"


def losses(ranks: int) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = launch(ranks, [str(EXAMPLE)], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return re.findall(r"loss ([\d.]+)", done.stdout)


def test_the_example_trains():
    first = losses(4)
    assert len(first) == 6 and float(first[-1]) < 0.85 * float(first[0]), first
    assert losses(4) == first
    assert EXAMPLE.read_text().count("\n") < 100
