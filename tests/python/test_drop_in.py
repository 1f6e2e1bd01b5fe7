"""torch.ops.symm_mem's fused operators, run by Imbrex: against torch's own on the CPU, and restored exactly."""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from groups_for_tests import group_of
from problems import DTYPES, integers

import imbrex.torch as it
from imbrex.torch import extension
from imbrex.torch.refusals import Refusal

E4M3 = torch.float8_e4m3fn
NAMES = (
    "fused_all_gather_matmul",
    "fused_matmul_reduce_scatter",
    "fused_all_gather_scaled_matmul",
    "fused_scaled_matmul_reduce_scatter",
)


def torchs(name: str, *args: Any, **kwargs: Any) -> Any:
    """What torch's kernel for tensors without data makes of tensors with data: its collectives and products."""
    import torch.distributed._symmetric_memory

    kernel = torch.library.get_kernel(f"symm_mem::{name}", "Meta")
    return kernel.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)


def flat(results: Any) -> list[torch.Tensor | None]:
    if isinstance(results, torch.Tensor) or results is None:
        return [results]
    return [one for part in results for one in flat(part)]


def steps(one: torch.Tensor) -> list[int]:
    """Strides of what has more than one element; those of others say nothing."""
    return [stride for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1]


def expect_like_fakes(name: str, args: tuple[Any, ...], got: Any) -> None:
    """Shapes, strides and dtypes are those that torch gives tensors without data; gloo moves no 8-bit floats."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
        want = getattr(torch.ops.symm_mem, name)(*fakes)
    for mine, theirs in zip(flat(got), flat(want), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, (name, mine.shape, theirs.shape)
        assert steps(mine) == steps(theirs), (name, mine.stride(), theirs.stride())


def expect_same(got: Any, want: Any, what: str) -> None:
    """Values and strides."""
    got, want = flat(got), flat(want)
    assert len(got) == len(want), what
    for mine, theirs in zip(got, want, strict=True):
        assert (mine is None) == (theirs is None), what
        if mine is None:
            continue
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, (what, mine.shape, theirs.shape)
        assert steps(mine) == steps(theirs), (what, mine.stride(), theirs.stride())
        assert torch.equal(mine.float(), theirs.float()), what


def lying(a: torch.Tensor, dim: int) -> torch.Tensor:
    return a.movedim(dim, 0).contiguous().movedim(0, dim)


def plain_operators() -> None:
    """Both operators without scales, in each form in which callers give their tensors."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    calls_before = extension.calls()
    count = along = 0
    reason = "fused_matmul_reduce_scatter: result along another dimension than the first"
    copies = it.stats().copies.get(reason, 0)
    with it.drop_in():
        for dtype, (shape, dim), columns, several in itertools.product(
            DTYPES.values(),
            (((8, 16), 0), ((4, 2, 16), 0), ((2, 4, 16), 1), ((2, 8, 16), 1), ((1, 4, 16), 1)),
            (False, True),
            (1, 3),
        ):
            a = lying(integers(shape, rank, dtype), dim)
            bs = [integers((16, 8 * (i + 1)), 50 + rank + i, dtype) for i in range(several)]
            bs = [b.t().contiguous().t() if columns else b for b in bs]
            for return_a in (True, False):
                got = torch.ops.symm_mem.fused_all_gather_matmul(a, bs, dim, name, return_A=return_a)
                want = torchs("fused_all_gather_matmul", a, bs, dim, name, return_A=return_a)
                expect_same(got, want, f"{dtype}, {shape}, {dim}, {columns}, {several}")
                count += 1  # one gather for all
            got = torch.ops.symm_mem.fused_matmul_reduce_scatter(a, bs[0], "sum", dim, name)
            along += dim == 1 and shape[0] > 1 and shape[1] > 4
            if a.shape[dim] % 4 == 0:
                expect_same(got, torchs("fused_matmul_reduce_scatter", a, bs[0], "sum", dim, name), f"{dtype}, {shape}")
    assert along > 0 and it.stats().copies[reason] - copies == along
    calls = extension.calls()
    assert calls["all_gather_matmul"] - calls_before["all_gather_matmul"] == count


def test_plain_operators(ranks):
    ranks.run(plain_operators)


def products(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """In float64; all inputs are integers and powers of two, so that nothing is rounded anywhere."""
    return (a.double() * a_scale.double()) @ (b.double() * b_scale.double())


def scaled_gather(dim: int, shape: tuple[int, ...], name: str, rank: int) -> None:
    every = [lying(integers(shape, r, torch.float32), dim).to(E4M3) for r in range(4)]
    b = integers((16, 32), 20 + rank, torch.float32).to(E4M3).t()
    rows = torch.arange(every[0].numel() // 32).reshape(*shape[:-1], 1)
    scales = [2.0 ** ((rows + r) % 3 - 1).float() for r in range(4)]
    columns = 2.0 ** (torch.arange(16) % 2).float().reshape(1, -1)
    whole = torch.cat([one.float() for one in every], dim)
    for a_scale, b_scale, all_scales in (
        (torch.tensor(0.5), torch.tensor(2.0), torch.tensor(0.5)),
        (scales[rank], columns, torch.cat(scales, dim)),
        (torch.cat(scales, dim), columns, torch.cat(scales, dim)),
    ):
        args = (every[rank], [b], a_scale, [b_scale], dim, name, [None], [None], [torch.bfloat16], [False])
        got = torch.ops.symm_mem.fused_all_gather_scaled_matmul(*args)
        expect_like_fakes("fused_all_gather_scaled_matmul", args, got)
        assert torch.equal(got[0].float(), whole)
        assert torch.equal(got[1][0].double(), products(whole, b, all_scales, b_scale)), (shape, a_scale.shape)


def scaled_scatter(shape: tuple[int, ...], name: str, rank: int) -> None:
    every = [integers(shape, r, torch.float32).to(E4M3) for r in range(4)]
    bs = [integers((16, 32), 20 + r, torch.float32).to(E4M3).t() for r in range(4)]
    rows = 2.0 ** (torch.arange(every[0].numel() // 32).reshape(*shape[:-1], 1) % 3 - 1).float()
    output = [*shape[:-1], 16]
    for a_scale, b_scale in ((torch.tensor(0.5), torch.tensor(2.0)), (rows, torch.full((1, 16), 2.0))):
        args = (every[rank], bs[rank], a_scale, b_scale, "sum", 0, 0, name, output, None, None, torch.bfloat16, False)
        got = torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(*args)
        expect_like_fakes("fused_scaled_matmul_reduce_scatter", args, got)
        want = sum(products(a, b, a_scale, b_scale) for a, b in zip(every, bs, strict=True)).chunk(4)[rank]
        assert torch.equal(got.double(), want), (shape, a_scale.shape)


def scaled_operators() -> None:
    """The 8-bit operators: one scale, scales by row that each rank has or all have."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    before = it.stats()
    with it.drop_in():
        for dim, shape in ((0, (16, 32)), (0, (8, 2, 32)), (1, (2, 8, 32))):
            scaled_gather(dim, shape, name, rank)
        for shape in ((16, 32), (8, 2, 32)):
            scaled_scatter(shape, name, rank)
    assert it.stats().fallbacks == before.fallbacks


def test_scaled_operators(ranks):
    ranks.run(scaled_operators)


def hands_back() -> dict[str, int]:
    """What Imbrex does not take comes out as torch's own; what lies otherwise is copied and counted."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    single = [group_of(r) for r in range(4)][rank].group_name
    before = it.stats()
    ops = torch.ops.symm_mem
    a, b = integers((8, 16), rank, torch.float32), integers((16, 8), 9 + rank, torch.float32)
    double = a.double(), b.double()
    with it.drop_in():
        for call, args, kwargs in (
            ("fused_all_gather_matmul", (*(double[0], [double[1]]), 0, name), {}),
            ("fused_all_gather_matmul", (a, [b], 0, single), {}),
            ("fused_matmul_reduce_scatter", (a, b, "avg", 0, name), {}),
        ):
            expect_same(getattr(ops, call)(*args, **kwargs), torchs(call, *args, **kwargs), f"{call}, {args[2:]}")
        turned = integers((16, 8), rank, torch.float32).t()
        expect_same(
            ops.fused_all_gather_matmul(turned, [b], 0, name),
            torchs("fused_all_gather_matmul", turned, [b], 0, name),
            "A by columns",
        )
    after = it.stats()
    assert after.copies.get("fused_all_gather_matmul: A is not row-major", 0) > before.copies.get(
        "fused_all_gather_matmul: A is not row-major", 0
    )
    return {key: count - before.fallbacks.get(key, 0) for key, count in after.fallbacks.items()}


def test_what_is_handed_back(ranks):
    for fallbacks in ranks.run(hands_back):
        for reason in (
            "fused_all_gather_matmul: dtype",
            "fused_all_gather_matmul: one rank",
            "fused_matmul_reduce_scatter: reduce_op avg",
        ):
            assert fallbacks.get(reason) == 1, fallbacks


def expect_refusals(name: str, good: dict[str, Any], cases: tuple[tuple[dict[str, Any], str], ...]) -> None:
    """What comes instead of the arguments that are taken, and by which reason torch's own operator runs."""
    taken = sys.modules[it.drop_in.__module__]._TAKEN[name]
    for changed, reason in cases:
        with pytest.raises(Refusal, match=f"^{re.escape(reason)}$"):
            taken(**{**good, **changed})


def scaled_operators_refuse() -> None:
    """What the 8-bit operators do not take. Torch has no kernel for 8-bit floats on the CPU that could answer."""
    name = group_of(0, 1, 2, 3).group_name
    a, b = torch.ones(16, 32).to(E4M3), torch.ones(8, 32).to(E4M3).t()
    one, rows, columns = torch.tensor(1.0), torch.ones(16, 1), torch.ones(1, 8)
    scatter = {"a": a, "b": b, "a_scale": one, "b_scale": one, "reduce_op": "sum", "orig_scatter_dim": 0}
    scatter |= {"scatter_dim_after_maybe_reshape": 0, "group_name": name, "output_shape": [16, 8]}
    expect_refusals(
        "fused_scaled_matmul_reduce_scatter",
        {**scatter, "out_dtype": torch.bfloat16},
        (
            ({"reduce_op": "avg"}, "reduce_op avg"),
            ({"bias": torch.ones(8).bfloat16()}, "bias"),
            ({"orig_scatter_dim": 1}, "another dimension than the first"),
            ({"scatter_dim_after_maybe_reshape": 1}, "another dimension than the first"),
            ({"b": b.contiguous()}, "B by rows"),
            ({"result_scale": one}, "result_scale"),
            ({"out_dtype": torch.float32}, "out_dtype"),
            ({"b_scale": one.double()}, "shape of B_scale"),
            ({"b_scale": torch.ones(3)}, "shape of B_scale"),
            ({"a_scale": one.double()}, "dtype of A_scale"),
            ({"b_scale": columns}, "scale of all A with scales of B's columns"),
            ({"a_scale": rows[:8], "b_scale": columns}, "shape of A_scale"),
            ({"a_scale": rows}, "one scale of all B"),
            ({"output_shape": [2, 8, 8]}, "dimension that does not divide by the ranks"),
        ),
    )
    gather = {"a": a, "bs": [b], "a_scale": one, "b_scales": [one], "gather_dim": 0, "group_name": name}
    gather |= {"biases": [None], "result_scales": [None], "use_fast_accum": [False]}
    no_b = {key: [] for key in ("bs", "b_scales", "result_scales", "out_dtypes")}
    expect_refusals(
        "fused_all_gather_scaled_matmul",
        {**gather, "out_dtypes": [torch.bfloat16]},
        (
            (no_b, "no B"),
            ({"bs": [b.contiguous()]}, "B by rows"),
            ({"result_scales": [one]}, "result_scale"),
            ({"out_dtypes": [torch.float32]}, "out_dtype"),
            ({"b_scales": [torch.ones(3)]}, "shape of B_scale"),
            ({"biases": [torch.ones(8)]}, "dtype of a bias"),
            ({"a_scale": one.double()}, "dtype of A_scale"),
            ({"b_scales": [columns]}, "scale of all A with scales of B's columns"),
            ({"a_scale": rows[:8]}, "shape of A_scale"),
            ({"a_scale": rows}, "one scale of all B"),
            ({"a": a[:2], "a_scale": rows[:2]}, "one scale of all B"),
        ),
    )


def test_scaled_operators_refuse(ranks):
    ranks.run(scaled_operators_refuse)


def restored() -> None:
    """The dispatcher's table is the same as before, and nesting counts."""
    import torch.distributed._symmetric_memory

    def tables() -> list[str]:
        return [torch._C._dispatch_dump_table(f"symm_mem::{name}") for name in NAMES]

    # The dump names the file of each kernel. Any folder above torch's may have the project's name.
    file = sys.modules[it.drop_in.__module__].__file__

    def own() -> bool:
        return f"registered at {file}:" in "".join(torch._C._dispatch_dump(f"symm_mem::{name}") for name in NAMES)

    before = tables()
    assert "CPU:" in before[0] or "CPU" in before[0]
    with it.drop_in():
        during = tables()
        assert during != before and own()
        with it.drop_in():
            pass
        assert tables() == during
    assert tables() == before and not own()
    it.drop_in()
    assert tables() != before
    it.drop_in(False)
    it.drop_in(False)
    assert tables() == before
    with pytest.raises(NotImplementedError):
        ones = torch.ones(4, 4, device="cpu")
        torch.ops.symm_mem.fused_matmul_reduce_scatter(ones, ones, "sum", 0, "0")


def test_restored(ranks):
    ranks.run(restored)


def apart() -> None:
    """Slices of wider tensors go in as they lie, and what lies in no rows is copied, both counted."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    x, w = integers((8, 40), rank, torch.float32)[:, 4:20], integers((16, 40), 5 + rank, torch.float32)[:, :16]
    dy = integers((8, 16), 30 + rank, torch.float32)
    with it.drop_in():
        before, fallbacks = it.stats().copies, it.stats().fallbacks
        for a, b in ((x, w), (x, w.contiguous()), (dy, w)):
            call, args = "fused_all_gather_matmul", (a, [b], 0, name)
            expect_same(getattr(torch.ops.symm_mem, call)(*args), torchs(call, *args), "apart")
        assert it.stats().copies == before and it.stats().fallbacks == fallbacks
        # By columns; one row again and again; planes with more between them than their rows have; planes that overlap.
        planes = integers((2, 6, 16), 40 + rank, torch.float32)
        for a, b in (
            (x.T, w[:8]),
            (x[:1].expand(8, 16), w),
            (planes[:, :4], w),
            (planes[:, :4, :8], w[:8]),
            (planes[0].as_strided((2, 4, 16), (16, 16, 1)), w),
        ):
            copies = sum(it.stats().copies.values())
            call, args = "fused_all_gather_matmul", (a, [b], 0, name)
            expect_same(getattr(torch.ops.symm_mem, call)(*args), torchs(call, *args), f"strides {a.stride()}")
            assert sum(it.stats().copies.values()) == copies + 1, a.stride()
        assert it.stats().fallbacks == fallbacks


def test_rows_that_lie_apart(ranks):
    ranks.run(apart)


def titan() -> None:
    """torchtitan's linear layers, argument for argument: forward, gradient of the input, gradient of the weight."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    ops = torch.ops.symm_mem
    x, w = integers((8, 16), rank, torch.bfloat16), integers((24, 16), 5, torch.bfloat16)
    dy = integers((32, 24), 7, torch.bfloat16)
    x_k = integers((8, 16), 40 + rank, torch.bfloat16)
    weights = integers((8, 24), 60, torch.bfloat16)
    for call, args in (
        ("fused_all_gather_matmul", (x, [w.T], 0, name)),
        ("fused_matmul_reduce_scatter", (dy, w, "sum", 0, name)),
        ("fused_all_gather_matmul", (x_k.T, [weights], 0, name)),
    ):
        with it.drop_in():
            got = getattr(ops, call)(*args)
        expect_same(got, torchs(call, *args), call)


def test_torchtitans_calls(ranks):
    ranks.run(titan)


def vllm() -> None:
    """vLLM's AsyncTP, argument for argument; its scales come for all rows."""
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    ops = torch.ops.symm_mem
    x, w = integers((16, 32), rank, torch.bfloat16), integers((24, 32), 5 + rank, torch.bfloat16).t()
    with it.drop_in():
        for call, args, kwargs in (
            ("fused_matmul_reduce_scatter", (x, w, "sum"), {"scatter_dim": 0, "group_name": name}),
            ("fused_all_gather_matmul", (x, [w]), {"gather_dim": 0, "group_name": name}),
        ):
            expect_same(getattr(ops, call)(*args, **kwargs), torchs(call, *args, **kwargs), call)
        every = [integers((16, 32), r, torch.float32).to(E4M3) for r in range(4)]
        weight = integers((24, 32), 5 + rank, torch.float32).to(E4M3).t()
        all_rows = 2.0 ** (torch.arange(64) % 3 - 1).float().reshape(-1, 1)
        columns = 2.0 ** (torch.arange(24) % 2).float().reshape(1, -1)
        _, (got,) = ops.fused_all_gather_scaled_matmul(
            every[rank],
            [weight],
            all_rows,
            [columns],
            gather_dim=0,
            biases=[None],
            result_scales=[None],
            out_dtypes=[torch.bfloat16],
            use_fast_accum=[False],
            group_name=name,
        )
        whole = torch.cat([one.float() for one in every])
        assert torch.equal(got.double(), products(whole, weight, all_rows, columns))


def test_vllms_calls(ranks):
    ranks.run(vllm)
