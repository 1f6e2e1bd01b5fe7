"""Embedding bags of batches that are not as many on every rank, beside torch's own embedding_bag."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from bags_for_tests import Problem, bags_of, bags_within, divided, draw, integers, looked_up, module_of, own_shards
from device_for_tests import DEVICE
from groups_for_tests import group_of
from test_refusals import SOON, told
from torch import Tensor

import imbrex.torch as it
from imbrex.torch.nn import Bags, ShardedEmbeddingBag

SEED = int(os.environ.get("IMBREX_TEST_SEED", "1"))


def parts_of(ranks: int, draws: random.Random) -> list[int]:
    """How many rows each rank has: zeros at the beginning, in the middle, at the end, all but one, and all."""
    shape = draws.choice(("any", "any", "any", "one", "none", "even"))
    if shape == "one":
        return [5 if rank == ranks // 2 else 0 for rank in range(ranks)]
    if shape == "none":
        return [0] * ranks
    if shape == "even":
        return [3] * ranks
    return [draws.choice((0, draws.randint(1, 6))) for _ in range(ranks)]


def expect_right(p: Problem, parts: list[int], bag: ShardedEmbeddingBag, tables: list[Tensor], step: int) -> Bags:
    """The exchange and the lookup of one batch; what the lookup took."""
    rank = dist.get_rank()
    begin = sum(parts[:rank])
    mine = slice(begin, begin + parts[rank])
    bags = bags_of(p, step)
    want = divided(p, looked_up(p, tables, bags), bags)[mine].to(p.out)
    given = bag.exchange(*bags_within(p, bags, mine))
    assert given.batch_size == sum(parts) and (given.batches or [sum(parts) // len(parts)] * len(parts)) == parts
    for batches in (given.batches, parts):
        got = bag(*given._replace(batches=batches))
        assert torch.equal(got, want), (p, parts, batches)
    return given._replace(batches=parts)


def forward(seed: int, count: int) -> None:
    """The very bits of torch's sums, with and without the list where the parts are as many."""
    draws = random.Random(seed)
    for number in range(count):
        p = draw(seed * 1000 + number)
        ranks, parts = p.ranks, parts_of(p.ranks, draws)
        p = replace(p, batch=sum(parts))
        tables = [integers(shape, number * 7 + i) for i, shape in enumerate(p.tables)]
        bag = module_of(p, tables, ranks * max(1, *parts), optimizer=None)
        if bag is None:
            continue
        expect_right(p, parts, bag, tables, 0)
        # Smaller batches of the same module, and none.
        for step, smaller in enumerate(([0] * ranks, [min(one, 1) for one in parts], parts[::-1])):
            expect_right(replace(p, batch=sum(smaller)), smaller, bag, tables, step + 1)
        assert bag.report() == 0
        bag.close()


def test_lookups(ranks):
    """Random problems of one to four ranks."""
    print(f"IMBREX_TEST_SEED={SEED}")
    ranks.run(forward, seed=SEED, count=20)


def steps(seed: int, count: int) -> None:
    """The step of SGD that torch's gradients of the whole batch make, exactly; a rank without rows steps, too."""
    draws = random.Random(seed)
    for number in range(count):
        p = draw(seed * 1000 + number)
        ranks, parts = p.ranks, parts_of(p.ranks, draws)
        p = replace(p, batch=sum(parts), mode="sum", dtype=torch.float32, out=torch.float32)
        tables = [integers(shape, number * 7 + i) for i, shape in enumerate(p.tables)]
        bag = module_of(p, tables, ranks * max(1, *parts), learning_rate=0.5)
        if bag is None:
            continue
        rank = dist.get_rank()
        begin = sum(parts[:rank])
        mine = slice(begin, begin + parts[rank])
        for step in range(2):
            bags = bags_of(p, step)
            slopes = integers((sum(parts), sum(dim for _, dim in p.tables)), seed + step)
            whole = [table.requires_grad_() for table in tables]
            (looked_up(p, whole, bags) * slopes).sum().backward()
            tables = [(table - 0.5 * table.grad).detach() for table in whole]
            y = bag(*bag.exchange(*bags_within(p, bags, mine)))
            (y * slopes[mine]).sum().backward()
            for shard, rows in own_shards(bag, rank):
                assert torch.equal(rows, tables[shard.table][:, shard.begin : shard.end]), (p, parts, step)
        bag.close()


def test_steps(ranks):
    """Random problems of one to four ranks."""
    print(f"IMBREX_TEST_SEED={SEED}")
    ranks.run(steps, seed=SEED, count=16)


def wrong_calls(bag: ShardedEmbeddingBag, rank: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What every rank is told, and a lookup that is wrong on rank 1 alone."""
    right = [0, 2, 1, 3]

    def call(batches: Any, whole: int, **more: Any) -> Callable[[], Any]:
        own = sum(shard.rank == rank for shard in bag.shards)
        indices, offsets = torch.zeros(own * whole).long(), torch.arange(own * whole + 1)
        return lambda: bag(indices, offsets, batches=batches, **more)

    lists: list[tuple[str, Any]] = [
        ("batches = [2, 0, 1, 3]", [2, 0, 1, 3]),
        ("batches = [1, 1, 1, 3]", [1, 1, 1, 3]),
        ("batches has 3 numbers: it must have one for each of the 4 ranks", [1, 2, 3]),
        ("batches[0] = -1: it must be 0 or more", [-1, 2, 2, 3]),
        ("batches[1] is of type bool: it must be an integer", [0, True, 1, 3]),
        ("batches[3] is of type Tensor: it must be an integer", [0, 2, 1, torch.tensor(3)]),
        ("batches is of type Tensor: it must be a list", torch.tensor(right)),
        ("batches = [0, 0, 0, 6]: this module takes at most 5 rows of a rank", [0, 0, 0, 6]),
    ]
    for text, batches in lists:
        yield text, call(batches if rank == 1 else right, 6)
    yield "offsets is", call(right, 5 if rank == 1 else 6)
    yield "batch_size = 7 with batches = [0, 2, 1, 3]: it must be 6", call(right, 6, batch_size=7 if rank == 1 else 6)
    yield "batches = [0, 2, 1, 3]", call(None if rank == 1 else right, 12 if rank == 1 else 6)
    yield "batches = [0, 0, 0, 0]", call([0] * 4 if rank == 1 else right, 0 if rank == 1 else 6)
    # Ranks without a shard would take the largest batch, were none given.
    for text, wrong in (("batches=[...] takes", 4), ("or `batches` say how many each has", 6)):
        batch = wrong if rank == 1 else 8
        yield text, call(None, batch, batch_size=batch)


def refused() -> None:
    """Each on every rank, soon; the next call is right, and the tables are as they were."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    # Larger than what a rank that stands in gives for it.
    table = integers((1000, 64), 3)
    took: list[float] = []
    for placed in ([(0, 1, 0, 64)], [(0, 0, 0, 32), (0, 1, 32, 64)]):
        bag = ShardedEmbeddingBag([(1000, 64)], batch_size=20, group=group, shards=placed)
        bag.copy_tables([table])
        for text, call in wrong_calls(bag, rank):
            begin = time.monotonic()
            found = told(call, group)
            seconds = time.monotonic() - begin
            # A rank that is told later, as on GPUs, hears what was wrong without what to give instead.
            known = text in found or (DEVICE == "cuda" and text.endswith("] takes") and " batch = " in found)
            assert known, (text, found)
            assert seconds < SOON, (text, seconds)
            took.append(seconds)
            rows = [0, 1, 0, 2][rank]
            y = bag(*bag.exchange(torch.arange(rows), torch.arange(rows + 1)))
            assert torch.equal(y, table[:rows]), text
        bag.close()
    assert statistics.median(took) < 1, took  # one of them may wait for a core of a busy machine


def test_refused(ranks):
    """Lists that are wrong, and lists that differ."""
    ranks.run(refused)


def counted() -> None:
    """A rank's gradients are copied where its part is not the longest."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    bag = ShardedEmbeddingBag([(4, 8)], batch_size=8, group=group)
    own = [0, 1, 2, 2][rank]
    before = it.stats().copies.get("embedding_all_to_all: rows are padded", 0)
    bag(*bag.exchange(torch.zeros(own).long(), torch.arange(own + 1))).sum().backward()
    assert it.stats().copies.get("embedding_all_to_all: rows are padded", 0) - before == (own < 2)


def test_copies_are_counted(ranks):
    """As the documents say."""
    ranks.run(counted)
