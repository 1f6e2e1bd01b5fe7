"""Products under torch.autocast: of the types, and with the gradients, of torch.mm."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import group_of

import imbrex
import imbrex.torch as it

PRODUCTS = (it.all_gather_matmul, it.matmul_reduce_scatter, it.matmul_all_reduce, it.matmul_all_to_all)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = generator_of(dist.get_rank())
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def types_are_cast() -> None:
    """A product in autocast is the product of what was cast, and so are its gradients; fp32 stays their type."""
    group = group_of(0, 1, 2, 3)
    a, b, bias = _drawn((8, 16), (16, 8), (8,))
    for product in PRODUCTS:
        for low in (BF16, F16):
            with torch.autocast(DEVICE, low):
                got = product(a, b, group, bias=bias)
            want = product(a.to(low), b.to(low), group, bias=bias.to(low))
            assert got.dtype == low and torch.equal(got, want), product
            gradients = [torch.autograd.grad(y.float().sum(), (a, b, bias)) for y in (got, want)]
            for mine, theirs in zip(*gradients, strict=True):
                assert mine.dtype == F32 and torch.equal(mine, theirs), product
        # An activation in bf16 beside a weight in fp32, as behind another layer.
        with torch.autocast(DEVICE, BF16):
            assert torch.equal(product(a.to(BF16), b, group), product(a.to(BF16), b.to(BF16), group))
            with torch.no_grad():
                assert product(a, b, group).dtype == BF16
            with torch.autocast(DEVICE, enabled=False):
                assert product(a, b, group).dtype == F32
    with torch.autocast(DEVICE, BF16):
        y, z = it.all_gather_matmul(a, [b, 2 * b], group, bias=[bias, bias])
        assert y.dtype == z.dtype == BF16


def test_types_are_cast(ranks):
    ranks.run(types_are_cast)


def what_torch_does_not_cast() -> None:
    """Results that are given, float64 and 8 bits are as without autocast."""
    group = group_of(0, 1, 2, 3)
    a, b = (one.detach() for one in _drawn((8, 16), (16, 8)))
    with torch.autocast(DEVICE, BF16):
        out = torch.empty(8, 8)
        assert it.matmul_all_reduce(a, b, group, out=out) is out
        torch.testing.assert_close(out, it.matmul_all_reduce(a, b, group, out=torch.empty(8, 8)))
        with pytest.raises(imbrex.InvalidInput, match=r"torch\.float64"):
            it.matmul_all_reduce(a.double(), b.double(), group)
        one, e4m3 = torch.ones(1), torch.float8_e4m3fn
        by_columns = b.t().contiguous().to(e4m3).t()
        assert it.matmul_all_reduce(a.to(e4m3), by_columns, group, scale_a=one, scale_b=one).dtype == BF16


def test_what_torch_does_not_cast(ranks):
    ranks.run(what_torch_does_not_cast)


def layers_and_graphs() -> None:
    """Layers give what torch's would, in graphs too, and their weights' gradients are fp32."""
    group = group_of(0, 1, 2, 3)
    up = it.nn.ColumnParallelLinear(16, 32, group=group, sequence_parallel=True)
    down = it.nn.RowParallelLinear(32, 16, group=group, sequence_parallel=True)
    (x,) = _drawn((4, 16))

    def block(x: torch.Tensor) -> Any:
        return down(torch.relu(up(x)))

    weights = [*up.parameters(), *down.parameters()]
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    results = []
    for function in (block, compiled):
        with torch.autocast(DEVICE, BF16):
            y = function(x)
        assert y.dtype == BF16
        results.append((y, *torch.autograd.grad(y.float().sum(), [x, *weights])))
    assert all(gradient.dtype == F32 for gradient in results[0][1:])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    assert block(x).dtype == F32


def test_layers_and_graphs(ranks):
    ranks.run(layers_and_graphs)
