"""
Ranks of which the second raises once all have met: what the others are told is what they print.

raising_rank.py RANK SIZE STORE, for each rank; STORE is a file that is not there yet
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, backend_of

import imbrex
import imbrex.torch as it


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend_of(rank), init_method=f"file://{store}", rank=rank, world_size=size)
    x = torch.ones(8)
    assert it.all_reduce(x)[0].item() == size  # on a GPU its work is done here
    if rank == 1:
        raise ValueError("this rank has had enough")
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 30:
            it.all_reduce(x)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            it.check()
    except imbrex.Error as error:
        print(error, flush=True)
        os._exit(0)  # torch's own groups would wait for the rank that is gone
    os._exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
