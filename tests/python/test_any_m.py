"""Calls whose rows change from call to call: one operator for all of them, whatever their order."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import group_of
from launch_for_tests import launch

import imbrex
import imbrex.torch as it
from imbrex.torch import extension

SEED = int(os.environ.get("IMBREX_TEST_SEED", "1"))


def integers(rows: int, cols: int, seed: int) -> torch.Tensor:
    """Small ones, so that every sum is exact."""
    return torch.randint(-3, 4, (rows, cols), generator=generator_of(seed), dtype=torch.float32)


def call(op: str, rows: int, b: torch.Tensor, group: Any, seed: int) -> None:
    """One call with so many rows of each rank's A, or of all of them, and what comes of it."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    parts = [integers(rows, b.shape[0], seed * 8 + r) for r in range(ranks)]
    a = parts[rank]
    got = getattr(it, op)(a, b, group)
    if op == "all_gather_matmul":
        want = torch.cat(parts) @ b
    else:
        want = torch.zeros(rows, b.shape[1])
        for part in parts:
            want += part @ b
        if op == "matmul_reduce_scatter":
            want = want.chunk(ranks)[rank]
    assert torch.equal(got, want), f"{op} of {rows} rows, seed {seed}: {(got - want).abs().max()} off"


OPS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")


def sequences(seed: int, calls: int) -> None:
    """Rising, falling and random sizes: each makes as many operators as it grows past powers of two."""
    group = group_of(0, 1, 2, 3)
    ranks = dist.get_world_size(group)
    draws = random.Random(seed)
    sizes = [ranks * draws.randint(1, 24) for _ in range(calls)]
    for order, list_of in enumerate((sorted(sizes), sorted(sizes, reverse=True), sizes)):
        for number, op in enumerate(OPS):
            b = integers(16, 24 + 8 * order, seed + number)
            before = extension.calls()["made"]
            for step, rows in enumerate(list_of):
                call(op, rows, b, group, seed * 1000 + step)
            made = extension.calls()["made"] - before
            assert made <= (1 if order == 1 else 7), f"{op}: {made} operators for {len(set(list_of))} sizes"


def test_sizes_in_any_order(ranks):
    """Each new M is a call like any other, and right."""
    print(f"IMBREX_TEST_SEED={SEED}")
    ranks.run(sequences, seed=SEED, calls=40)


def told(call: Any, group: Any) -> str:
    """The error of a call, or of what is asked after it: on GPUs a rank hears of another one's refusal later."""
    try:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            it.check(group)
    except (imbrex.Error, RuntimeError) as error:
        return str(error)
    return ""


def differ() -> None:
    """Rank 1 calls with more rows than all others know: all are told, and the next call is right."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    b = torch.ones(12, 8)
    for first, second in ((8, 4), (8, 64), (64, 80)):
        it.matmul_all_reduce(torch.ones(first, 12), b, group)
        a = torch.ones(second if rank == 1 else first, 12)
        text = told(lambda a=a: it.matmul_all_reduce(a, b, group), group)
        assert "rank" in text, (first, second, text)
        got = it.matmul_all_reduce(torch.ones(first, 12), b, group)
        assert torch.equal(got, torch.full_like(got, 48)), (first, second)


def test_rows_that_differ_among_ranks(ranks):
    """Also where one rank's call needs a larger operator, and the others' do not."""
    ranks.run(differ)


def compiled() -> None:
    """Dynamic sizes under torch.compile."""
    group = group_of(0, 1, 2, 3)
    b = integers(16, 40, 3)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)

    @torch.compile(dynamic=True, fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return it.matmul_all_reduce(x * 2, b, group) + 1

    before = extension.calls()["made"]
    for rows in (6, 9, 30, 7, 30, 12, 25, 8):
        parts = [integers(rows, 16, rows * 8 + r) for r in range(ranks)]
        assert torch.equal(step(parts[rank]), sum(2 * part @ b for part in parts) + 1), rows
    assert extension.calls()["made"] - before <= 3


def test_under_compile(ranks):
    """One operator for the sizes of a compiled function."""
    ranks.run(compiled)


@pytest.mark.parametrize("name", ("memory", "any_m"))
def test_measurements_say_what_they_need(name):
    """Without a GPU there is nothing to measure."""
    script = Path(__file__).resolve().parents[2] / f"bench/python/{name}.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    done = launch(2, [str(script), "--out", os.devnull], environment, timeout=120)
    assert done.returncode != 0 and f"{name}.py: no GPU was found" in done.stderr, done.stderr
