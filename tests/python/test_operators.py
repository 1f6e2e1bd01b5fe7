"""The operators against torch's own products and collectives, exactly: all inputs are small integers."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import first, group_of
from problems import DTYPES, Problem, arguments, draw, inputs, integers, reference

import imbrex
import imbrex.torch as it
from imbrex.torch import extension

GEMMS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all")
SEED = int(os.environ.get("IMBREX_TEST_SEED", "1"))


def solve(p: Problem) -> None:
    """One problem, on the ranks that it has."""
    group = first(p.ranks)
    if group is None:
        return
    rank = dist.get_rank(group)
    a, b, bias = inputs(p, rank)
    want = reference(p, a, b, bias, group)
    function = getattr(it, p.op)
    if p.use_out:
        out = torch.full(want.movedim(p.dim, 0).shape, -7, dtype=want.dtype).movedim(0, p.dim)
        got = function(a, b, group, bias=bias, out=out, **arguments(p))
        assert got.data_ptr() == out.data_ptr(), p
    else:
        got = function(a, b, group, bias=bias, **arguments(p))
    assert got.shape == want.shape and got.dtype == want.dtype, f"{p}: {got.shape}, {got.dtype}"
    assert got.movedim(p.dim, 0).is_contiguous(), f"{p}: strides {got.stride()}"
    assert torch.equal(got, want), f"{p}: {(got.float() - want.float()).abs().max()} off"
    if bias is None:  # a call of a form that is known, with other tensors
        more = {"out": torch.empty_like(out)} if p.use_out else {}
        assert torch.equal(function(-a, b, group, **arguments(p), **more), -want), f"{p}: again"


def solve_random(begin: int, count: int) -> None:
    """So many problems from consecutive seeds."""
    for seed in range(begin, begin + count):
        p = draw(seed, GEMMS)
        if p.op in ("matmul_all_reduce", "matmul_all_to_all") and p.batch:
            p = replace(p, dim=0)
        if p.op == "matmul_all_to_all" and p.batch:
            p = replace(p, batch=0)
        try:
            solve(p)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {p}: {error}") from error


@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operator(ranks, op, dtype):
    """Each operator in each type, with and without bias and out."""
    for bias, use_out in ((False, False), (True, True)):
        ranks.run(solve, p=Problem(op, 4, 16, 24, 32, dtype, bias, 0, 0, False, use_out, 5))


@pytest.mark.parametrize("op", GEMMS)
def test_weights_as_a_linear_layer_has_them(ranks, op):
    """B as the transpose of an N x K tensor, without a copy."""
    for dtype in DTYPES:
        ranks.run(solve, p=Problem(op, 4, 16, 24, 32, dtype, False, 0, 0, True, False, 6))


def test_random_problems(ranks):
    """200 problems on 2 to 4 ranks: three dimensions, layouts, sub-groups."""
    begin = SEED * 1000
    print(f"seeds {begin} to {begin + 199} (IMBREX_TEST_SEED={SEED})")
    ranks.run(solve_random, begin=begin, count=200)


def apart(x: torch.Tensor, value: float, by_columns: bool = False) -> torch.Tensor:
    """A copy of x in a wider tensor, with `value` between its rows."""
    if by_columns:
        return apart(x.t(), value).t()
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 8), value, dtype=x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def solve_apart(begin: int, count: int) -> None:
    """Random problems whose rows lie apart, which is no copy: what is between them is neither read nor written."""
    for seed in range(begin, begin + count):
        p = draw(seed, GEMMS)
        if p.op in ("matmul_all_reduce", "matmul_all_to_all"):
            p = replace(p, dim=0, batch=0 if p.op == "matmul_all_to_all" else p.batch)
        group = first(p.ranks)
        if group is None:
            continue
        a, b, bias = inputs(p, dist.get_rank(group))
        want = reference(p, a, b, bias, group)
        spread = apart(a.movedim(p.dim, 0), torch.nan).movedim(0, p.dim)
        out = apart(torch.zeros_like(want.movedim(p.dim, 0)), -7).movedim(0, p.dim)
        function = getattr(it, p.op)
        got = function(spread, apart(b, torch.nan, p.b_by_columns), group, bias=bias, out=out, **arguments(p))
        assert got.data_ptr() == out.data_ptr() and torch.equal(got, want), f"{p}: {got} is not {want}"
        assert (out._base[..., want.shape[-1] :] == -7).all(), p
        assert torch.equal(function(spread, b, group, bias=bias, **arguments(p)), want), p
        assert torch.equal(function(a, b, group, bias=bias, **arguments(p)), want), p


def test_rows_that_lie_apart(ranks):
    """Slices of wider tensors as operands and outputs."""
    print(f"IMBREX_TEST_SEED={SEED}")
    ranks.run(solve_apart, begin=SEED * 1000 + 500, count=60)


def lists_apart() -> None:
    """Blocks of one fused weight, one after another, and a slice of wider activations."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    parts = [integers((6, 8), 70 + r, torch.float32) for r in range(4)]
    weight = integers((8, 40), 90 + rank, torch.float32)
    bs = list(weight.split((16, 16, 8), dim=1))
    assert not any(b.is_contiguous() for b in bs)
    gathered, products = it.all_gather_matmul(apart(parts[rank], torch.nan), bs, group, return_gathered=True)
    assert torch.equal(gathered, torch.cat(parts))
    for product, b in zip(products, bs, strict=True):
        assert torch.equal(product, torch.cat(parts) @ b)


def test_blocks_of_a_fused_weight(ranks):
    """Several B that are columns of one tensor, without a copy."""
    ranks.run(lists_apart)


def lists_of_b(dtype: str, dim: int) -> None:
    """Three products of one gather, and the gathered A."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    shape = (3, 2, 8) if dim == 0 else (2, 3, 8)
    parts = [integers(shape, 70 + r, DTYPES[dtype]) for r in range(4)]
    a = parts[rank].movedim(dim, 0).contiguous().movedim(0, dim)
    whole = torch.cat(parts, dim)
    bs = [integers((width, 8), 80 + 10 * rank + width, DTYPES[dtype]).t() for width in (16, 8, 8)]
    some = [None, integers((8,), rank, DTYPES[dtype]), None]
    every = [integers((b.shape[1],), rank + i, DTYPES[dtype]) for i, b in enumerate(bs)]
    mixed = [bs[0], bs[1].contiguous(), bs[2]]
    # Neither rows nor columns without gaps between their elements, which the library does not take.
    gaps = [b.repeat_interleave(2, 1).contiguous()[:, ::2] for b in bs]

    def product_of(b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return (whole.float() @ b.float() + (0 if bias is None else bias.float())).to(whole.dtype)

    # Whatever the library does in one plan, and what is done outside of it: some biases, two layouts, four b.
    for native, b, biases in (
        (True, bs, [None] * 3),
        (True, bs, every),
        (True, bs[:2], every[:2]),
        (True, [one.contiguous() for one in bs], every),
        (False, bs, some),
        (False, mixed, every),
        (False, gaps, every),
        (False, [*bs, bs[0]], [None] * 4),
    ):
        calls = extension.calls()["all_gather_matmul"]
        wants = [product_of(one, bias) for one, bias in zip(b, biases, strict=True)]
        got = it.all_gather_matmul(a, b, group, gather_dim=dim, bias=biases)
        gathered, again = it.all_gather_matmul(a, b, group, gather_dim=dim, bias=biases, return_gathered=True)
        assert torch.equal(gathered, whole) and gathered.movedim(dim, 0).is_contiguous()
        assert len(got) == len(again) == len(b)
        for one, other, want in zip(got, again, wants, strict=True):
            assert torch.equal(one, want) and torch.equal(other, want)
            assert one.movedim(dim, 0).is_contiguous()
        assert extension.calls()["all_gather_matmul"] - calls == (2 if native else 0)
    gathered, product = it.all_gather_matmul(a, bs[0], group, gather_dim=dim - 3, return_gathered=True)
    assert torch.equal(gathered, whole) and torch.equal(product, product_of(bs[0], None))
    outs = [torch.empty_like(product_of(b, None)) for b in bs]
    assert it.all_gather_matmul(a, bs, group, gather_dim=dim, out=outs)[0] is outs[0]
    assert torch.equal(outs[2], product_of(bs[2], None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", (0, 1))
def test_lists_of_b(ranks, dtype, dim):
    """Several B share one gather; the gathered A comes with them where it is asked for."""
    ranks.run(lists_of_b, dtype=dtype, dim=dim)


def fp8(rowwise: bool, op: str) -> None:
    """Products of 8-bit floats, exact: integers, and scales that are powers of two."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    p = Problem(op, 4, 16, 32, 64, "float32", False, 0, 0, True, False, 9)
    a, b, _ = inputs(p, rank)
    if rowwise:
        scale_a = torch.tensor([2.0 ** (i % 3 - 1) for i in range(a.shape[0])]).reshape(-1, 1)
        scale_b = torch.tensor([2.0 ** (i % 2) for i in range(b.shape[1])]).reshape(1, -1)
    else:
        scale_a, scale_b = torch.tensor(0.5), torch.tensor(2.0)
    want = reference(p, a * scale_a, b * scale_b, None, group).bfloat16()
    e4m3 = torch.float8_e4m3fn
    got = getattr(it, op)(a.to(e4m3), b.t().contiguous().to(e4m3).t(), group, scale_a=scale_a, scale_b=scale_b)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want), (got.float() - want.float()).abs().max()


@pytest.mark.parametrize("op", GEMMS)
@pytest.mark.parametrize("rowwise", (False, True))
def test_fp8(ranks, op, rowwise):
    """Tensor-wise and row-wise scales."""
    ranks.run(fp8, rowwise=rowwise, op=op)


def all_reduces() -> None:
    """Exact sums of several shapes, in place too, and sums through codecs within their reported bound."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    for dtype in DTYPES.values():
        for shape in ((7,), (3, 5), (2, 3, 16), (1, 1024)):
            parts = [integers(shape, 50 + r, dtype) for r in range(4)]
            want = sum(part.float() for part in parts).to(dtype)
            assert torch.equal(it.all_reduce(parts[rank], group), want)
            x = parts[rank].clone()
            assert it.all_reduce(x, group, out=x) is x and torch.equal(x, want)
    generator = generator_of(3)
    parts = torch.randn(4, 4096, generator=generator)
    want = parts.double().sum(0)
    for codec, tolerance in (("int8", None), ("int8", 0.05), ("int4+int8", None)):
        got, told = it.all_reduce(parts[rank].clone(), group, codec=codec, tolerance=tolerance, report=True)
        off = (got.double() - want).abs().max().item()
        assert 0 < off <= told.largest_error + 1e-5, (codec, off, told)
        assert not told.exact and told.non_finite == 0


def test_all_reduce(ranks):
    """Exact and through a codec."""
    ranks.run(all_reduces)


def rms_norms() -> None:
    """Against the same in float64, within a few roundings."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    for dtype in DTYPES.values():
        for shape in ((5, 64), (2, 3, 32)):
            parts = [integers(shape, 50 + r, dtype) for r in range(4)]
            residual = integers(shape, 9, dtype)
            weight = integers(shape[-1:], 10, dtype)
            for r in (residual, None):
                total = sum(part.double() for part in parts) + (0 if r is None else r.double())
                want = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
                y, s = it.all_reduce_rms_norm(parts[rank], r, weight, 1e-5, group)
                assert torch.equal(s.double(), total)
                bound = 4 * torch.finfo(dtype).eps
                assert ((y.double() - want).abs() <= bound * want.abs() + 1e-6).all()


def test_all_reduce_rms_norm(ranks):
    """With and without residual."""
    ranks.run(rms_norms)


def wide_weights() -> None:
    """Weights of float32 beside shorter rows: products are rounded once, and equal weights give equal bits."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    # The mean of the squares of the sum over the ranks is 4, so that only the product with the weight is rounded.
    row = torch.tensor([5.0, -2, 1, 1, -1, 0, 0, 0], device=DEVICE)
    for dtype in (torch.bfloat16, torch.float16):
        x = (row if rank == 0 else torch.zeros_like(row)).to(dtype).repeat(3, 1)
        weight = torch.full_like(row, 1 + torch.finfo(dtype).eps / 2)
        y, s = it.all_reduce_rms_norm(x, None, weight, 0.0, group)
        assert y.dtype == s.dtype == dtype
        assert torch.equal(y, (row / 2 * weight).to(dtype).repeat(3, 1))
        assert not torch.equal(y, (row / 2 * weight.to(dtype).float()).to(dtype).repeat(3, 1))
        out = [torch.empty_like(x) for _ in range(2)]
        it.all_reduce_rms_norm(x, None, weight, 0.0, group, out=out[0], residual_out=out[1])
        assert torch.equal(out[0], y) and torch.equal(out[1], s)
        for shape in ((5, 64), (2, 3, 100)):
            part, residual = integers(shape, 50 + rank, dtype), integers(shape, 9, dtype)
            narrow = integers(shape[-1:], 10, dtype)
            want = it.all_reduce_rms_norm(part, residual, narrow, 1e-5, group)
            got = it.all_reduce_rms_norm(part, residual, narrow.float(), 1e-5, group)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_rms_norm_with_weights_of_float32(ranks):
    ranks.run(wide_weights)


def quantized_products() -> None:
    """Products whose sums travel through a codec stay within what their tolerance allows."""
    group = group_of(0, 1, 2, 3)
    rank = dist.get_rank(group)
    generator = generator_of(4)
    a, b = torch.randn(4, 16, 32, generator=generator), torch.randn(4, 32, 64, generator=generator)
    want = sum(x.double() @ y.double() for x, y in zip(a, b, strict=True))
    for tolerance in (None, 0.5):
        got = it.matmul_all_reduce(a[rank], b[rank], group, codec="int8", tolerance=tolerance)
        limit = tolerance if tolerance is not None else 2.0
        assert (got.double() - want).abs().max() < limit
        mine = it.matmul_reduce_scatter(a[rank], b[rank], group, codec="int8", tolerance=tolerance)
        assert (mine.double() - want[rank * 4 : rank * 4 + 4]).abs().max() < limit
        # Within a tolerance it is a part of the all-reduce's result; else its sums are sent through no codec.
        assert tolerance is None or torch.equal(mine, got[rank * 4 : rank * 4 + 4])


def test_products_through_a_codec(ranks):
    """codec= and tolerance= on the products."""
    ranks.run(quantized_products)


def two_worlds() -> None:
    """Calls in turn on two groups that overlap."""
    whole, pair = group_of(0, 1, 2, 3), [group_of(0, 1), group_of(2, 3)][dist.get_rank() // 2]
    for turn in range(20):
        for group in (whole, pair):
            size = dist.get_world_size(group)
            p = Problem("matmul_all_reduce", size, 8, 8, 24, "float32", False, 0, 0, False, False, turn)
            a, b, _ = inputs(p, dist.get_rank(group))
            assert torch.equal(it.matmul_all_reduce(a, b, group), reference(p, a, b, None, group))


def test_two_worlds(ranks):
    """Two groups in one process, called in turn."""
    ranks.run(two_worlds)


def meshes() -> None:
    """A group as a dimension of a mesh, by name, and as None."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.full((4,), float(dist.get_rank()))
    tp = mesh["tp"]
    want = sum(dist.get_process_group_ranks(tp.get_group()))
    for group in (tp, tp.get_group(), tp.get_group().group_name):
        assert it.all_reduce(x, group)[0].item() == want
    assert it.all_reduce(x)[0].item() == 6
    with pytest.raises(imbrex.InvalidInput, match="2 dimensions"):
        it.all_reduce(x, mesh)


def test_meshes(ranks):
    """Every form of a group."""
    ranks.run(meshes)
