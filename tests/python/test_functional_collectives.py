"""Programs with torch's own collectives, compiled under the drop-in: what becomes Imbrex', and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from groups_for_tests import group_of
from problems import integers
from test_drop_in import flat
from torch import Tensor
from torch.nn.functional import linear

import imbrex.torch as it
from imbrex.torch import extension

c10d = torch.ops._c10d_functional
RANKS = 2


def since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """What was counted meanwhile."""
    return {name: count - before.get(name, 0) for name, count in now.items() if count != before.get(name, 0)}


def numbers(shape: tuple[int, ...], seed: int, trained: bool = False) -> Tensor:
    return integers(shape, seed, torch.float32).requires_grad_(trained)


def outcome(program: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    """Results, and gradients of what has one."""
    leaves = [one.detach().clone().requires_grad_(one.requires_grad) for one in given]
    results = [one for one in flat(program(*leaves)) if one is not None]
    trained = [one for one in leaves if one.requires_grad]
    if trained:
        # The gradients are integers, so that sums stay exact.
        sum((one * (i + 1)).sum() for i, one in enumerate(results)).backward()
    return [*results, *(one.grad for one in trained)]


def expect(
    program: Callable[..., Any], given: list[Tensor], calls: dict[str, int], unmatched: dict[str, int] | None = None
) -> dict[str, int]:
    """
    Three calls give what the program gives without torch.compile; all are Imbrex' but the first of a new graph.

    Args:
        program: of tensors.
        given: these, of which some have a gradient.
        calls: how often each operator is called, the second time as the third.
        unmatched: how many collectives stay torch's, with the reason, where that is asked.

    Returns:
        Copies that were made.
    """
    import torch._inductor.config as inductor

    want = outcome(program, given)
    torch._dynamo.reset()
    then = it.stats()
    # The pass sees nothing of a graph that comes from a cache, which the ranks share.
    with inductor.patch(force_disable_caches=True), it.drop_in():
        graph = torch.compile(program, fullgraph=True)
        for i in range(3):
            before = extension.calls()
            got = outcome(graph, given)
            made = since(before, extension.calls())
            made.pop("made", None)
            assert made == calls or not (i or made), (
                i,
                made,
                [tuple(one.shape) for one in given],
                it.stats().fallbacks,
            )
            for mine, theirs in zip(got, want, strict=True):
                assert mine.shape == theirs.shape and torch.equal(mine, theirs), (i, mine, theirs)
    now = it.stats()
    if unmatched is not None:
        assert since(then.unmatched, now.unmatched) == unmatched, since(then.unmatched, now.unmatched)
    return since(then.copies, now.copies)


class Gather(torch.autograd.Function):
    """As Megatron's: gathers the rows, and scatters the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return functional.all_gather_tensor(x, 0, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return functional.reduce_scatter_tensor(grad.contiguous(), "sum", 0, ctx.group), None


class Scatter(torch.autograd.Function):
    """As Megatron's: scatters the sum of the rows, and gathers their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return functional.reduce_scatter_tensor(x.contiguous(), "sum", 0, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return functional.all_gather_tensor(grad.contiguous(), 0, ctx.group), None


class Copy(torch.autograd.Function):
    """As Megatron's: sums up the gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return functional.all_reduce(grad, "sum", ctx.group), None


class Reduce(torch.autograd.Function):
    """As Megatron's: sums up over the ranks in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def megatrons(trained: bool) -> None:
    """A layer by sequence and one without, of autograd functions that call torch's collectives."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name

    def by_sequence(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
        hidden = torch.relu(linear(Gather.apply(x, name), up, bias))
        return Scatter.apply(linear(hidden, down), name)

    x, up = numbers((4, 3, 8), rank, trained), numbers((16, 8), 9 + rank, trained)
    bias, down = numbers((16,), 20 + rank, trained), numbers((8, 16), 30 + rank, trained)
    times = 2 if trained else 1
    wanted = {"all_gather_matmul": times, "matmul_reduce_scatter": times}
    expect(by_sequence, [x, up, bias, down], wanted, {})

    def whole(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return Reduce.apply(linear(torch.relu(linear(Copy.apply(x, name), up)), down), group)

    x = numbers((4, 3, 8), 5, trained)
    expect(whole, [x, up, down], {"matmul_all_reduce": times}, {})


@pytest.mark.parametrize("trained", (False, True))
def test_functions_of_megatrons_kind(ranks, trained):
    ranks.run(megatrons, trained=trained)


def in_place() -> None:
    """torch.distributed's collectives into a tensor, by both names that they have."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    x, up, down = numbers((4, 3, 8), rank), numbers((16, 8), 9 + rank), numbers((8, 16), 30 + rank)
    for gather, scatter in (
        (dist.all_gather_into_tensor, dist.reduce_scatter_tensor),
        (dist._all_gather_base, dist._reduce_scatter_base),
    ):

        def program(x: Tensor, up: Tensor, down: Tensor, gather: Any = gather, scatter: Any = scatter) -> Tensor:
            whole, part = x.new_empty(8, 3, 8), x.new_empty(4, 3, 8)
            gather(whole, x, group=group)
            scatter(part, linear(torch.relu(linear(whole, up)), down), group=group)
            return part

        expect(program, [x, up, down], {"all_gather_matmul": 1, "matmul_reduce_scatter": 1}, {})


def test_collectives_in_place(ranks):
    ranks.run(in_place)


def along(x: Tensor, dim: int, name: str, ranks: int = RANKS) -> Tensor:
    """As torch makes a gather along another dimension: the first, cut up and put side by side."""
    whole = c10d.wait_tensor(c10d.all_gather_into_tensor(x.contiguous(), ranks, name))
    return torch.cat(whole.chunk(ranks), dim) if dim else whole


def scattered(x: Tensor, dim: int, name: str, op: str = "sum", ranks: int = RANKS) -> Tensor:
    rows = torch.cat(x.chunk(ranks, dim)) if dim else x
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(rows, op, ranks, name))


def by_hand() -> None:
    """Along each dimension, of tensors of two to four, with a bias, with several products, with the gathered tensor."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name
    w, v, bias = numbers((16, 8), 9 + rank), numbers((12, 8), 19 + rank), numbers((16,), 40 + rank)
    down, added = numbers((16, 8), 29 + rank), numbers((8,), 50 + rank)
    for shape, dim in (
        ((4, 8), 0),
        ((3, 4, 8), 0),
        ((3, 4, 8), 1),
        ((1, 4, 8), 1),
        ((2, 3, 4, 8), 2),
        ((2, 4, 3, 8), 1),
    ):

        def gathers(x: Tensor, dim: int = dim) -> Any:
            wholes = [along(x + i, dim, name) for i in range(4)]
            products = [wholes[0] @ w.t(), linear(wholes[1], w, bias), linear(wholes[2], w, bias), wholes[3] @ w.t()]
            return *products, linear(wholes[1], v), wholes[3] + 1

        expect(gathers, [numbers(shape, rank)], {"all_gather_matmul": 4}, {})
    for shape, dim in (((4, 16), 0), ((4, 3, 16), 0), ((3, 4, 16), 1), ((1, 4, 16), 1), ((4, 2, 3, 16), 0)):

        def scatters(h: Tensor, dim: int = dim) -> Any:
            return scattered(h @ down, dim, name), scattered(linear(h, down.t(), added), dim, name)

        # What each rank adds is summed up by itself.
        expect(scatters, [numbers(shape, rank)], {"matmul_reduce_scatter": 2, "all_reduce": 1}, {})

    def sums(h: Tensor) -> Any:
        return tuple(functional.all_reduce(linear(h, down.t(), one), "sum", name) for one in (None, added))

    expect(sums, [numbers((4, 3, 16), rank)], {"matmul_all_reduce": 2, "all_reduce": 1}, {})


def test_written_by_hand(ranks):
    ranks.run(by_hand)


def left_to_torch() -> None:
    """What the pass does not take is counted with its reason."""
    group, rank = group_of(0, 1), dist.get_rank()
    singles = [group_of(0), group_of(1)]  # every rank makes every group: torch names them by their number
    if rank >= RANKS:
        return
    name, one = group.group_name, singles[rank].group_name
    x, w = numbers((4, 8), rank), numbers((8, 8), 9 + rank)

    def made_behind(x: Tensor, w: Tensor) -> Tensor:
        whole = c10d.all_gather_into_tensor(x, RANKS, name)
        other = functional.all_reduce(w, "sum", name)
        return c10d.wait_tensor(whole) @ other

    gather, reduce, scatter = "all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"
    what = "what it sums is no product"
    cases: tuple[tuple[Callable[..., Any], dict[str, int]], ...] = (
        (lambda x, w: along(x, 0, name) + 1, {f"{gather}: no product takes the gathered tensor": 1}),
        (lambda x, w: along(x.double(), 0, name) @ w.double(), {f"{gather}: dtype": 1}),
        (lambda x, w: along(x, 0, one, 1) @ w, {f"{gather}: group has one rank": 1}),
        (lambda x, w: along(x[:, :4], 1, name) @ w, {f"{gather}: gathers the last dimension": 1}),
        (lambda x, w: along(x, 0, name)[::2].chunk(2)[0] @ w, {f"{gather}: no product takes the gathered tensor": 1}),
        (
            made_behind,
            {
                f"{gather}: the product's other factor is made after the gather, by what cannot move": 1,
                f"{reduce}: {what}": 1,
            },
        ),
        (lambda x, w: functional.all_reduce(x @ w, "max", name), {f"{reduce}: reduce op is max": 1}),
        (lambda x, w: scattered(x @ w, 1, name), {f"{scatter}: scatters the last dimension": 1}),
        (lambda x, w: functional.all_reduce(x @ w, "sum", one), {f"{reduce}: group has one rank": 1}),
        (lambda x, w: functional.all_reduce(x.double() @ w.double(), "sum", name), {f"{reduce}: dtype": 1}),
        (lambda x, w: functional.all_reduce(x + 1, "sum", name), {f"{reduce}: {what}": 1}),
        (
            lambda x, w: (lambda p: (functional.all_reduce(p, "sum", name), p))(x @ w),
            {f"{reduce}: the product has another user": 1},
        ),
    )
    unmatched: dict[str, int] = {}
    for _, reasons in cases:
        for reason, count in reasons.items():
            unmatched[reason] = unmatched.get(reason, 0) + count
    # None is a twin of another, which torch would make once.
    expect(lambda x, w: [program(x + i, w) for i, (program, _) in enumerate(cases)], [x, w], {}, unmatched)


def test_what_is_left_to_torch(ranks):
    ranks.run(left_to_torch)


def rank_dependent() -> None:
    """Rank 0 uses what rank 1 does not: the pass finds something else there, and both run torch's collective."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name
    x, w, v = numbers((4, 8), rank), numbers((8, 8), 9 + rank), numbers((8, 8), 19 + rank)

    def product_used(x: Tensor, w: Tensor, v: Tensor) -> Any:
        product = x @ w
        total = functional.all_reduce(product, "sum", name)
        return (total, product.sum()) if rank == 0 else total

    def part_used(x: Tensor, w: Tensor, v: Tensor) -> Any:
        one, other = (functional.all_reduce(x @ each, "sum", name) for each in (w, v))
        return (one + other, one.sum()) if rank == 0 else one + other

    def added_the_other_way_round(x: Tensor, w: Tensor, v: Tensor) -> Any:
        one, other = (functional.all_reduce(x @ each, "sum", name) for each in (w, v))
        return (other + one, one.sum()) if rank == 0 else (other + one) * 2

    def gathered_used(x: Tensor, w: Tensor, v: Tensor) -> Any:
        whole = along(x, 0, name)
        return (whole @ w, whole @ v, whole.sum()) if rank == 0 else whole @ w

    def no_product(x: Tensor, w: Tensor, v: Tensor) -> Any:
        whole = along(x, 0, name)
        return whole @ w if rank == 0 else whole * 2

    def scattered_used(x: Tensor, w: Tensor, v: Tensor) -> Any:
        product = x @ w + x @ v
        part = scattered(product.reshape(2, 2, 8), 1, name).reshape(2, 8).repeat(2, 1)
        return (part, product.sum()) if rank == 0 else part

    for program in (product_used, part_used, added_the_other_way_round, gathered_used, no_product, scattered_used):
        # What both find alike is Imbrex' all the same, before and behind.
        def surrounded(x: Tensor, w: Tensor, v: Tensor, program: Any = program) -> Any:
            first = functional.all_reduce(x @ w, "sum", name)
            between = program(first, w, v)
            return first, between, scattered(flat(between)[0][:4] @ v, 0, name)

        expect(surrounded, [x, w, v], {"matmul_all_reduce": 1, "matmul_reduce_scatter": 1})
    key = "matmul_all_reduce: other ranks run something else there"
    assert rank == 0 or it.stats().fallbacks[key] > 0, it.stats().fallbacks


def test_graphs_that_differ_between_ranks(ranks):
    ranks.run(rank_dependent)


def one_is_not_compiled() -> None:
    """Rank 0 runs the program without torch.compile."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name
    x, w = numbers((8, 8), rank), numbers((8, 4), 9 + rank)

    def program(x: Tensor, w: Tensor) -> Tensor:
        return scattered(torch.relu(along(x, 0, name) @ w), 0, name) @ functional.all_reduce(w.t() @ w, "sum", name)

    want = program(x, w)
    torch._dynamo.reset()
    with it.drop_in():
        graph = program if rank == 0 else torch.compile(program, fullgraph=True)
        for _ in range(3):
            assert torch.equal(graph(x, w), want)


def test_one_rank_does_not_compile(ranks):
    ranks.run(one_is_not_compiled)


def other_order() -> None:
    """A sum of collectives between which another one stands is not put together: no call changes its turn."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name
    x, w, v = numbers((4, 8), rank), numbers((8, 8), 9 + rank), numbers((8, 8), 19 + rank)

    def program(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        one = functional.all_reduce(x @ w, "sum", name)
        between = functional.all_reduce(x, "sum", name)
        return one + functional.all_reduce(x @ v, "sum", name), between + 0

    expect(program, [x, w, v], {"matmul_all_reduce": 2})


def test_calls_keep_their_turns(ranks):
    ranks.run(other_order)


def again() -> None:
    """A group's successor of the same name counts from the start: what its ranks agreed upon goes with a group."""
    rank = dist.get_rank()
    x, w = numbers((4, 8), rank), numbers((8, 8), 9 + rank)
    for _ in range(2):
        group = dist.new_group([0, 1])
        if rank < RANKS:
            name = group.group_name
            expect(lambda x, w, name=name: functional.all_reduce(x @ w, "sum", name), [x, w], {"matmul_all_reduce": 1})
            dist.destroy_process_group(group)


def test_destroyed_groups(ranks):
    ranks.run(again)


def cached() -> dict[str, int]:
    """Graphs that are made, and then come from Inductor's cache."""
    from torch._dynamo.utils import counters

    group, rank = group_of(0, 1), dist.get_rank()
    name = group.group_name
    x, w = numbers((6, 8), rank), numbers((8, 8), 9 + rank)
    hits = {}

    def program(x: Tensor, w: Tensor) -> Tensor:
        return scattered(torch.relu(along(x, 0, name) @ w) @ w, 0, name)

    want = program(x, w)
    for state in ("cold", "warm"):
        counters.clear()
        torch._dynamo.reset()
        with it.drop_in():
            graph = torch.compile(program, fullgraph=True)
            for _ in range(2):
                before = extension.calls()
                assert torch.equal(graph(x, w), want)
                made = since(before, extension.calls())
        assert made["all_gather_matmul"] == made["matmul_reduce_scatter"] == 1, (state, made)
        hits[state] = sum(count for key, count in counters["inductor"].items() if key.endswith("cache_hit"))
    return hits


def test_cold_and_warm_caches(tmp_path):
    from pool import Pool

    pool = Pool(RANKS, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    try:
        for told in pool.run(cached):
            assert told["warm"] > 0, told
    finally:
        pool.close()
