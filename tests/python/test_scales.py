"""Products of 8-bit floats where something requires a gradient: the scales count, and the bias gets its gradient."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from groups_for_tests import group_of
from problems import integers
from test_operators import GEMMS
from torch import Tensor

import imbrex
import imbrex.torch as it

E4M3 = torch.float8_e4m3fn
RANKS, ROWS, COLUMNS, DEPTH = 4, 16, 32, 64


def operands(rank: int, rowwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B as weight.t(), and their scales: powers of two, so that nothing is rounded but at the end."""
    a = integers((ROWS, DEPTH), 10 + rank, torch.float32).to(E4M3)
    b = integers((COLUMNS, DEPTH), 20 + rank, torch.float32).to(E4M3).t()
    if not rowwise:
        return a, b, torch.full((1,), 0.5), torch.full((1,), 0.25)
    return a, b, 2.0 ** (torch.arange(ROWS).reshape(-1, 1) % 3 - 1), 2.0 ** (torch.arange(COLUMNS).reshape(1, -1) % 2)


def product_of(rank: int, rowwise: bool) -> Tensor:
    a, b, scale_a, scale_b = operands(rank, rowwise)
    return (a.double() * scale_a.double()) @ (b.double() * scale_b.double())


def wanted(op: str, rank: int, rowwise: bool, biases: list[Tensor]) -> Tensor:
    """The result on this rank, in float64."""
    if op == "all_gather_matmul":
        parts = []
        for peer in range(RANKS):
            a, _, scale_a, _ = operands(peer, rowwise)
            _, b, _, scale_b = operands(rank, rowwise)
            parts.append((a.double() * scale_a.double()) @ (b.double() * scale_b.double()))
        return torch.cat(parts) + biases[rank]
    if op == "matmul_all_to_all":
        blocks = [(product_of(peer, rowwise) + biases[peer]).chunk(RANKS)[rank] for peer in range(RANKS)]
        return torch.cat(blocks)
    total = sum(product_of(peer, rowwise) for peer in range(RANKS)) + biases[0]
    return total.chunk(RANKS)[rank] if op == "matmul_reduce_scatter" else total


def with_gradients(op: str, rowwise: bool) -> None:
    """With a bias that is a parameter: the value as without, and the gradient of the bias."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    own = op in ("all_gather_matmul", "matmul_all_to_all")  # each rank's bias is its own
    plain = [integers((COLUMNS,), 30 + (peer if own else 0), torch.float64) for peer in range(RANKS)]
    a, b, scale_a, scale_b = operands(rank, rowwise)
    bias = torch.nn.Parameter(plain[rank].bfloat16())
    wide = [one.clone().requires_grad_() for one in plain]
    if not own:
        wide = [wide[0]] * RANKS
    want = [wanted(op, peer, rowwise, wide) for peer in range(RANKS)]
    got = getattr(it, op)(a, b, group, bias=bias, scale_a=scale_a, scale_b=scale_b)
    assert torch.equal(got, want[rank].detach().bfloat16()), (got - want[rank]).abs().max()
    with torch.no_grad():
        again = getattr(it, op)(a, b, group, bias=bias, scale_a=scale_a, scale_b=scale_b)
    assert torch.equal(again, got)
    slopes = [
        integers(tuple(one.shape), 40 + (peer if op != "matmul_all_reduce" else 0), torch.float64)
        for peer, one in enumerate(want)
    ]
    # What all ranks hold counts once.
    losses = [(one * slope).sum() for one, slope in zip(want, slopes, strict=True)]
    (losses[0] if op == "matmul_all_reduce" else sum(losses)).backward()
    got.backward(slopes[rank].bfloat16())
    assert torch.equal(bias.grad.double(), wide[rank].grad), (op, bias.grad, wide[rank].grad)


@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("rowwise", (False, True))
def test_a_bias_that_is_a_parameter(ranks, op, rowwise):
    ranks.run(with_gradients, op=op, rowwise=rowwise)


def lists() -> None:
    """Several b, one with a parameter as its bias, and with the gathered A; and a codec's sum."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b, scale_a, scale_b = operands(rank, True)
    bias = torch.nn.Parameter(torch.ones(COLUMNS, dtype=torch.bfloat16))
    given: dict[str, Any] = {"scale_a": scale_a, "scale_b": [scale_b, scale_b]}
    with torch.no_grad():
        gathered, want = it.all_gather_matmul(a, [b, b], group, bias=[None, bias], return_gathered=True, **given)
    for keep in (False, True):
        got = it.all_gather_matmul(a, [b, b], group, bias=[None, bias], return_gathered=keep, **given)
        if keep:
            assert torch.equal(got[0].float(), gathered.float())
            got = got[1]
        assert not got[0].requires_grad
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
        bias.grad = None
        got[1].sum().backward()
        assert torch.equal(bias.grad, torch.full_like(bias, RANKS * ROWS))
    for op in ("matmul_reduce_scatter", "matmul_all_reduce"):
        given = {"scale_a": scale_a, "scale_b": scale_b, "codec": "int8"}
        with torch.no_grad():
            want = getattr(it, op)(a, b, group, bias=bias, **given)
        assert torch.equal(getattr(it, op)(a, b, group, bias=bias, **given), want), op


def test_lists_and_codecs(ranks):
    ranks.run(lists)


def scales_of_their_own(rowwise: bool) -> None:
    """Each b of a list has its own scale and its own bias, here and in the drop-in's operator."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b, scale_a, scale_b = operands(rank, rowwise)
    scales = [scale_b, 4 * scale_b, scale_b / 2]
    none = [torch.zeros(COLUMNS, dtype=torch.float64)] * RANKS
    want = [factor * wanted("all_gather_matmul", rank, rowwise, none) for factor in (1, 4, 0.5)]
    biases = [None, torch.full((COLUMNS,), 8, dtype=torch.bfloat16), None]
    want[1] += 8
    got = it.all_gather_matmul(a, [b] * 3, group, bias=biases, scale_a=scale_a, scale_b=scales)
    for i in range(3):
        assert torch.equal(got[i], want[i].bfloat16()), f"product {i}: {(got[i] - want[i]).abs().max()} off"
    with it.drop_in():
        args = (a, [b] * 3, scale_a, scales, 0, group.group_name, biases, [None] * 3, [torch.bfloat16] * 3, [False] * 3)
        got = torch.ops.symm_mem.fused_all_gather_scaled_matmul(*args)[1]
    for i in range(3):
        assert torch.equal(got[i], want[i].bfloat16()), f"the drop-in's product {i}"


@pytest.mark.parametrize("rowwise", (False, True))
def test_a_list_of_scales(ranks, rowwise):
    ranks.run(scales_of_their_own, rowwise=rowwise)


def modules() -> None:
    """A linear layer's bias beside the drop-in's operators, with gradients on."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b, scale_a, scale_b = operands(rank, True)
    bias = torch.nn.Parameter(integers((COLUMNS,), 30 + rank, torch.bfloat16))
    with it.drop_in():
        args = (a, [b], scale_a, [scale_b], 0, group.group_name, [bias], [None], [torch.bfloat16], [False])
        got = torch.ops.symm_mem.fused_all_gather_scaled_matmul(*args)[1][0]
    want = wanted("all_gather_matmul", rank, True, [bias.detach().double()] * RANKS)
    assert torch.equal(got, want.bfloat16())


def test_the_drop_in(ranks):
    ranks.run(modules)


def refusals() -> None:
    """There is no gradient of 8-bit matrices, nor of scales; what the call says otherwise is not left out either."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b, scale_a, scale_b = operands(rank, False)
    bias = torch.nn.Parameter(torch.ones(COLUMNS, dtype=torch.bfloat16))
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    learnt = {name: scale.clone().requires_grad_() for name, scale in scales.items()}
    for op in GEMMS:
        function = getattr(it, op)
        for name in ("a", "b"):
            given = {"a": a.detach(), "b": b.detach(), **scales}
            given[name] = given[name].clone().requires_grad_() if name == "a" else b.detach().requires_grad_()
            with pytest.raises(imbrex.InvalidInput, match=f"^{name} requires a gradient and is of torch.float8_e4m3fn"):
                function(**given, group=group)
            with torch.no_grad():
                assert torch.equal(function(**given, group=group), function(a, b, group, **scales))
        for name in scales:
            for more in ({}, {"bias": bias}):
                with pytest.raises(imbrex.InvalidInput, match=f"^{name} requires a gradient: there is none of scales"):
                    function(a, b, group, **{**scales, name: learnt[name]}, **more)
            with torch.no_grad():
                function(a, b, group, **{**scales, name: learnt[name]})
        # Rules hold with gradients as without.
        wide = a.float().requires_grad_(), b.float()
        with pytest.raises(imbrex.InvalidInput, match="only e4m3 has scales"):
            function(*wide, group, **scales)
        with pytest.raises(imbrex.InvalidInput, match="both must be given"):
            function(a, b, group, bias=bias, scale_a=scale_a)
        with pytest.raises(imbrex.InvalidInput, match="out_dtype"):
            function(*wide, group, out_dtype=torch.bfloat16)
    lists = {"scale_a": learnt["scale_a"], "scale_b": [scale_b]}
    with pytest.raises(imbrex.InvalidInput, match=r"^scale_a requires a gradient"):
        it.all_gather_matmul(a, [b], group, **lists)
    with pytest.raises(imbrex.InvalidInput, match="both must be given"):
        it.all_gather_matmul(a.float(), [b.float()], group, scale_b=[scale_b])
    with pytest.raises(imbrex.InvalidInput, match="out_dtype"):
        it.all_gather_matmul(a.float(), [b.float()], group, out_dtype=torch.bfloat16)
    it.all_reduce(torch.ones(4), group)  # the ranks are in step


def test_what_has_no_gradient(ranks):
    ranks.run(refusals)
