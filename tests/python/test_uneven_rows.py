"""Rows that are not as many on every rank: rows= of the gather and of the scatter."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import integers
from test_any_m import told as told_in_graph
from test_refusals import SOON, told
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import imbrex
import imbrex.torch as it

SEED = int(os.environ.get("IMBREX_TEST_SEED", "1"))
# Zeros at the beginning, in the middle and at the end, all but one, and all; also rows that are as many, and one more.
LISTS = {
    2: [[0, 5], [5, 0], [3, 4], [0, 0], [4, 4], [1, 9]],
    3: [[0, 2, 5], [2, 0, 5], [2, 5, 0], [0, 0, 7], [7, 0, 0], [0, 0, 0], [3, 3, 3], [3, 3, 2]],
    4: [[0, 1, 2, 3], [4, 0, 0, 1], [1, 2, 3, 0], [0, 0, 6, 0], [0, 0, 0, 0], [2, 2, 2, 2], [5, 5, 5, 1], [1, 1, 1, 6]],
}
K, N = 16, 24
WAY_OUT = "rows=[...] takes rows"


def lead(rows: int, batch: int, dim: int) -> tuple[int, ...]:
    """Dimensions before the last: rows, which ranks share, and a batch where there is one."""
    return (rows,) if not batch else (rows, batch) if dim == 0 else (batch, rows)


def parts(rows: list[int], batch: int, dim: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Each rank's A of a gather."""
    return [integers((*lead(own, batch, dim), K), seed * 64 + rank, dtype) for rank, own in enumerate(rows)]


def wholes(rows: list[int], batch: int, dim: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Each rank's A of a scatter."""
    return [integers((*lead(sum(rows), batch, dim), K), seed * 64 + rank, dtype) for rank in range(len(rows))]


def factors(ranks: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Each rank's B."""
    return [integers((K, N), seed * 64 + 32 + rank, dtype) for rank in range(ranks)]


def scattered(whole: Tensor, rows: list[int], rank: int, dim: int) -> Tensor:
    """A rank's rows of them."""
    return whole.narrow(dim, sum(rows[:rank]), rows[rank])


def expect_gather(rows: list[int], group: Any, batch: int, dim: int, seed: int, dtype: torch.dtype) -> None:
    """One product, several, with the gathered A, with a bias, and into outputs."""
    rank, what = dist.get_rank(group), (rows, batch, dim, seed, dtype)
    given = parts(rows, batch, dim, seed, dtype)
    a, gathered = given[rank], torch.cat(given, dim)
    bs = [integers((K, N), seed * 64 + 40 + i + 8 * rank, dtype) for i in range(4)]
    bias = torch.full((N,), 3.0, dtype=dtype, device=DEVICE)
    wanted = [(gathered.float() @ b.float()).to(dtype) for b in bs]
    options: dict[str, Any] = {"gather_dim": dim, "rows": rows}

    assert torch.equal(it.all_gather_matmul(a, bs[0], group, **options), wanted[0]), what
    got = it.all_gather_matmul(a, bs[0].t().contiguous().t(), group, bias=bias, **options)
    assert torch.equal(got, wanted[0] + bias), what
    whole, got = it.all_gather_matmul(a, bs[0], group, return_gathered=True, **options)
    assert torch.equal(whole, gathered) and torch.equal(got, wanted[0]), what
    for count in (1, 3, 4):
        found = it.all_gather_matmul(a, bs[:count], group, **options)
        assert all(map(torch.equal, found, wanted)) and len(found) == count, (what, count)
    whole, found = it.all_gather_matmul(
        a, [bs[0], bs[1].t().contiguous().t()], group, bias=[None, bias], return_gathered=True, **options
    )
    assert torch.equal(whole, gathered) and torch.equal(found[0], wanted[0]), what
    assert torch.equal(found[1], wanted[1] + bias), what
    outs = [torch.empty(wanted[0].shape, dtype=dtype, device=DEVICE) for _ in range(3)]
    assert it.all_gather_matmul(a, bs[0], group, out=outs[0], **options) is outs[0]
    it.all_gather_matmul(a, bs[:2], group, out=outs[1:], **options)
    assert all(map(torch.equal, outs, (wanted[0], wanted[0], wanted[1]))), what


def expect_scatter(rows: list[int], group: Any, batch: int, dim: int, seed: int, dtype: torch.dtype) -> None:
    """Without and with a bias, rows that lie apart, an output."""
    ranks, rank, what = len(rows), dist.get_rank(group), (rows, batch, dim, seed, dtype)
    given, bs = wholes(rows, batch, dim, seed, dtype), factors(ranks, seed, dtype)
    products = [a.float() @ b.float() for a, b in zip(given, bs, strict=True)]
    want = scattered(sum(products[1:], products[0]), rows, rank, dim).to(dtype)
    bias = torch.full((N,), 3.0, dtype=dtype, device=DEVICE)
    options: dict[str, Any] = {"scatter_dim": dim, "rows": rows}

    assert torch.equal(it.matmul_reduce_scatter(given[rank], bs[rank], group, **options), want), what
    wide = torch.cat([given[rank], given[rank]], -1)[..., :K]
    got = it.matmul_reduce_scatter(wide if batch == 0 else given[rank], bs[rank], group, bias=bias, **options)
    assert torch.equal(got, want + bias), what
    out = torch.empty(want.shape, dtype=dtype, device=DEVICE)
    assert it.matmul_reduce_scatter(given[rank], bs[rank], group, out=out, **options) is out
    assert torch.equal(out, want), what


def every_list(ranks: int) -> None:
    """All lists of this many ranks."""
    group = group_of(*range(ranks))
    if dist.get_rank() >= ranks:
        return
    for seed, rows in enumerate(LISTS[ranks]):
        for batch, dim in ((0, 0), (2, 0), (3, 1)):
            for expect in (expect_gather, expect_scatter):
                expect(rows, group, batch, dim, seed, torch.float32)


@pytest.mark.parametrize("count", (2, 3, 4))
def test_every_list(ranks, count):
    """Each element, where zeros are anywhere."""
    ranks.run(every_list, ranks=count)


def random_lists(seed: int) -> None:
    """Counts at random, among them zeros, in all types."""
    draw = random.Random(seed)
    for number in range(12):
        ranks = draw.choice((2, 3, 4))
        rows = [draw.choice((0, draw.randint(1, 40))) for _ in range(ranks)]
        batch, dtype = draw.choice((0, 0, 2)), draw.choice((torch.float32, torch.bfloat16, torch.float16))
        dim = draw.choice((0, 1)) if batch else 0
        group = group_of(*range(ranks))
        if dist.get_rank() < ranks:
            expect_gather(rows, group, batch, dim, seed * 100 + number, dtype)
            expect_scatter(rows, group, batch, dim, seed * 100 + number, dtype)


def test_random_lists(ranks):
    """As test_every_list."""
    print(f"IMBREX_TEST_SEED={SEED}")
    ranks.run(random_lists, seed=SEED)


def gradients() -> None:
    """Torch's autograd has those of A, B and bias, of its own product over all rows."""
    for ranks, lists in LISTS.items():
        group, rank = group_of(*range(ranks)), dist.get_rank()
        if rank >= ranks:
            continue
        for seed, rows in enumerate(lists):
            for dim in (0, 1):
                expect_gradients(rows, group, rank, dim, seed)


def leaves(*given: Tensor) -> list[Tensor]:
    """Copies that get gradients."""
    return [one.detach().clone().requires_grad_() for one in given]


def expect_gradients(rows: list[int], group: Any, rank: int, dim: int, seed: int) -> None:
    """Those of one list."""
    what, ranks = (rows, dim), len(rows)
    given, bs = parts(rows, 2, dim, seed, torch.float32), factors(ranks, seed, torch.float32)
    slopes = [integers((*lead(sum(rows), 2, dim), N), seed * 64 + 50 + r, torch.float32) for r in range(ranks)]
    more = integers((*lead(sum(rows), 2, dim), K), seed * 64 + 60 + rank, torch.float32)
    bias = torch.ones(N, device=DEVICE)

    # Each rank's loss weighs its own columns of the product; the gradient of A sums those of all ranks.
    models = [leaves(*given, b, bias) for b in bs]
    for r, (*shards, b, c) in enumerate(models):
        ((torch.cat(shards, dim) @ b + c) * slopes[r]).sum().backward()
    wanted_a = sum(model[rank].grad for model in models)
    for keep in (False, True):
        a, b, c = leaves(given[rank], bs[rank], bias)
        found = it.all_gather_matmul(a, b, group, gather_dim=dim, bias=c, rows=rows, return_gathered=keep)
        loss = ((found[1] if keep else found) * slopes[rank]).sum()
        if keep:
            loss = loss + (found[0] * more).sum()
        loss.backward()
        extra = sum(
            scattered(integers(tuple(more.shape), seed * 64 + 60 + r, torch.float32), rows, rank, dim)
            for r in range(ranks)
        )
        assert torch.equal(a.grad, wanted_a + extra if keep else wanted_a), (what, keep)
        assert torch.equal(b.grad, models[rank][-2].grad) and torch.equal(c.grad, models[rank][-1].grad), (what, keep)
    several = leaves(given[rank], bs[rank], bs[rank])
    for y in it.all_gather_matmul(several[0], several[1:], group, gather_dim=dim, rows=rows):
        (y * slopes[rank]).sum().backward(retain_graph=True)
    assert torch.equal(several[1].grad, several[2].grad) and torch.equal(several[1].grad, models[rank][-2].grad), what
    assert torch.equal(several[0].grad, 2 * wanted_a), what

    given = wholes(rows, 2, dim, seed, torch.float32)
    model = leaves(*given, *bs, bias)
    total = sum(x @ b for x, b in zip(model[:ranks], model[ranks:-1], strict=True)) + model[-1]
    (total * slopes[0]).sum().backward()
    for needed in ((0, 1, 2), (0,), (1,), (2,)):
        mine = [given[rank], bs[rank], bias]
        for i in needed:
            (mine[i],) = leaves(mine[i])
        y = it.matmul_reduce_scatter(mine[0], mine[1], group, scatter_dim=dim, bias=mine[2], rows=rows)
        (y * scattered(slopes[0], rows, rank, dim)).sum().backward()
        for i, at in ((0, rank), (1, ranks + rank), (2, -1)):
            assert i not in needed or torch.equal(mine[i].grad, model[at].grad), (what, needed, i)


def test_gradients(ranks):
    """The backward pass of the gather is the scatter of the same rows, and the other way."""
    ranks.run(gradients)


def options() -> None:
    """Scales, codecs, autocast, tangents, layers, and counts of copies."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    rows = [1, 0, 5, 2]
    bs = factors(4, 7, torch.float32)
    given, whole = parts(rows, 0, 0, 7, torch.float32), wholes(rows, 0, 0, 7, torch.float32)
    a, b = given[rank], bs[rank]
    gathered = torch.cat(given)
    summed = sum(x @ y for x, y in zip(whole[1:], bs[1:], strict=True)) + whole[0] @ bs[0]

    # Scales of a tensor, and of each row, of which a rank's only one looks like the former.
    eight, columns = torch.float8_e4m3fn, b.to(torch.float8_e4m3fn).t().contiguous().t()
    scale, scale_b = torch.tensor(2.0, device=DEVICE), torch.full((1, N), 0.5, device=DEVICE)
    of_rows = [torch.full((own, 1), 2.0 ** (r + 1), device=DEVICE) for r, own in enumerate(rows)]
    for scale_a, factor in ((scale, 2.0), (scale[None, None], 2.0), (of_rows[rank], torch.cat(of_rows))):
        for own_b in (scale_b, scale_b[:, :1]) if scale_a is not scale else (scale_b[0, 0],):
            got = it.all_gather_matmul(
                a.to(eight), columns, group, scale_a=scale_a, scale_b=own_b, rows=rows, return_gathered=True
            )
            assert torch.equal(got[0].float(), gathered)
            assert torch.equal(got[1], (gathered @ b * factor * 0.5).bfloat16())
    own_scales = torch.cat(of_rows)
    got = it.matmul_reduce_scatter(
        whole[rank].to(eight), columns, group, scale_a=own_scales, scale_b=scale_b, rows=rows
    )
    assert torch.equal(got, scattered(summed * own_scales * 0.5, rows, rank, 0).bfloat16())

    # Integers below the largest code travel exactly.
    small = torch.full_like(whole[rank], 1.0)
    for tolerance in (None, 1e9):
        got = it.matmul_reduce_scatter(small, torch.ones_like(b), group, rows=rows, codec="int8", tolerance=tolerance)
        assert got.shape == (rows[rank], N) and torch.allclose(got, torch.full_like(got, 4.0 * K), rtol=0.02)

    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert it.all_gather_matmul(a, b, group, rows=rows).dtype == torch.bfloat16
    value, slope = torch.func.jvp(lambda x, y: it.all_gather_matmul(x, y, group, rows=rows), (a, b), (a, b))
    assert torch.equal(value, gathered @ b) and torch.equal(slope, 2 * (gathered @ b))
    value, slope = torch.func.jvp(
        lambda x, y: it.matmul_reduce_scatter(x, y, group, rows=rows), (whole[rank], b), (whole[rank], b)
    )
    assert torch.equal(value, scattered(summed, rows, rank, 0)) and torch.equal(slope, 2 * value)

    made = {"sequence_parallel": True, "device": DEVICE}
    up, down = it.nn.ColumnParallelLinear(K, 4 * N, group, **made), it.nn.RowParallelLinear(4 * N, K, group, **made)
    with torch.no_grad():
        up.weight.copy_(b.t())
        down.weight.fill_(1.0)
    y = up(a, rows=rows)
    assert torch.equal(y, gathered @ b)
    row_sums = sum((gathered @ one).sum(1, keepdim=True) for one in bs)
    assert torch.equal(down(y, rows=rows), scattered(row_sums.expand(-1, K), rows, rank, 0))
    whole_input = it.nn.ColumnParallelLinear(K, 4 * N, group, device=DEVICE)
    for layer in (whole_input, it.nn.RowParallelLinear(4 * N, K, group, device=DEVICE)):
        with pytest.raises(imbrex.InvalidInput, match="this layer has no sequence_parallel"):
            layer(y, rows=rows)

    counts = it.stats().copies
    for call, key, padded in (
        (lambda r: it.all_gather_matmul(a, b, group, rows=r), "all_gather_matmul: rows are padded", rows[rank] < 5),
        (
            lambda r: it.matmul_reduce_scatter(whole[rank], b, group, rows=r),
            "matmul_reduce_scatter: rows are padded",
            1,
        ),
    ):
        call(rows)
        assert it.stats().copies.get(key, 0) - counts.get(key, 0) == int(padded), key
    even = it.stats().copies
    it.matmul_reduce_scatter(whole[rank], b, group, rows=[2, 2, 2, 2])
    it.all_gather_matmul(whole[rank][:2], b, group, rows=[2, 2, 2, 2])
    assert it.stats().copies == even


def test_options(ranks):
    """What goes with rows."""
    ranks.run(options)


def compiled(backend: str, lists: list[list[int]]) -> None:
    """Whole graphs, of sizes that are open, forward and backward."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    bs = factors(4, 3, torch.float32)

    def step(a: Tensor, b: Tensor, rows: list[int]) -> Tensor:
        gathered, (y, z) = it.all_gather_matmul(a * 2, [b, b], group, rows=rows, return_gathered=True)
        once = it.all_gather_matmul(a, b, group, rows=rows)
        part = it.matmul_reduce_scatter(gathered, b, group, rows=rows)
        return part.sum() + (y + z - once).sum()

    counter = CompileCounterWithBackend(backend)
    graph = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    for seed, rows in enumerate(lists):
        given = parts(rows, 0, 0, seed, torch.float32)[rank]
        eager, mine = leaves(given, bs[rank]), leaves(given, bs[rank])
        want, got = step(*eager, rows), graph(*mine, rows)
        assert torch.equal(got, want), rows
        want.backward()
        got.backward()
        assert all(torch.equal(x.grad, y.grad) for x, y in zip(mine, eager, strict=True)), rows
        # Numbers of 0 and 1 are no open sizes.
        assert counter.frame_count == 1 or min(rows) < 2, rows
    a = parts([3, 2, 5, 4], 0, 0, 0, torch.float32)[rank]
    wrong = [3, 2, 5, 4] if rank else [3, 2, 5, 3]
    # One call: of several, ranks that leave them at an error may have made one more.
    gather = torch.compile(
        lambda a, b, rows: it.all_gather_matmul(a, b, group, rows=rows), backend=backend, fullgraph=True
    )
    with torch.no_grad():
        text = told_in_graph(lambda: gather(a, bs[rank], wrong), group)
        assert "rows = [3, 2, 5, 4]" in text and "rows = [3, 2, 5, 3]" in text, text
        assert torch.equal(graph(a, bs[rank], [3, 2, 5, 4]), step(a, bs[rank], [3, 2, 5, 4]))


@pytest.mark.parametrize(
    ("backend", "lists"),
    (
        ("inductor", [[3, 2, 5, 4], [0, 2, 4, 0]]),
        ("aot_eager", [[3, 2, 5, 4], [2, 7, 3, 6], [0, 0, 0, 0], [1, 0, 0, 1]]),
    ),
)
def test_compiled(ranks, backend, lists):
    """Gathers and scatters in one graph: in one order, too, where ranks' sizes are far apart."""
    ranks.run(compiled, backend=backend, lists=lists)


def wrong_calls(group: Any, rank: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What every rank is told, and a call that is wrong on rank 1 alone, or of which lists differ."""
    a, whole, b = torch.ones(3, K), torch.ones(12, K), torch.ones(K, N)
    right = [3, 3, 3, 3]
    lists: list[tuple[str, Any]] = [
        ("rows has 3 numbers: it must have one for each of the 4 ranks", [3, 3, 6]),
        ("rows[1] = -3: it must be 0 or more", [3, -3, 6, 6]),
        ("rows[0] is of type bool: it must be an integer", [True, 3, 3, 3]),
        ("rows[2] is of type float: it must be an integer", [3, 3, 3.0, 3]),
        ("rows[3] is of type Tensor: it must be an integer", [3, 3, 3, torch.tensor(3)]),
        ("rows is of type Tensor: it must be a list", torch.tensor(right)),
        ("rows is of type int: it must be a list", 3),
        ("rows is of type str: it must be a list", "3333"),
    ]
    for text, rows in lists:
        given = rows if rank == 1 else right
        yield text, lambda given=given: it.all_gather_matmul(a, b, group, rows=given)
        yield text, lambda given=given: it.matmul_reduce_scatter(whole, b, group, rows=given)
    own = torch.ones(2 if rank == 1 else 3, K)
    text = "with a of 2 x 16: its dimension 0 must have this rank's rows, 3"
    yield text, lambda: it.all_gather_matmul(own, b, group, rows=right)
    text = "with a of 2 x 16: its dimension 0 must have all ranks' rows, 12"
    yield text, lambda: it.matmul_reduce_scatter(own if rank == 1 else whole, b, group, rows=right)
    # Lists of the same largest number, of another one, of none, none at all; each is right for its rank's tensors.
    for other in ([2, 3, 3, 4], [4, 3, 3, 2], [3, 3, 1, 5], [0, 3, 0, 9]):
        for first in (right, [3, 3, 4, 2]):
            rows = other if rank == 1 else first
            mine = torch.ones(rows[rank], K)
            text = f"rows = {other}"
            yield text, lambda rows=rows: it.matmul_reduce_scatter(whole, b, group, rows=rows)
            yield text, lambda rows=rows, mine=mine: it.all_gather_matmul(mine, b, group, rows=rows)
            yield text, lambda rows=rows, mine=mine: it.all_gather_matmul(mine, [b] * 4, group, rows=rows)
            yield (
                text,
                lambda rows=rows, mine=mine: it.all_gather_matmul(mine, b, group, rows=rows, return_gathered=True),
            )
    yield "rows = [3, 3, 3, 3]", lambda: it.all_gather_matmul(a, b, group, rows=None if rank == 1 else right)
    none = [0, 0, 0, 0] if rank == 1 else right
    yield (
        "rows = [0, 0, 0, 0]",
        lambda: it.all_gather_matmul(torch.ones(0, K) if rank == 1 else a, b, group, rows=none),
    )
    yield "pad and rows", lambda: it.matmul_reduce_scatter(whole, b, group, pad=rank == 1, rows=right)
    yield "rows = [1, 2, 3, 4]: it must be None", lambda: it.matmul_all_to_all(whole, b, group, rows=[1, 2, 3, 4])
    yield (
        "out is",
        lambda: it.all_gather_matmul(a, b, group, rows=right, out=torch.ones(11 if rank == 1 else 12, N)),
    )
    # Without rows, what is uneven is refused, and the way out named.
    yield WAY_OUT, lambda: it.all_gather_matmul(torch.ones(2 if rank == 1 else 3, K), b, group)
    yield WAY_OUT, lambda: it.all_gather_matmul(torch.ones(0 if rank == 1 else 3, K), b, group)
    yield WAY_OUT, lambda: it.matmul_reduce_scatter(torch.ones(8 if rank == 1 else 12, K), b, group)
    yield WAY_OUT, lambda: it.matmul_reduce_scatter(torch.ones(200 if rank == 1 else 12, K), b, group)
    bias = torch.ones(N)
    yield WAY_OUT, lambda: it.matmul_reduce_scatter(torch.ones(8 if rank == 1 else 12, K), b, group, bias=bias)
    yield WAY_OUT, lambda: it.all_gather_matmul(torch.ones(2 if rank == 1 else 3, K), [b, b], group)


def refused() -> None:
    """Each on every rank, soon, and the next call is right."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    took: list[float] = []
    for text, call in wrong_calls(group, rank):
        begin = time.monotonic()
        found = told(call, group)
        seconds = time.monotonic() - begin
        # A rank that is told later has the words of the rank that refused, which the way out follows.
        is_told = text in found or (DEVICE == "cuda" and text == WAY_OUT and " M = " in found)
        assert is_told, (text, found)
        assert seconds < SOON, (text, seconds)
        took.append(seconds)
        rows = [0, 2, 1, 0]
        y = it.all_gather_matmul(torch.ones(rows[rank], K), torch.ones(K, N), group, rows=rows)
        assert torch.equal(y, torch.full((3, N), float(K))), text
        y = it.matmul_reduce_scatter(torch.ones(3, K), torch.ones(K, N), group, rows=rows)
        assert torch.equal(y, torch.full((rows[rank], N), 4.0 * K)), text
    assert statistics.median(took) < 1, took  # one of them may wait for a core of a busy machine


def test_refused(ranks):
    """Wrong lists, wrong tensors, and lists that differ."""
    ranks.run(refused)


def checked() -> None:
    """torch.library.opcheck of what graphs hold."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    tests, ops, rows = ("test_schema", "test_faketensor"), torch.ops.imbrex, [0, 3, 1, 5]
    name = group.group_name
    for batch, dim in ((0, 0), (2, 1)):
        a, whole = parts(rows, batch, dim, 1, torch.float32)[rank], wholes(rows, batch, dim, 1, torch.float32)[rank]
        b = integers((K, N), rank, torch.float32)
        for count, keep in ((1, False), (2, True), (0, True)):
            given = (a, [b] * count, name, rows, dim, [None] * count, None, [None] * count, keep)
            torch.library.opcheck(ops.all_gather_matmul_rows, given, test_utils=tests)
        given = (whole, b, name, rows, rank, dim, None, None, None, None, None)
        torch.library.opcheck(ops.matmul_reduce_scatter_rows, given, test_utils=tests)
        torch.library.opcheck(ops.reduce_scatter_rows, (whole, None, name, rows, rank, dim), test_utils=tests)


def test_opcheck(ranks):
    """Schemas, and fakes that are like results."""
    ranks.run(checked)
