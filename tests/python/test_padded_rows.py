"""matmul_reduce_scatter of rows that do not divide by the ranks."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import integers
from torch import Tensor

import imbrex
import imbrex.torch as it

RANKS = 4


def whole(function: Any, *shapes: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """The sum over the ranks of a product, of rows of zeros too."""
    parts = [[integers(shape, seed + 10 * rank + i, dtype) for i, shape in enumerate(shapes)] for rank in range(RANKS)]
    return sum((function(*part).double() for part in parts[1:]), function(*parts[0]).double())


def padded_product(a: Tensor, b: Tensor, dim: int, bias: Tensor | None = None) -> Tensor:
    rows = list(a.shape)
    rows[dim] = -a.shape[dim] % RANKS
    product = torch.cat([a.float(), a.new_zeros(rows, dtype=torch.float32)], dim) @ b.float()
    return product if bias is None else product + bias.float() / RANKS


def random_rows(seed: int) -> None:
    """Any number of rows from 0 on, along both dimensions, with and without gradients, in graphs of open sizes."""
    group, rank = group_of(*range(RANKS)), dist.get_rank()
    draw = random.Random(seed)
    graph = torch.compile(
        lambda a, b, dim: it.matmul_reduce_scatter(a, b, group, scatter_dim=dim, pad=True), backend="aot_eager"
    )
    for number in range(24):
        dtype = draw.choice([torch.float32, torch.bfloat16])
        dim, k, n = draw.choice([0, 1]), 8, 16
        lead = [draw.randint(1, 9) for _ in range(draw.choice([1, 2]))]
        dim = min(dim, len(lead) - 1)
        a_shape, b_shape = (*lead, k), (k, n)
        a, b = integers(a_shape, 10 * rank, dtype), integers(b_shape, 10 * rank + 1, dtype)
        bias = torch.full((n,), 4.0, dtype=dtype, device=DEVICE) if draw.random() < 0.5 else None
        want = whole(
            lambda x, y, d=dim, c=bias: padded_product(x, y, d, c), a_shape, b_shape, seed=0, dtype=dtype
        ).chunk(RANKS, dim)[rank]
        what = (seed, number, a_shape, dim, dtype)
        got = it.matmul_reduce_scatter(a, b, group, scatter_dim=dim, bias=bias, pad=True)
        assert torch.equal(got.double(), want.to(dtype).double()), what
        out = torch.empty(got.shape, dtype=dtype, device=DEVICE)
        if dim == 0:
            it.matmul_reduce_scatter(a, b, group, bias=bias, pad=True, out=out)
            assert torch.equal(out, got), what
        if bias is None and number < 8:
            assert torch.equal(graph(a, b, dim), got), what
        mine = [x.clone().requires_grad_() for x in (a, b)]
        it.matmul_reduce_scatter(*mine, group, scatter_dim=dim, pad=True).float().sum().backward()
        torch.testing.assert_close(mine[0].grad, (torch.ones(*lead, n, device=DEVICE) @ b.t().float()).to(dtype))
        torch.testing.assert_close(
            mine[1].grad, (a.reshape(-1, k).t().float() @ torch.ones(a.numel() // k, n, device=DEVICE)).to(dtype)
        )


@pytest.mark.parametrize("seed", [1, 2])
def test_any_number_of_rows(ranks, seed):
    ranks.run(random_rows, seed=seed)


def edges() -> None:
    """No rows, scales of each row, and what is refused; copies are counted."""
    group, rank = group_of(*range(RANKS)), dist.get_rank()
    b = integers((16, 16), 1, torch.float32)
    assert it.matmul_reduce_scatter(integers((0, 16), 0, torch.float32), b, group, pad=True).shape == (0, 16)
    before = it.stats().copies.get("matmul_reduce_scatter: rows are padded", 0)
    it.matmul_reduce_scatter(integers((8, 16), 0, torch.float32), b, group, pad=True)
    assert it.stats().copies.get("matmul_reduce_scatter: rows are padded", 0) == before
    it.matmul_reduce_scatter(integers((9, 16), 0, torch.float32), b, group, pad=True)
    assert it.stats().copies["matmul_reduce_scatter: rows are padded"] == before + 1

    eight = integers((5, 16), rank, torch.float32).to(torch.float8_e4m3fn)
    columns = integers((16, 16), 9, torch.float32).to(torch.float8_e4m3fn).t().contiguous().t()
    scale_a, scale_b = torch.full((5, 1), 2.0, device=DEVICE), torch.ones(1, 16, device=DEVICE)
    got = it.matmul_reduce_scatter(eight, columns, group, scale_a=scale_a, scale_b=scale_b, pad=True)
    longer = torch.cat([eight.float(), torch.zeros(3, 16, device=DEVICE)]).to(torch.float8_e4m3fn)
    want = it.matmul_reduce_scatter(
        longer, columns, group, scale_a=torch.full((8, 1), 2.0, device=DEVICE), scale_b=scale_b
    )
    assert torch.equal(got, want)
    with pytest.raises(imbrex.InvalidInput, match="pad with a scale for each row: a is 5 x 1 x 16"):
        it.matmul_reduce_scatter(eight.reshape(5, 1, 16), columns, group, scale_a=scale_a, scale_b=scale_b, pad=True)
    with pytest.raises(imbrex.InvalidInput, match="must divide by the 4 ranks"):
        it.matmul_reduce_scatter(integers((9, 16), 0, torch.float32), b, group)
    assert it.matmul_reduce_scatter(integers((8, 16), 0, torch.float32), b, group).shape == (2, 16)


def test_edges(ranks):
    ranks.run(edges)
