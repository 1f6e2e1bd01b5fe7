"""The model-level measurement at a size for the CPU: what it checks holds, and what it writes is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from launch_for_tests import launch

import imbrex
from imbrex._library import program

ROOT = Path(__file__).resolve().parents[2]
SIZES = (
    "--models llama3-8b --scale 16 --check-scale 16 --layers 1 --sequence 32 --batch 2 --tokens 4 --rounds 1 --calls 1"
)


def measure(program: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The measurement over 2 ranks on the CPU."""
    command = [
        str(ROOT / "bench/model/measure.py"),
        *SIZES.split(),
        "--program",
        str(program),
        "--out",
        str(out),
        *more,
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return launch(2, command, environment, timeout=400)


def test_a_small_layer(tmp_path):
    """
    In one run over 2 ranks: the logits' error is at most 1.5x that of functional collectives, and lies within the
    codec's bound; the loss over 50 steps is within 1 % of the whole model's, and the same bits twice.
    """
    out = tmp_path / "model.json"
    done = measure(program(), out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SKIPPED: torch symmetric memory" in done.stdout
    result = json.loads(out.read_text())
    print(json.dumps(result["checks"], indent=1))
    logits = result["checks"]["llama3-8b"]["logits"]
    for how in ("", ", split by sequence"):
        assert 0 < logits["Imbrex" + how]["error"] <= 1.5 * logits["functional collectives" + how]["error"], logits
    sums = logits["Imbrex int8"]
    assert sums["bound"] > 0 and sums["error"] >= logits["Imbrex"]["error"] and sums["error"] < 0.1, logits
    training = result["checks"]["llama3-8b"]["training"]
    assert training["same bits"] and training["distance"] < 0.01, training
    assert training["Imbrex"] < 0.95 * training["first"], training

    rows = {row["pass"]: row for row in result["rows"]}
    assert set(rows) == {"train", "prefill", "decode"} and rows["decode"]["tokens"] == 4
    for name, row in rows.items():
        ways = {"functional collectives", "Imbrex", "no communication"} | (
            {"Imbrex int8"} if name != "train" else set()
        )
        assert set(row["ways"]) == ways, row
        assert all(numbers["us"] > 0 and numbers["host_us"] > 0 for numbers in row["ways"].values()), row
        assert row["ways"]["no communication"]["solo_us"] > 0, row
        base = row["ways"]["functional collectives"]
        if "overlap" in base:
            assert base["overlap"] == 0 and row["ways"]["no communication"]["overlap"] == 1, row
    sys.path.insert(0, str(ROOT / "bench/model"))
    import tables

    table = tables.table(result)
    assert "| llama3-8b, decode of 4 | Imbrex |" in table and "two runs have the same bits" in table, table
    assert rows["prefill"]["predicted"]["Imbrex"] <= rows["prefill"]["predicted"]["cuBLAS, then the collective"]


def test_what_fails_is_named(tmp_path):
    """Without its program there is no prediction; all the rest is measured, and the status tells."""
    out = tmp_path / "model.json"
    done = measure(tmp_path / "no program", out, "--check-scale", "0", "--passes", "prefill")
    assert done.returncode != 0
    assert "FAILED: llama3-8b, prefill, the prediction: " in done.stdout and "no program" in done.stdout, done.stdout
    [row] = json.loads(out.read_text())["rows"]
    assert "no program" in row["failed"]["the prediction"] and "predicted" not in row, row
    assert len(row["ways"]) == 4 and len(row["failed"]) == 1, row


def failing_alone() -> str:
    """What each rank learns of the one that fails; the next call works."""
    import torch.distributed as dist
    from device_for_tests import DEVICE

    sys.path.insert(0, str(ROOT / "bench/model"))
    from device import Clock, Failed

    rank = dist.get_rank()
    clock = Clock(torch.device(DEVICE), dist.group.WORLD)
    with pytest.raises(Failed) as caught:
        clock.together(lambda: 1 // (rank - 2))
    assert clock.together(lambda: rank) == rank
    return str(caught.value)


def test_what_fails_on_one_rank_fails_on_all(ranks):
    """With the rank and its error."""
    for text in ranks.run(failing_alone):
        assert text.startswith("rank 2: ZeroDivisionError: "), text


def test_time_to_the_first_token(tmp_path):
    """Simulated for a machine: a model's layers take as much longer as there are more of them."""
    out = tmp_path / "predicted.json"
    command = [sys.executable, str(ROOT / "bench/model/predict.py"), "--program", str(program()), "--out", str(out)]
    command += ["--machines", "4xh200", "--models", "llama3-8b", "--sequence", "512", "--batch", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == ["cuBLAS, then the collective", "Imbrex"]
    for row in rows:
        assert row["predicted"] and row["ranks"] == 4
        assert abs(row["first_token_ms"] - 32 * row["layer_us"] / 1e3) < 0.1, row
        assert abs(sum(row["parts_us"].values()) - row["layer_us"]) < 1, row
    assert rows[1]["layer_us"] < rows[0]["layer_us"]
