"""What torch.compile and torch.export see: schemas, fakes, and graphs that hold the operators."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import generator_of
from groups_for_tests import group_of
from problems import Problem, arguments, draw, inputs, integers
from test_operators import GEMMS
from torch._dynamo.testing import CompileCounter

import imbrex.torch as it
from imbrex.torch import extension


def checked() -> None:
    """torch.library.opcheck of every operator, functional and into an output."""
    group = group_of(0, 1, 2, 3)
    name = group.group_name
    tests = ("test_schema", "test_faketensor")
    ops = torch.ops.imbrex
    for op in GEMMS:
        p = Problem(op, 4, 16, 24, 32, "float32", True, 0, 0, False, False, 5)
        a, b, bias = inputs(p, dist.get_rank())
        torch.library.opcheck(getattr(ops, op), (a, b, name, 0, bias), test_utils=tests)
        out = getattr(ops, op)(a, b, name, 0, bias)
        torch.library.opcheck(getattr(ops, op + "_out"), (a, b, name, 0, bias), {"out": out}, test_utils=tests)
        torch.library.opcheck(getattr(ops, op + "_plain"), (a, b, name), test_utils=tests)
        torch.library.opcheck(getattr(ops, op + "_plain_out"), (a, b, name, out), test_utils=tests)
    x = torch.ones(4, 8)
    torch.library.opcheck(ops.all_reduce, (x, name), test_utils=tests)
    torch.library.opcheck(ops.all_reduce, (x, name, "int8", 0.5), test_utils=tests)
    torch.library.opcheck(ops.all_reduce_out, (x, name), {"out": torch.empty(4, 8)}, test_utils=tests)
    torch.library.opcheck(ops.all_reduce_rms_norm, (x, None, torch.ones(8), 1e-6, name), test_utils=tests)
    outputs = {"out": torch.empty(4, 8), "residual_out": torch.empty(4, 8)}
    torch.library.opcheck(ops.all_reduce_rms_norm_out, (x, x, torch.ones(8), 1e-6, name), outputs, test_utils=tests)


def test_opcheck(ranks):
    ranks.run(checked)


def fakes_are_like_results(begin: int, count: int) -> None:
    """Shape, stride and dtype of fakes, against those of the operators, of random problems on all four ranks."""
    from dataclasses import replace

    from torch._subclasses.fake_tensor import FakeTensorMode

    name = group_of(0, 1, 2, 3).group_name
    for seed in range(begin, begin + count):
        p = draw(seed, GEMMS)
        p = replace(p, ranks=4, rows=4 * p.rows, n=4 * p.n, k=4 * p.k, bias=False)
        if p.op in ("matmul_all_reduce", "matmul_all_to_all"):
            p = replace(p, dim=0, batch=0 if p.op == "matmul_all_to_all" else p.batch)
        a, b, _ = inputs(p, dist.get_rank())
        op = getattr(torch.ops.imbrex, p.op)
        dim = next(iter(arguments(p).values()), 0)
        real = op(a, b, name, dim)
        with FakeTensorMode() as mode:
            fake = op(mode.from_tensor(a), mode.from_tensor(b), name, dim)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype), (p, fake.stride())


def test_fakes(ranks):
    ranks.run(fakes_are_like_results, begin=7000, count=25)


def compiled() -> dict[str, int]:
    """A function of all operators, fullgraph, against the same without compilation."""
    group = group_of(0, 1, 2, 3)

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        h = it.all_gather_matmul(x, up, group)
        y = it.matmul_reduce_scatter(h.relu(), down, group)
        z, _ = it.all_reduce_rms_norm(y, None, weight, 1e-5, group)
        return it.matmul_all_reduce(z, down.reshape(z.shape[1], -1), group) + it.all_reduce(x, group).sum()

    generator = generator_of(dist.get_rank())
    x, up, down = (torch.randn(shape, generator=generator) for shape in ((4, 8), (8, 6), (6, 8)))
    weight = torch.ones(8)
    want = layer(x, up, down, weight)
    before = extension.calls()
    with torch.no_grad():
        got = torch.compile(layer, fullgraph=True)(x, up, down, weight)
    after = extension.calls()
    assert torch.allclose(got, want, atol=1e-5), (got - want).abs().max()
    return {op: after[op] - before[op] for op in after}


def lists_compiled() -> None:
    """Several B of one gather: fakes are like results, and a graph holds one operator for all."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    group = group_of(0, 1, 2, 3)
    op = torch.ops.imbrex.all_gather_matmuls.default
    for dim, keep in ((0, True), (1, False)):
        a = torch.ones((3, 2, 8) if dim == 0 else (2, 3, 8)).movedim(dim, 0).contiguous().movedim(0, dim)
        b, b1 = torch.ones(8, 4), torch.ones(8, 12)
        real = op(a, b, b1, None, group.group_name, dim, None, None, None, keep)
        with FakeTensorMode() as mode:
            of_mode = [mode.from_tensor(one) for one in (a, b, b1)]
            fake = op(*of_mode, None, group.group_name, dim, None, None, None, keep)
        for mine, theirs in zip(fake, real, strict=True):
            assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)

    def layer(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gathered, (first, second) = it.all_gather_matmul(x, [gate, up], group, return_gathered=True)
        return first.relu() * second, gathered

    x, gate, up = (torch.arange(float(m * n)).reshape(m, n) % 5 for m, n in ((4, 8), (8, 12), (8, 12)))
    with torch.no_grad():
        want = layer(x, gate, up)
        before = extension.calls()["all_gather_matmul"]
        got = torch.compile(layer, fullgraph=True)(x, gate, up)
    assert extension.calls()["all_gather_matmul"] == before + 1
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


def test_lists_compile(ranks):
    ranks.run(lists_compiled)


def test_compile_fullgraph(ranks):
    """One graph, in which each operator is called as often as in the function."""
    for calls in ranks.run(compiled):
        for op in (
            "all_gather_matmul",
            "matmul_reduce_scatter",
            "matmul_all_reduce",
            "all_reduce",
            "all_reduce_rms_norm",
        ):
            assert calls[op] == 1, calls


def numbers_of_a_group() -> None:
    """What is asked of a group, and what is counted, is no reason for a graph to break, or to be made anew."""
    group = group_of(0, 1, 2, 3)
    counter = CompileCounter()

    def layer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = it.matmul_reduce_scatter(a, b, group, codec="int8", tolerance=1e6)
        return y + it.matmul_reduce_scatter(a[:-1], b, group, pad=True)

    torch._dynamo.reset()
    run = torch.compile(layer, fullgraph=True, backend=counter)
    for seed in range(3):
        a, b = integers((8, 4), seed + dist.get_rank(), torch.float32), integers((4, 8), seed, torch.float32)
        assert torch.equal(run(a, b), layer(a, b))
    assert counter.frame_count == 1, counter.frame_count


def test_numbers_of_a_group(ranks):
    ranks.run(numbers_of_a_group)
