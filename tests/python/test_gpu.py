"""What only GPUs can show: captured graphs, torch.compile's, and 8-bit products beside torch's own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import group_of
from problems import integers
from torch import Tensor

import imbrex
import imbrex.torch as it
from imbrex.torch import extension

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU, and IMBREX_TEST_DEVICE=cuda to take it")

E4M3 = torch.float8_e4m3fn
TOKENS, HIDDEN, WIDE = 64, 128, 256


def layer_of(group: dist.ProcessGroup) -> tuple[Callable[[Tensor], tuple[Tensor, ...]], Tensor]:
    """Every operator once, over this rank's weights, and its part of the tokens."""
    generator = generator_of(20 + dist.get_rank())

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).div(8).bfloat16()

    x, up, down, square, own = (
        weight(*shape) for shape in ((TOKENS, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE), (HIDDEN, HIDDEN), (HIDDEN,))
    )
    norm = integers((HIDDEN,), 5, torch.bfloat16)

    def layer(x: Tensor) -> tuple[Tensor, ...]:
        h = it.all_gather_matmul(x, up.t(), group)
        y = it.matmul_reduce_scatter(h.relu(), down.t(), group)
        z = it.matmul_all_reduce(y, square.t(), group)
        summed = it.all_reduce(y, group)
        normal, total = it.all_reduce_rms_norm(y, summed, norm, 1e-5, group)
        return y, z, summed, normal, total, it.matmul_all_to_all(total, square.t(), group) + own

    return layer, x


def bits(one: Tensor) -> Tensor:
    return one.view(torch.int16)


def captured(
    layer: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor
) -> tuple[tuple[Tensor, ...], torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    """What the layer gives, a graph of the same call, and where that one's replays put it."""
    want = layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        return want, graph, layer(x)


def replayed(times: int) -> None:
    """A graph of all operators, so many times, into outputs that hold something else before."""
    layer, x = layer_of(group_of(0, 1, 2, 3))
    with torch.no_grad():
        want, graph, got = captured(layer, x)
    calls, wrong = extension.calls(), torch.zeros((), dtype=torch.int64)
    for _ in range(times):
        for one in got:
            one.fill_(7)
        graph.replay()
        for mine, theirs in zip(got, want, strict=True):
            wrong += (bits(mine) != bits(theirs)).sum()
    assert wrong.item() == 0, f"{wrong.item()} elements over {times} replays"
    assert extension.calls() == calls
    it.check()


def test_replays(ranks):
    """The same bits 1,000 times."""
    ranks.run(replayed, times=1000)


def on_streams(count: int, rounds: int) -> None:
    """Calls of all operators, and replays between, on streams and after delays that each rank draws for itself."""
    layer, x = layer_of(group_of(0, 1, 2, 3))
    order, own = random.Random(count), random.Random(100 * count + dist.get_rank())
    with torch.no_grad():
        want, graph, replayed_into = captured(layer, x)
        streams = [torch.cuda.Stream() for _ in range(count)]
        wrong = [torch.zeros((), dtype=torch.int64) for _ in streams]
        torch.cuda.synchronize()
        replays, last = False, streams[0]
        for _ in range(rounds):
            replayed_last, replays, place = replays, order.random() < 0.3, own.randrange(count)
            with torch.cuda.stream(streams[place]):
                if own.random() < 0.3:
                    torch.cuda._sleep(own.randrange(200_000))
                # The world orders calls; it sees no replays.
                if replays or replayed_last:
                    streams[place].wait_stream(last)
                last = streams[place]
                if replays:
                    graph.replay()
                for mine, theirs in zip(replayed_into if replays else layer(x), want, strict=True):
                    wrong[place] += (bits(mine) != bits(theirs)).sum()
        torch.cuda.synchronize()
    assert sum(one.item() for one in wrong) == 0, f"{[one.item() for one in wrong]} elements by stream"
    it.check()


@pytest.mark.parametrize("count", [2, 3])
def test_streams(ranks, count):
    """The same bits in 1,000 rounds."""
    ranks.run(on_streams, count=count, rounds=1000)


def first_met_in_a_capture() -> str:
    """An operator that would have to be made while a graph is captured."""
    group = group_of(0, 1, 2, 3)
    a, b = integers((20, 16), 1, torch.bfloat16), integers((16, 40), 2, torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(imbrex.InvalidInput) as caught:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            it.matmul_reduce_scatter(a, b, group)
    assert it.warm_up([(it.matmul_reduce_scatter, a.shape, b.shape, a.dtype)], group) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        got = it.matmul_reduce_scatter(a, b, group)
    graph.replay()
    assert torch.equal(got, (4 * (a.float() @ b.float())).chunk(4)[dist.get_rank()].bfloat16())
    return str(caught.value)


def test_a_capture_that_meets_a_new_shape(ranks):
    """It is refused with the name of what helps, on every rank, and works afterwards."""
    for text in ranks.run(first_met_in_a_capture):
        assert "warm_up" in text, text


def with_less_overhead() -> None:
    """mode="reduce-overhead": after two calls torch replays graphs of its own, which hold the operators."""
    from torch._dynamo.utils import counters

    layer, x = layer_of(group_of(0, 1, 2, 3))
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for i in range(6):
            given = x * (i + 1)
            want = layer(given)
            calls = extension.calls()
            torch.compiler.cudagraph_mark_step_begin()
            got = [one.clone() for one in compiled(given)]
            for mine, theirs in zip(got, want, strict=True):
                assert torch.allclose(mine.float(), theirs.float(), rtol=2.0**-6, atol=2.0**-6), i
            assert i < 3 or extension.calls() == calls, f"call {i} was no replay"
    assert counters["inductor"]["cudagraph_skips"] == 0, counters["inductor"]


def test_reduce_overhead(ranks):
    ranks.run(with_less_overhead)


def beside_torchs_scaled_mm(op: str, rowwise: bool) -> None:
    """Against torch._scaled_mm and torch's collectives: exactly, of integers and powers of two."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    m, n, k = 64, 48, 64

    def scale(count: int, turn: int, shape: tuple[int, int]) -> Tensor:
        return 2.0 ** ((torch.arange(count) + turn) % 3 - 1).float().reshape(shape)

    every = [integers((m, k), 40 + r, torch.float32).to(E4M3) for r in range(4)]
    rows = [scale(m, r, (m, 1)) if rowwise else torch.tensor(0.5) for r in range(4)]
    bs = [integers((n, k), 60 + r, torch.float32).to(E4M3).t() for r in range(4)]
    columns = scale(n, 1, (1, n)) if rowwise else torch.tensor(2.0)

    def product(of: int, b: Tensor) -> Tensor:
        return torch._scaled_mm(every[of], b, rows[of], columns, out_dtype=torch.bfloat16, use_fast_accum=False)

    got = getattr(it, op)(every[rank], bs[rank], group, scale_a=rows[rank], scale_b=columns)
    if op == "all_gather_matmul":
        want = torch.cat([product(r, bs[rank]) for r in range(4)])
    elif op == "matmul_all_to_all":
        want = torch.cat([product(r, bs[r]).chunk(4)[rank] for r in range(4)])
    else:
        total = product(rank, bs[rank]).float()
        dist.all_reduce(total, group=group)
        want = (total.chunk(4)[rank] if op == "matmul_reduce_scatter" else total).bfloat16()
    assert got.dtype == torch.bfloat16 and torch.equal(got, want), (got.float() - want.float()).abs().max()


@pytest.mark.parametrize("op", ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"))
@pytest.mark.parametrize("rowwise", (False, True))
def test_scaled_mm(ranks, op, rowwise):
    """Tensor-wise and row-wise scales."""
    ranks.run(beside_torchs_scaled_mm, op=op, rowwise=rowwise)
