"""Parts of layers and tables begin unlike each other where all ranks are seeded alike."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from groups_for_tests import group_of
from torch._subclasses.fake_tensor import FakeTensorMode

import imbrex
import imbrex.torch as it


def _of_all_ranks(part: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.detach().contiguous())
    return parts


def begins() -> None:
    """One seed on all ranks: unlike parts within nn.Linear's bounds, the same again, and what follows is alike."""
    group = group_of(0, 1, 2, 3)
    for layer in (it.nn.ColumnParallelLinear, it.nn.RowParallelLinear):
        drawn = []
        for _ in range(2):
            torch.manual_seed(7)
            drawn.append(layer(32, 64, group, bias=True).weight)
            (after,) = {tuple(one.tolist()) for one in _of_all_ranks(torch.rand(3))}
            assert len(after) == 3
        assert torch.equal(*drawn)
        parts = _of_all_ranks(drawn[0])
        torch.manual_seed(7)
        for part in parts:  # one after another from the generator
            assert torch.equal(part, torch.empty_like(part).uniform_(-1 / math.sqrt(32), 1 / math.sqrt(32)))
        assert len({tuple(one.flatten().tolist()) for one in parts}) == 4
        whole = torch.cat(parts)
        assert whole.abs().max() <= 1 / math.sqrt(32)
        assert abs(whole.std() * math.sqrt(3 * 32) - 1) < 0.1
        # Without memory, nothing is drawn.
        assert layer(32, 64, group, device="meta").weight.is_meta
        with FakeTensorMode():
            layer(32, 64, group)
    torch.manual_seed(7)
    bag = it.nn.ShardedEmbeddingBag([(50, 8)] * 4, batch_size=8, group=group)
    tables = _of_all_ranks(next(iter(bag.parameters())))
    assert len({tuple(one.flatten().tolist()) for one in tables}) == 4
    assert abs(torch.cat(tables).std() - 1) < 0.1
    (after,) = {tuple(one.tolist()) for one in _of_all_ranks(torch.rand(3))}


def test_parts_begin_unlike(ranks):
    ranks.run(begins)


def outside() -> str:
    """What a rank hears that uses a group without it."""
    group = dist.new_group([0, 1, 2])
    if dist.get_rank() < 3:
        assert it.all_reduce(torch.ones(2), group)[0].item() == 3
        return ""
    with pytest.raises(imbrex.InvalidInput) as caught:
        it.all_reduce(torch.ones(2), group)
    return str(caught.value)


def test_a_rank_outside_of_a_group(ranks):
    assert ranks.run(outside)[3] == "this process is no member of the group that was given: its ranks alone call"
