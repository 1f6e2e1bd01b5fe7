"""Ranks that come late to a call: the others wait for them, and say so once."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, kills_a_rank
from pool import Pool

import imbrex
import imbrex.torch as it
from imbrex.torch.groups import _timeout_of, name_of, world_of

LATE = 1
SECONDS = 3.0


def said_in(call: Callable[[], object]) -> str:
    """What this process writes to standard error meanwhile."""
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(before, 2)
            os.close(before)
        kept.seek(0)
        return kept.read().decode()


def synchronize() -> None:
    """Waits for the GPU, as a user's program does, without a call of Imbrex."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def be_late() -> None:
    """As a rank that compiles or writes a checkpoint."""
    if dist.get_rank() == LATE:
        time.sleep(SECONDS)


def calls_of_a_late_rank() -> list[str]:
    """Right results of three calls, and what was said in each."""
    ranks = dist.get_world_size()
    it.connect(wait_limit=1, entry_limit=100)
    a, b, x = torch.ones(8, 16), torch.ones(16, 32), torch.ones(64)
    it.matmul_all_reduce(a, b)
    it.all_reduce(x)
    synchronize()
    said = []

    def product() -> None:
        out = it.matmul_all_reduce(a, b)
        synchronize()
        assert torch.equal(out, torch.full((8, 32), 16.0 * ranks))

    def collective() -> None:
        out = it.all_reduce(x)
        synchronize()
        assert torch.equal(out, torch.full((64,), float(ranks)))

    for call in (product, collective):
        dist.barrier()
        be_late()
        said.append(said_in(call))
    return said


def test_a_late_rank_is_waited_for_and_named_once_a_call():
    pool = Pool(3)
    try:
        for rank, (product, collective) in enumerate(pool.run(calls_of_a_late_rank)):
            if rank == LATE:
                assert "has not come to" not in product + collective
                continue
            for said in (product, collective):
                assert said.count(f"imbrex: rank {rank}: rank {LATE} has not come to ") == 1, said
                assert "; waiting up to 100 s" in said, said
            assert "gemm_all_reduce M=8 N=32 K=48" in product, product
    finally:
        pool.close()


def replays_of_a_late_rank() -> str:
    """A graph's replays, to which one rank comes late."""
    ranks = dist.get_world_size()
    it.connect(wait_limit=1, entry_limit=100)
    a, b = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(16, 32, dtype=torch.bfloat16)
    it.matmul_all_reduce(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = it.matmul_all_reduce(a, b)
    dist.barrier()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    replay()
    dist.barrier()
    be_late()
    said = said_in(replay)
    assert torch.equal(out, torch.full((8, 32), 16.0 * ranks, dtype=torch.bfloat16))
    return said


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs are of GPUs")
def test_a_rank_that_is_late_to_a_replay_is_waited_for_and_named_once():
    pool = Pool(2)
    try:
        for rank, said in enumerate(pool.run(replays_of_a_late_rank)):
            assert said.count(f"rank {LATE} has not come to ") == (rank != LATE), said
    finally:
        pool.close()


def a_limit_that_is_set() -> tuple[str, float]:
    """Rank 1 does not come."""
    it.connect(wait_limit=2)
    it.all_reduce(torch.ones(64))
    dist.barrier()
    begun = time.monotonic()
    text = ""
    if dist.get_rank() != LATE:
        try:
            it.all_reduce(torch.ones(64))
            synchronize()
            it.check()
        except (imbrex.Error, RuntimeError) as error:
            text = str(error)
    seconds = time.monotonic() - begun
    dist.barrier()
    return text, seconds


def test_a_limit_that_is_set_holds_for_late_ranks_too():
    pool = Pool(2)
    try:
        text, seconds = pool.run(a_limit_that_is_set)[0]
        assert "waited longer than 2 s" in text and seconds < 30, (text, seconds)
    finally:
        pool.close()


def one_dies_late() -> tuple[str, float]:
    """Rank 1 dies while the others wait for it."""
    it.connect(wait_limit=1, entry_limit=600)
    it.all_reduce(torch.ones(64))
    synchronize()
    dist.barrier()
    if dist.get_rank() == LATE:
        time.sleep(3)
        os._exit(1)
    begun = time.monotonic()
    with pytest.raises((imbrex.Error, RuntimeError)) as caught:
        it.all_reduce(torch.ones(64))
        synchronize()
        it.check()
        raise AssertionError("no rank has died")
    return str(caught.value), time.monotonic() - begun


@kills_a_rank
def test_a_late_rank_that_dies_ends_the_wait_at_once():
    pool = Pool(3)
    try:
        answers = pool.answers(one_dies_late)
        for rank in (0, 2):
            kind, result = answers[rank]
            assert kind == "done", result
            text, seconds = result
            assert f"rank {LATE}" in text and seconds < 60, (text, seconds)
    finally:
        pool.close()


def limits_of_a_group() -> float:
    """Seconds that torch has for the group; its world connects, though nothing else is set."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=77))
    set_here = os.environ.pop("IMBREX_WAIT_LIMIT")
    try:
        timeout = _timeout_of(group)
        late = said_in(lambda: it.connect(group))
        assert not late, late
        assert world_of(name_of(group)).size == dist.get_world_size()
    finally:
        os.environ["IMBREX_WAIT_LIMIT"] = set_here
        it.destroy(group)
        dist.destroy_process_group(group)
    return timeout


def test_groups_wait_for_late_ranks_as_torch_does():
    pool = Pool(2)
    try:
        assert pool.run(limits_of_a_group) == [77.0] * 2
    finally:
        pool.close()


def comes_late_to_the_first_call(folder: str) -> None:
    """Others log once that they wait."""
    import logging

    kept = Path(folder) / f"rank{dist.get_rank()}"
    logging.getLogger("imbrex.torch").addHandler(logging.FileHandler(kept))
    dist.barrier()
    be_late()
    it.connect(wait_limit=1, entry_limit=100)
    assert it.all_reduce(torch.ones(64))[0].item() == dist.get_world_size()


def test_a_rank_that_is_late_to_the_first_call(tmp_path):
    pool = Pool(2)
    try:
        pool.run(comes_late_to_the_first_call, folder=str(tmp_path))
        said = (tmp_path / "rank0").read_text()
        wanted = f"rank 0: rank {LATE} did not come to the first call of group '0' yet; waiting up to 100 s"
        assert said.count(wanted) == 1, said
    finally:
        pool.close()
