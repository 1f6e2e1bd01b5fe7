"""Random embedding problems, as every rank draws them alike, and what they must come to: torch's own embedding_bag."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from device_for_tests import generator_of
from groups_for_tests import first
from torch import Tensor

from imbrex.torch.nn import ShardedEmbeddingBag

UNIT = 2.0**-24  # what a rounding to float32 is off by, relatively


@dataclass(frozen=True)
class Problem:
    """One module and its whole batch."""

    ranks: int
    tables: list[tuple[int, int]]
    shards: list[tuple[int, int, int, int]] | None
    batch: int
    mode: str
    weighted: bool
    dtype: torch.dtype
    out: torch.dtype
    index: torch.dtype
    seed: int


def draw(seed: int) -> Problem:
    """A problem from a seed; tables may be fewer than ranks, and shards of one table may share a rank."""
    r = random.Random(seed)
    ranks = r.choice((1, 2, 3, 4))
    tables = [(r.randint(1, 40), 4 * r.randint(1, 24)) for _ in range(r.randint(1, 6))]
    shards = None
    if r.random() < 0.6:
        shards = []
        for number, (_, dim) in enumerate(tables):
            cuts = sorted({0, dim, *(4 * r.randint(0, dim // 4) for _ in range(r.randint(0, 2)))})
            shards += [(number, r.randrange(ranks), *cut) for cut in pairwise(cuts)]
    return Problem(
        ranks=ranks,
        tables=tables,
        shards=shards,
        batch=ranks * r.randint(1, 6),
        mode=r.choice(("sum", "mean")),
        weighted=r.random() < 0.4,
        dtype=r.choice((torch.float32, torch.float16, torch.bfloat16)),
        out=r.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16)),
        index=r.choice((torch.int32, torch.int64)),
        seed=seed,
    )


def integers(shape: tuple[int, ...], seed: int, most: int = 3) -> Tensor:
    """Integers from -most to most."""
    return torch.randint(-most, most + 1, shape, generator=generator_of(seed)).float()


def bags_of(p: Problem, step: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Indices, lengths [batch] and weights of each table's bags; a quarter of the bags is empty."""
    found = []
    for number, (rows, _) in enumerate(p.tables):
        seed = p.seed * 1000 + step * 50 + number
        lengths = (torch.randint(-2, 6, (p.batch,), generator=generator_of(seed))).clamp(min=0)
        count = int(lengths.sum())
        indices = torch.randint(0, rows, (count,), generator=generator_of(seed + 1)).to(p.index)
        found.append((indices, lengths, integers((count,), seed + 2, 2)))
    return found


def looked_up(p: Problem, tables: list[Tensor], bags: list[tuple[Tensor, Tensor, Tensor]], mode: str = "sum") -> Tensor:
    """The whole result by torch's embedding_bag, in the tables' dtype; sums, or torch's own means."""
    columns = []
    for table, (indices, lengths, weights) in zip(tables, bags, strict=True):
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).to(p.index)
        given = {"per_sample_weights": weights.to(table.dtype)} if p.weighted and mode == "sum" else {}
        columns.append(F.embedding_bag(indices, table, offsets, mode=mode, include_last_offset=True, **given))
    return torch.cat(columns, 1)


def divided(p: Problem, sums: Tensor, bags: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Means of sums where the problem has them, by one product with 1 / n."""
    if p.mode == "sum":
        return sums
    counts = [
        lengths.clamp(min=1).unsqueeze(1).expand(-1, dim)
        for (_, lengths, _), (_, dim) in zip(bags, p.tables, strict=True)
    ]
    return sums * (1 / torch.cat(counts, 1).to(sums.dtype))


def part_of(p: Problem, rank: int) -> slice:
    """Rows of the batch that are this rank's."""
    return slice(rank * p.batch // p.ranks, (rank + 1) * p.batch // p.ranks)


def local_bags(p: Problem, bags: list[tuple[Tensor, Tensor, Tensor]], rank: int) -> tuple[Tensor, ...]:
    """Indices and offsets, and weights if there are any, of this rank's part of the batch for all tables."""
    return bags_within(p, bags, part_of(p, rank))


def bags_within(p: Problem, bags: list[tuple[Tensor, Tensor, Tensor]], part: slice) -> tuple[Tensor, ...]:
    """As local_bags, of these rows of the batch."""
    indices, lengths, weights = [], [], []
    for its_indices, its_lengths, its_weights in bags:
        begin, end = int(its_lengths[: part.start].sum()), int(its_lengths[: part.stop].sum())
        indices.append(its_indices[begin:end])
        weights.append(its_weights[begin:end])
        lengths.append(its_lengths[part])
    behind = torch.cat(lengths).cumsum(0)
    offsets = torch.cat((behind.new_zeros(1), behind)).to(p.index)
    return (torch.cat(indices), offsets, *([torch.cat(weights)] if p.weighted else []))


def module_of(p: Problem, tables: list[Tensor], largest: int | None = None, **more) -> ShardedEmbeddingBag | None:
    """The module with these tables, for that batch or the problem's; None on ranks that sit out."""
    group = first(p.ranks)
    if group is None:
        return None
    bag = ShardedEmbeddingBag(
        p.tables,
        batch_size=p.batch if largest is None else largest,
        group=group,
        mode=p.mode,
        weighted=p.weighted,
        shards=p.shards,
        index_dtype=p.index,
        output_dtype=p.out,
        dtype=p.dtype,
        **more,
    )
    bag.copy_tables([table.to(p.dtype) for table in tables])
    return bag


def own_shards(bag: ShardedEmbeddingBag, rank: int):
    """Each shard of this rank, with its rows."""
    for shard in bag.shards:
        if shard.rank == rank:
            yield shard, bag.get_parameter(f"table{shard.table}_{shard.begin}_{shard.end}")
