"""Where the tests' tensors lie: IMBREX_TEST_DEVICE says cpu, as it is without it, or cuda."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric

DEVICE = os.environ.get("IMBREX_TEST_DEVICE", "cpu")

kills_a_rank = pytest.mark.skipif(
    DEVICE == "cuda" and "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
    reason="what is killed under MPS may take the other ranks' work with it: to be run without",
)


def backend_of(rank: int) -> str:
    """Makes the tests' device the default, and says which backends ranks talk by. Ranks share too few GPUs."""
    if DEVICE == "cpu":
        return "gloo"  # the CPU is the default; were it set, torch would pass each of its calls through Python
    torch.set_default_device(DEVICE)
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    # What the drop-in hands back to torch's own kernels runs as products and collectives: symmetric memory needs a GPU
    # for each rank.
    symmetric._is_test_mode = True
    return "cpu:gloo,cuda:nccl"


def fewer_gpus_than(ranks: int) -> dict[str, str]:
    """The environment in which a script that needs a GPU for each rank finds none, where there are too few."""
    return {} if torch.cuda.device_count() >= ranks else {"CUDA_VISIBLE_DEVICES": ""}


def generator_of(seed: int) -> torch.Generator:
    """Random numbers on the tests' device."""
    return torch.Generator(DEVICE).manual_seed(seed)
