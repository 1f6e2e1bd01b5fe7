"""
Ranks of which the second raises once all have met: what the others are told is what they print.

raising_rank.py RANK SIZE STORE all_reduce|embedding, for each rank; STORE is a file that is not there yet
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, backend_of

import imbrex
import imbrex.torch as it


def caller(kind: str, size: int) -> Callable[[], float]:
    """A collective call, which comes to the number of ranks."""
    if kind == "all_reduce":
        return lambda: it.all_reduce(torch.ones(8))[0].item()
    bag = it.nn.ShardedEmbeddingBag([(2, 4), (2, 4)], batch_size=size, learning_rate=0.0)
    bag.copy_tables([torch.full((2, 4), size / 2)] * 2)

    def step() -> float:
        y = bag(*bag.exchange(torch.tensor([0, 1]), torch.tensor([0, 1, 2])))
        y.sum().backward()
        return y[0, :4].sum().item() / 2

    return step


def main(rank: int, size: int, store: str, kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend_of(rank), init_method=f"file://{store}", rank=rank, world_size=size)
    call = caller(kind, size)
    assert call() == size  # on a GPU its work is done here
    if rank == 1:
        raise ValueError("this rank has had enough")
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 30:
            call()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            it.check()
    except imbrex.Error as error:
        print(error, flush=True)
        os._exit(0)  # torch's own groups would wait for the rank that is gone
    os._exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
