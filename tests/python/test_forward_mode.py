"""Forward-mode derivatives: torch.func.jvp, jacfwd and torch.autograd.forward_ad give right tangents, or raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
from device_for_tests import generator_of
from groups_for_tests import group_of
from test_operators import GEMMS
from torch import Tensor

import imbrex
import imbrex.torch as it

RANKS = 4
ROWS, COLUMNS, DEPTH = 8, 6, 12
Function = Callable[..., Any]


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=generator_of(seed))


def one_by_one(op: str, parts: list[tuple[Tensor, ...]], rank: int) -> Tensor:
    """What an operator gives this rank, by torch's own products of all ranks' operands."""
    if op == "all_gather_matmul":
        return torch.cat([a for a, *_ in parts]) @ parts[rank][1] + parts[rank][2]
    if op == "matmul_all_to_all":
        return torch.cat([(a @ b + bias).chunk(RANKS)[rank] for a, b, bias in parts])
    total = sum(a @ b for a, b, _ in parts) + parts[0][2]
    return total.chunk(RANKS)[rank] if op == "matmul_reduce_scatter" else total


def operands(op: str, seed: int) -> list[tuple[Tensor, ...]]:
    """A, B and a bias of each rank; a bias that is added once is the same on every rank."""
    own = op in ("all_gather_matmul", "matmul_all_to_all")
    return [
        (
            drawn((ROWS, DEPTH), seed + rank),
            drawn((DEPTH, COLUMNS), seed + 10 + rank),
            drawn((COLUMNS,), seed + 20 + rank * own),
        )
        for rank in range(RANKS)
    ]


def near(got: Tensor | None, want: Tensor, what: Any) -> None:
    assert got is not None, f"{what}: no tangent"
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-4), (what, (got - want).abs().max())


def products(op: str) -> None:
    """Tangents of either matrix, of the bias, and of all three, by both of torch's ways."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    values, slopes = operands(op, 100), operands(op, 200)
    function = getattr(it, op)

    def ours(a: Tensor, b: Tensor, bias: Tensor) -> Any:
        return function(a, b, group, bias=bias)

    for given in ((0,), (1,), (2,), (0, 1, 2)):
        tangents = [
            tuple(one if i in given else torch.zeros_like(one) for i, one in enumerate(part)) for part in slopes
        ]
        everything = tuple(tuple(part) for part in values)
        want, slope = torch.func.jvp(lambda parts: one_by_one(op, list(parts), rank), (everything,), (tuple(tangents),))
        got, tangent = torch.func.jvp(ours, values[rank], tangents[rank])
        near(got, want, (op, given))
        near(tangent, slope, (op, given))
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(value, one) if i in given else value
                for i, (value, one) in enumerate(zip(values[rank], tangents[rank], strict=True))
            ]
            got, tangent = forward_ad.unpack_dual(ours(*duals))
            near(got, want, (op, given))
            near(tangent, slope, (op, given))


@pytest.mark.parametrize("op", GEMMS)
def test_products(ranks, op):
    ranks.run(products, op=op)


def variants(group: Any, rank: int) -> Iterator[tuple[str, Function, Function]]:
    """Functions of this rank's A, and the same by torch's own products and collectives of all ranks' As."""
    b = drawn((RANKS, DEPTH, COLUMNS), 7)
    wide, tall = drawn((RANKS, 2, ROWS, DEPTH), 8), drawn((RANKS, DEPTH, 2 * COLUMNS), 9)
    for dim in (0, 1):
        yield (
            f"gather along {dim}",
            lambda a, dim=dim: it.all_gather_matmul(lying(wide[rank] * a, dim), b[rank], group, gather_dim=dim),
            lambda parts, dim=dim: torch.cat([wide[r] * parts[r] for r in range(RANKS)], dim) @ b[rank],
        )
        yield (
            f"scatter along {dim}",
            lambda a, dim=dim: it.matmul_reduce_scatter(
                lying((wide[rank] * a).repeat(2, 1, 1), dim), b[rank], group, scatter_dim=dim
            ),
            lambda parts, dim=dim: sum((wide[r] * parts[r]).repeat(2, 1, 1) @ b[r] for r in range(RANKS)).chunk(
                RANKS, dim
            )[rank],
        )
    gather = it.all_gather_matmul
    yield (
        "two b",
        lambda a: torch.cat(gather(a, [b[rank], tall[rank]], group), 1),
        lambda parts: torch.cat(list(parts)) @ torch.cat([b[rank], tall[rank]], 1),
    )
    yield (
        "gathered",
        lambda a: torch.cat(gather(a, b[rank], group, return_gathered=True), 1),
        lambda parts: torch.cat([torch.cat(list(parts)), torch.cat(list(parts)) @ b[rank]], 1),
    )
    yield (
        "two b, gathered",
        lambda a: (lambda told: torch.cat([told[0], *told[1]], 1))(
            gather(a, [b[rank], b[rank]], group, return_gathered=True)
        ),
        lambda parts: torch.cat([torch.cat(list(parts)), *[torch.cat(list(parts)) @ b[rank]] * 2], 1),
    )
    yield "all_reduce", lambda a: it.all_reduce(a, group), lambda parts: sum(parts)
    yield (
        "all_reduce and norm",
        lambda a: torch.cat(it.all_reduce_rms_norm(a, a * 0 + 1, a[0].exp(), 1e-3, group)),
        lambda parts: (
            lambda s: torch.cat([s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-3) * parts[rank][0].exp(), s])
        )(sum(parts) + 1),
    )
    yield (
        "norm without residual",
        lambda a: it.all_reduce_rms_norm(a, None, torch.ones(DEPTH), 1e-3, group)[0],
        lambda parts: sum(parts) * torch.rsqrt(sum(parts).pow(2).mean(-1, keepdim=True) + 1e-3),
    )
    column = it.nn.ColumnParallelLinear(DEPTH, RANKS * COLUMNS, group, sequence_parallel=True)
    row = it.nn.RowParallelLinear(RANKS * DEPTH, COLUMNS, group)
    weights = [column.weight.detach(), row.weight.detach()]
    every = [[torch.empty_like(one) for _ in range(RANKS)] for one in weights]
    for one, all_ranks in zip(weights, every, strict=True):
        dist.all_gather(all_ranks, one.contiguous(), group=group)
    yield "ColumnParallelLinear", column, lambda parts: torch.cat(list(parts)) @ weights[0].t()
    yield "RowParallelLinear", row, lambda parts: sum(parts[r] @ every[1][r].t() for r in range(RANKS))


def lying(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, 0).contiguous().movedim(0, dim)


def all_variants() -> None:
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    values = tuple(drawn((ROWS, DEPTH), 300 + r) for r in range(RANKS))
    slopes = tuple(drawn((ROWS, DEPTH), 400 + r) for r in range(RANKS))
    for name, ours, torchs in variants(group, rank):
        want, slope = torch.func.jvp(lambda *parts, torchs=torchs: torchs(parts), values, slopes)
        with torch.no_grad():
            got, tangent = torch.func.jvp(ours, (values[rank],), (slopes[rank],))
        near(got, want, name)
        near(tangent, slope, name)
        with forward_ad.dual_level():  # weights of layers require gradients here
            got, tangent = forward_ad.unpack_dual(ours(forward_ad.make_dual(values[rank], slopes[rank])))
            near(got.detach(), want, name)
            near(None if tangent is None else tangent.detach(), slope, name)


def test_lists_layouts_collectives_and_layers(ranks):
    ranks.run(all_variants)


def through_codecs() -> None:
    """Tangents are those of exact sums, as gradients are; the report is of the value."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b, slope = drawn((ROWS, DEPTH), rank), drawn((DEPTH, COLUMNS), 10 + rank), drawn((ROWS, DEPTH), 20 + rank)
    for op in ("matmul_all_reduce", "matmul_reduce_scatter"):
        function = getattr(it, op)
        for more in ({"codec": "int8"}, {"codec": "int8", "tolerance": 0.5}):
            value, tangent = torch.func.jvp(lambda x: function(x, b, group, **more), (a,), (slope,))  # noqa: B023
            assert torch.equal(value, function(a, b, group, **more)), more
            near(tangent, function(slope, b, group), more)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, slope)
        y, told = it.all_reduce(dual, group, codec="int8", tolerance=0.5, report=True)
        assert told.largest_error <= 0.5
        near(forward_ad.unpack_dual(y).tangent, it.all_reduce(slope, group), "all_reduce")


def test_codecs(ranks):
    ranks.run(through_codecs)


def jacobians() -> None:
    """jacfwd calls once for all directions; a Hessian-vector product is forward over reverse."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    x = drawn((2, 4), 5)
    b = drawn((RANKS, 4, 4), 6)
    got = torch.func.jacfwd(lambda a: it.matmul_all_reduce(a, b[rank], group))(x)
    want = torch.func.jacfwd(lambda a: sum(a @ b[r] for r in range(RANKS)))(x)
    near(got, want, "jacfwd")
    got = torch.func.jacfwd(lambda a: it.all_reduce(a, group))(x)
    near(got, RANKS * torch.eye(8).reshape(2, 4, 2, 4), "jacfwd of all_reduce")
    # d/dw of the tangent of (a w) along a': a'^T dy.
    slope = drawn((2, 4), 8 + rank)
    weight = b[rank].clone().requires_grad_()
    with forward_ad.dual_level():
        y = it.matmul_all_reduce(forward_ad.make_dual(x, slope), weight, group)
        tangent = forward_ad.unpack_dual(y).tangent
        near(tangent.detach(), it.matmul_all_reduce(slope, b[rank], group), "tangent")
        tangent.sum().backward()
    near(weight.grad, slope.t() @ torch.ones(2, 4), "gradient of a tangent")


def test_jacobians_and_gradients_of_tangents(ranks):
    ranks.run(jacobians)


def refusals() -> None:
    """What has no tangent says so; outputs take none; and outside of tangents nothing changes."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    a, b = drawn((ROWS, DEPTH), rank), drawn((DEPTH, COLUMNS), 10)
    packed, layout = it.matmul_all_reduce_packed(a, b, group)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(NotImplementedError, match="matmul_all_reduce_packed has no forward-mode derivative"):
            it.matmul_all_reduce_packed(dual, b, group)
        with pytest.raises(NotImplementedError, match="put_back has no forward-mode derivative"):
            it.put_back("copy", forward_ad.make_dual(packed, torch.ones_like(packed)), layout)
        for op in GEMMS:
            with pytest.raises(imbrex.InvalidInput, match=r"^out: "):
                getattr(it, op)(dual, b, group, out=torch.empty(1))
            eight, columns = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
            bias = forward_ad.make_dual(torch.ones(COLUMNS).bfloat16(), torch.ones(COLUMNS).bfloat16())
            with pytest.raises(NotImplementedError, match="8-bit floats have no forward-mode derivative"):
                getattr(it, op)(eight, columns, group, bias=bias)
        with pytest.raises(imbrex.InvalidInput, match=r"^out: "):
            it.all_reduce(dual, group, out=torch.empty_like(a))
        assert forward_ad.unpack_dual(it.matmul_all_reduce(a, b, group)).tangent is None
    with pytest.raises(NotImplementedError, match="of forward-mode derivatives"):
        torch.func.jacfwd(torch.func.jacfwd(lambda x: it.all_reduce(x, group)))(a[0])
    it.all_reduce(torch.ones(4), group)


def test_what_has_no_tangent(ranks):
    ranks.run(refusals)
