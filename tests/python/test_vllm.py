"""The entry point for vLLM's general plug-ins: off unless asked for, in force for what a stand-in for vLLM calls."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from launch_for_tests import launch

import imbrex
import imbrex.vllm

STAND_IN = Path(__file__).parent / "stand_in_vllm.py"


def run(**extra: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("IMBREX_VLLM", "VLLM_PLUGINS")}
    environment |= {"PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "OMP_NUM_THREADS": "1"} | extra
    environment["IMBREX_TEST_DEVICE"] = "cpu"  # the same calls on GPUs are test_drop_in's
    done = launch(2, [str(STAND_IN)], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_asked_for():
    """Both ranks' products run on Imbrex, in each form in which vLLM calls them."""
    # Two ranks' lines may come out as one.
    told = [json.loads(one) for one in re.findall(r"\{[^}]*\}", run(IMBREX_VLLM="1"))]
    assert len(told) == 2
    for calls in told:
        assert calls["all_gather_matmul"] == 2 and calls["matmul_reduce_scatter"] == 2, calls


@pytest.mark.parametrize("extra", ({}, {"IMBREX_VLLM": "1", "VLLM_PLUGINS": "another"}), ids=("unset", "left out"))
def test_off(extra):
    """torch has no kernels for the CPU, and says so: nothing took their place."""
    assert run(**extra).count("torch's own") == 2


def test_bad_value(monkeypatch):
    monkeypatch.setenv("IMBREX_VLLM", "yes")
    with pytest.raises(imbrex.InvalidInput, match="IMBREX_VLLM='yes': it must be 0 or 1"):
        imbrex.vllm.register()
