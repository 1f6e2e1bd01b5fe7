"""What ranks agree upon at a place's first call, beside a store that is busy."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from groups_for_tests import group_of
from test_functional_collectives import RANKS, expect, numbers
from torch import Tensor

import imbrex.torch as it
from imbrex.torch import groups


class Busy(dist.Store):
    """As a TCPStore: sends what is set and does not wait, and its server comes to it with the next request, or late."""

    def __init__(self, store: dist.Store, pause: float) -> None:
        super().__init__()
        self.store, self.pause = store, pause
        self.sent: list[tuple[str, str]] = []

    def set(self, key: str, value: str) -> None:
        self.sent.append((key, value))

    def get(self, key: str) -> bytes:
        self.arrive()
        return self.store.get(key)

    def check(self, keys: list[str]) -> bool:
        if self.sent:
            time.sleep(self.pause)
        self.arrive()
        found = self.store.check(keys)
        time.sleep(self.pause)
        return found

    def delete_key(self, key: str) -> bool:
        self.arrive()
        return self.store.delete_key(key)

    def arrive(self) -> None:
        for key, value in self.sent:
            self.store.set(key, value)
        self.sent.clear()


def with_a_busy_store(pauses: tuple[float, float]) -> None:
    """What a rank writes into the store is there late, and what it reads may change while it does."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= RANKS:
        return
    name = group.group_name
    x, w, v = numbers((4, 8), rank), numbers((8, 8), 9 + rank), numbers((8, 8), 19 + rank)
    it.connect(group)
    store_of = groups._store_of
    busy = Busy(store_of(group), pauses[rank])
    try:
        if pauses[rank]:
            groups._store_of = lambda of: busy if of is group else store_of(of)
        expect(lambda x, w: functional.all_reduce((x + 1) @ w, "sum", name), [x, w], {"matmul_all_reduce": 1})

        def two_sums(x: Tensor, w: Tensor, v: Tensor) -> Any:
            # Rank 0 has two operators, rank 1 one for both: rank 0 goes on while rank 1 reads.
            one, other = (functional.all_reduce(x @ each, "sum", name) for each in (w, v))
            both = one + other
            return (both, one.sum()) if rank == 0 else both

        expect(two_sums, [x, w, v], {})
    finally:
        groups._store_of = store_of


@pytest.mark.parametrize("pauses", ((0.5, 0.0), (0.2, 1.5)))
def test_a_busy_store(ranks, pauses):
    ranks.run(with_a_busy_store, pauses=pauses)
