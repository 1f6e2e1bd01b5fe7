"""Memory of GPUs that a group gives back: on the CPU ranks do nothing but agree."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import first

import imbrex
import imbrex.torch as it


def expect_right(rows: int, group: dist.ProcessGroup) -> None:
    """An operator and a collective give what they should."""
    ones = torch.ones(rows, 4, device=DEVICE)
    ranks = dist.get_world_size(group)
    assert it.matmul_all_reduce(ones, ones[:4].contiguous(), group)[0, 0].item() == 4 * ranks
    assert it.all_reduce(ones, group)[0, 0].item() == ranks


def of_own_gpus() -> dist.ProcessGroup | None:
    """The group of those ranks that share no GPU, since trim takes a GPU for each."""
    return first(4 if DEVICE == "cpu" else min(4, torch.cuda.device_count()))


def trimmed_between_calls() -> None:
    if (group := of_own_gpus()) is None:
        return
    it.trim(group)
    it.restore(group)
    for rows in (4, 8, 16):
        expect_right(rows, group)
        it.trim(group)
        if rows == 8:
            it.restore(group)
        expect_right(rows, group)
    it.restore(group.group_name)


def test_calls_are_right_behind_trim_and_restore(ranks):
    ranks.run(trimmed_between_calls)


def trimmed_by_some() -> None:
    if (group := of_own_gpus()) is None:
        return
    expect_right(4, group)
    with pytest.raises(imbrex.InvalidInput, match="asked for different things"):
        it.trim(group) if dist.get_rank() == 0 else it.restore(group)
    expect_right(4, group)


@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_ranks_that_do_other_things_are_told(ranks):
    ranks.run(trimmed_by_some)


def limited() -> None:
    group = dist.new_group([0, 1, 2, 3])
    with pytest.raises(imbrex.InvalidInput, match="gpu_heap_limit"):
        it.connect(group, gpu_heap_limit=-1)
    it.connect(group, gpu_heap_limit=1 << 28)
    expect_right(8, group)
    it.destroy(group)


def test_a_limit_of_the_heap_on_gpus(ranks):
    ranks.run(limited)
