"""What one rank refuses fails on every rank within seconds, and the next call is right."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from torch import Tensor

import imbrex
import imbrex.torch as it
from imbrex._library import program

Call = Callable[[], Any]
SOON = 10.0  # seconds; the wait limit is 30


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


OPERATORS: tuple[Callable[[Tensor, Tensor, Any], Tensor], ...] = (
    it.matmul_all_reduce,
    it.matmul_reduce_scatter,
    it.all_gather_matmul,
    it.matmul_all_to_all,
    lambda a, b, group: it.all_reduce(a, group),
    lambda a, b, group: it.all_reduce_rms_norm(a, None, ones(16), 1e-6, group)[1],
)


def sums(group: Any, value: float, rows: int = 8) -> list[Tensor]:
    """Every operator's result, of which each element is known."""
    a, b = ones(rows, 16) * value, ones(16, 8)
    return [operator(a, b, group) for operator in OPERATORS]


def expect_right(group: Any, value: float) -> None:
    """The next calls are right."""
    ranks = dist.get_world_size(group)
    wanted = (16 * ranks, 16 * ranks, 16, 16, ranks, ranks)
    for number, (result, factor) in enumerate(zip(sums(group, value), wanted, strict=True)):
        assert torch.equal(result, torch.full_like(result, factor * value)), (number, result.flatten()[:4], factor)


def wrong_calls(group: Any) -> Iterator[tuple[str, Call]]:
    """What a rank may give wrongly, with a part of what it is told."""
    a, b, x, w = ones(8, 16), ones(16, 8), ones(8, 16), ones(16)
    for function in (it.matmul_all_reduce, it.matmul_reduce_scatter, it.all_gather_matmul, it.matmul_all_to_all):
        yield "dtype", lambda function=function: function(a.double(), b, group)
        yield "first", lambda function=function: function(a, ones(15, 8), group)
        yield "out", lambda function=function: function(a, b, group, out=ones(3, 3))
        yield "a is of type list", lambda function=function: function([1.0], b, group)
        yield "rows", lambda function=function: function(ones(0, 16), b, group)
    yield "gather_dim", lambda: it.all_gather_matmul(a, b, group, gather_dim=1)
    yield "scatter_dim", lambda: it.matmul_reduce_scatter(a, b, group, scatter_dim=5)
    yield "divide", lambda: it.matmul_reduce_scatter(ones(5, 16), b, group)
    yield "empty list", lambda: it.all_gather_matmul(a, [], group)
    yield "dtype", lambda: it.all_gather_matmul(a, [b, b.double()], group)
    yield "tolerance", lambda: it.matmul_all_reduce(a, b, group, codec="int8", tolerance=1.0, scale_a=w)
    yield "out", lambda: it.matmul_all_reduce(a, b, group, codec="int8", tolerance=1.0, out=ones(2, 2))
    yield "dtype", lambda: it.all_reduce(x.double(), group)
    yield "size", lambda: it.all_reduce(ones(0, 16), group)
    yield "codec", lambda: it.all_reduce(x, group, codec="int99")
    yield "weight", lambda: it.all_reduce_rms_norm(x, None, ones(15), 1e-6, group)
    yield "residual", lambda: it.all_reduce_rms_norm(x, ones(2, 2), w, 1e-6, group)
    yield "gradient", lambda: it.all_reduce(x, group, out=ones(8, 16).requires_grad_())


def told(call: Call, group: Any) -> str:
    """What the call was refused for, at once or where the GPU has come to it; nothing where it went well."""
    begin = time.monotonic()
    try:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            it.check(group)
    except imbrex.InvalidInput as error:
        assert time.monotonic() - begin < SOON, error
        return str(error)
    return ""


def refused_where_all_places_are_taken() -> None:
    """Rank 1 refuses to make an object, where as many are kept as may be, and the others call one that is there."""
    group = group_of(0, 1, 2, 3)
    for cols in range(1, 71):
        it.matmul_all_reduce(ones(8, 16), ones(16, cols), group)
    x, last, bad = ones(8, 16), ones(16, 70), dist.get_rank() == 1
    text = told(lambda: it.all_reduce(x, group, codec="int99") if bad else it.matmul_all_reduce(x, last, group), group)
    assert "int99" in text or "rank 1" in text, text
    expect_right(group, 2)


def sizes_that_differ() -> None:
    """Calls of one object whose sizes differ: the first rank says which is right, and all are told."""
    group = group_of(0, 1, 2, 3)
    calls = {
        "elements": lambda n: it.all_reduce(ones(20 * n), group),
        "rows": lambda n: it.all_reduce_rms_norm(ones(n, 16), None, ones(16), 1e-6, group),
    }
    for what, call in calls.items():
        call(8)  # up to 160 elements and 8 rows
        for odd in range(4):
            text = told(lambda call=call, odd=odd: call(7 if dist.get_rank() == odd else 8), group)
            assert what in text and "it must be the same on every rank" in text, text
            expect_right(group, 2)


def test_sizes_that_differ(ranks):
    ranks.run(sizes_that_differ)


def weights_that_differ() -> None:
    """A norm's weight has one dtype on all ranks, whether the operators were made before or are made now."""
    group = group_of(0, 1, 2, 3)
    x = ones(8, 16, dtype=torch.bfloat16)  # with an eps that no other test has
    dtypes = (torch.bfloat16, torch.float32)
    for are_made in (False, True):
        for dtype in dtypes if are_made else ():
            it.all_reduce_rms_norm(x, None, ones(16, dtype=dtype), 3e-5, group)
        weight = ones(16, dtype=dtypes[dist.get_rank() == 1])
        text = told(lambda weight=weight: it.all_reduce_rms_norm(x, None, weight, 3e-5, group), group)
        assert ("the ranks' calls differ" if are_made else "rank 1 asks for weight_type = fp32") in text, text
        expect_right(group, 2)


def test_weights_that_differ(ranks):
    ranks.run(weights_that_differ)


def mixed_up(seed: int, steps: int) -> None:
    """Ranks now and then call another operator than the others, or one of another size: all are told, at once."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    draw = random.Random(seed)
    for step in range(steps):
        usual = (draw.randrange(len(OPERATORS)), draw.randint(1, 8))
        calls = [usual] * 4
        if draw.random() < 0.4:
            other = (draw.randrange(len(OPERATORS)), draw.randint(1, 8))
            calls = [other if draw.random() < 0.5 else usual for _ in range(4)]
        which, rows = calls[rank]
        a, b = ones(4 * rows, 16), ones(16, 8)
        text = told(lambda which=which, a=a, b=b: OPERATORS[which](a, b, group), group)
        assert (text == "") == (len(set(calls)) == 1), (seed, step, calls, text)
        if text:
            expect_right(group, 2)


def test_ranks_that_mix_up_calls(ranks):
    ranks.run(mixed_up, seed=int(os.environ.get("IMBREX_TEST_SEED", "1")), steps=30)


def test_refused_where_all_places_are_taken(ranks):
    ranks.run(refused_where_all_places_are_taken)


def one_rank_refuses(first_call: bool) -> None:
    """Rank 1 of each kind of group, whether or not the others' call has been made before."""
    rank = dist.get_rank()
    for members in ((0, 1), (0, 1, 2, 3)):
        group = dist.new_group(list(members)) if first_call else group_of(*members)
        if rank not in members:
            continue
        if not first_call:
            expect_right(group, 1)
        for number, (part, wrong) in enumerate(wrong_calls(group)):
            first, second = calls_of(group, number, first_call)
            text = told(wrong if rank == 1 else first, group)
            assert part in text if rank == 1 else "rank 1 refused" in text or "rank 1:" in text, (number, part, text)
            assert told(second, group) == ""
        expect_right(group, 3)


def calls_of(group: Any, number: int, first_call: bool) -> list[Call]:
    """The calls of one step, the same on every rank."""
    rows = 8 + (4 * number if first_call else 0)
    a, b = ones(rows, 16), ones(16, 8)
    return [lambda: it.matmul_all_reduce(a, b, group), lambda: it.all_reduce(a, group)]


@pytest.mark.parametrize("first_call", [False, True])
def test_one_rank_refuses(ranks, first_call):
    ranks.run(one_rank_refuses, first_call=first_call)


def all_ranks_refuse() -> None:
    group = group_of(0, 1, 2, 3)
    for part, wrong in wrong_calls(group):
        if part not in ("rows", "size"):
            assert part in told(wrong, group), part
    expect_right(group, 2)


def test_all_ranks_refuse(ranks):
    ranks.run(all_ranks_refuse)


def no_rows() -> None:
    """Legal where no rank has rows, in every operator, with gradients and lists too."""
    group = group_of(0, 1, 2, 3)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = ones(0, 16, dtype=dtype), ones(16, 8, dtype=dtype)
        for function in (it.matmul_all_reduce, it.matmul_reduce_scatter, it.all_gather_matmul, it.matmul_all_to_all):
            assert function(a, b, group).shape == (0, 8)
            out = ones(0, 8, dtype=dtype)
            assert function(a, b, group, out=out) is out
        assert it.matmul_reduce_scatter(ones(0, 4, 16, dtype=dtype), b, group).shape == (0, 4, 8)
        assert [one.shape for one in it.all_gather_matmul(a, [b, b], group)] == [(0, 8), (0, 8)]
        assert it.all_reduce(ones(0, 3, dtype=dtype), group).shape == (0, 3)
        y, s = it.all_reduce_rms_norm(a, None, ones(16, dtype=dtype), 1e-6, group)
        assert y.shape == s.shape == (0, 16)
    weight = ones(16, 8).requires_grad_()
    it.matmul_all_reduce(ones(0, 16), weight, group).sum().backward()
    assert torch.equal(weight.grad, torch.zeros(16, 8))
    expect_right(group, 3)


def test_no_rows(ranks):
    ranks.run(no_rows)


def forked_children() -> None:
    """A child of a rank's process is no rank: its call is refused, and counts for nothing."""
    group = group_of(0, 1, 2, 3)
    expect_right(group, 1)
    child = os.fork()
    if child == 0:
        text = ""
        try:
            it.matmul_all_reduce(ones(8, 16), ones(16, 8), group)
        except imbrex.InvalidInput as error:
            text = str(error)
        os._exit(0 if "is no rank" in text else 1)
    assert os.waitpid(child, 0)[1] == 0
    expect_right(group, 2)


@pytest.mark.skipif(DEVICE == "cuda", reason="a forked child has no CUDA")
def test_forked_children(ranks):
    ranks.run(forked_children)


ARRAYS = """
import time, numpy as np, imbrex
world = imbrex.World.from_environment()
r, R = world.rank, world.size
ones = lambda *shape, of=1, dtype=np.float32: np.full(shape, of, dtype)
products = imbrex.matmul_all_reduce, imbrex.matmul_reduce_scatter, imbrex.all_gather_matmul, imbrex.matmul_all_to_all
a, b, wide = ones(8, 16), ones(16, 4), ones(8, 16, dtype=np.float64)

def sums(of):
    a, tall = ones(8, 16, of=of), ones(4 * R, 16, of=of)
    return [imbrex.matmul_all_reduce(a, b, world), imbrex.matmul_reduce_scatter(tall, b, world),
            imbrex.all_gather_matmul(a, b, world), imbrex.matmul_all_to_all(tall, b, world),
            imbrex.all_reduce(a, world), imbrex.all_reduce_rms_norm(a, None, ones(16), world)[1]]

wrong = [lambda f=f, one=one, other=other: f(one, other, world) for f in products
         for one, other in ((wide, b), (a, ones(15, 4)), (ones(0, 16), b), ([1], b))]
wrong += [
    lambda: imbrex.all_reduce(ones(8, dtype=np.int64), world),
    lambda: imbrex.all_reduce(ones(0, 3), world),
    lambda: imbrex.all_reduce(ones(8), world, codec=8),
    lambda: imbrex.all_reduce_rms_norm(a, None, ones(15), world),
    lambda: imbrex.matmul_all_reduce_packed(a, ones(15, 4), world),
    lambda: imbrex.matmul_all_reduce(a, b, world, codec="int8", tolerance=1., out=ones(3)),
    lambda: imbrex.matmul_reduce_scatter(a, b, world, out=ones(8, 4)[:, ::-1])]
for turn in range(2):
    for i, call in enumerate(wrong):
        begin = time.monotonic()
        try:
            call() if r == R - 1 else imbrex.all_reduce(ones(8, 3 + i), world)
        except Exception as error:
            assert r == R - 1 or (isinstance(error, imbrex.InvalidInput) and f"rank {R - 1}" in str(error)), error
        else:
            raise AssertionError(f"rank {r}: call {i} went well")
        assert time.monotonic() - begin < 10
        if i % 4: continue
        for y, of in zip(sums(i + 1), (16 * R, 16 * R, 16, 16, R, R), strict=True):
            assert (y == of * (i + 1)).all(), (i, y.flat[0], of)
for f in products:
    assert f(ones(0, 16), b, world).shape == (0, 4)
assert imbrex.all_reduce(ones(0, 16), world).shape == (0, 16)
print("rank", r, "is right")
"""


@pytest.mark.parametrize("count", (2, 3))
def test_of_arrays(tmp_path: Path, count: int) -> None:
    """NumPy's front."""
    script = tmp_path / "script.py"
    script.write_text(ARRAYS)
    command = [str(program()), "launch", "-n", str(count), "--", sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout.count("is right") == count, run.stderr + run.stdout
