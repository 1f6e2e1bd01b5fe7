"""The measurement of what a call from Python costs runs at a small size on the CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from launch_for_tests import launch

import imbrex

SCRIPT = Path(__file__).resolve().parents[2] / "bench/python/host_cost.py"


def test_a_small_product(tmp_path):
    """Every kind of call is measured; an operator that does nothing costs less than one that multiplies."""
    out = tmp_path / "host.json"
    command = [str(SCRIPT), "--out", str(out)]
    command += "--rows 16 --columns 32 --depth 64 --burst 2 --calls 40".split()
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    done = launch(2, command, environment)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["call"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["C++", "Python", "Python, out", "nothing", "nothing, out", "torch.mm"]
    assert all(row["us"] > 0 for row in rows.values()), rows
    assert rows["nothing"]["us"] < rows["Python"]["us"] and rows["nothing, out"]["us"] < rows["Python, out"]["us"], rows
    for name in ("Python", "Python, out"):
        assert abs(rows[name]["us"] - rows["C++"]["us"] - rows[name]["more_than_cpp_us"]) < 0.1, rows
        assert rows[name]["allowed_us"] >= 3.5, rows
