"""The first call of a group: ranks that do not come, have ended, or refuse."""

from __future__ import annotations

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from launch_for_tests import Program
from pool import Pool, expect_others_told

import imbrex
import imbrex.torch as it
from imbrex.torch.meeting import Limits, limits_of, meet


def one_stays_away(away: int) -> tuple[str, float]:
    """Rank `away` makes no call; twice, since what the first left in the store must not be mistaken."""
    texts, seconds = [], 0.0
    for _ in range(2):
        dist.barrier()
        begun = time.monotonic()
        if dist.get_rank() != away:
            with pytest.raises(imbrex.Error) as caught:
                it.all_reduce(torch.ones(2))
            texts.append(str(caught.value))
            seconds = max(seconds, time.monotonic() - begun)
    dist.barrier()
    it.connect(wait_limit=60)  # later all come
    assert it.all_reduce(torch.ones(2))[0].item() == 4
    return " ".join(texts), seconds


@pytest.mark.parametrize("away", [0, 2])
def test_a_rank_that_stays_away(away):
    pool = Pool(4, IMBREX_WAIT_LIMIT="4")
    try:
        for rank, (text, seconds) in enumerate(pool.run(one_stays_away, away=away)):
            if rank != away:
                assert text.count(f"rank {away} did not come to the first call of group '0' within 4 s") == 2, text
                assert seconds < 15
    finally:
        pool.close()


def died_before() -> tuple[str, float]:
    """Rank 1 dies without a call."""
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(1)
    begun = time.monotonic()
    with pytest.raises(imbrex.Error) as caught:
        it.matmul_reduce_scatter(torch.ones(4, 4), torch.ones(4, 4))
    return str(caught.value), time.monotonic() - begun


def test_a_rank_that_died():
    """The others end long before the limit of 60 s."""
    expect_others_told(died_before)


def limits_differ() -> str:
    """Rank 2 gives a limit that is none."""
    with pytest.raises(imbrex.InvalidInput) as caught:
        it.connect(wait_limit=-1.0 if dist.get_rank() == 2 else 9.0)
    assert it.all_reduce(torch.ones(2))[0].item() == 4
    return str(caught.value)


def test_what_one_rank_refuses_all_refuse():
    pool = Pool()
    try:
        for text in pool.run(limits_differ):
            assert "wait_limit=-1.0 must be more than 0" in text
    finally:
        pool.close()


def test_what_earlier_groups_left_in_the_store():
    """Numbers, greetings and refusals of processes that are gone, and rounds of the same ranks one after another."""
    store = dist.HashStore()
    for rank in range(3):
        left = {"number": f"old{rank}", "place": {"round": "old"}, "process": None}
        for key in (f"here/{rank}", f"seen/old0/{rank}", f"welcome/old{rank}"):
            store.set(key, json.dumps(left))
        store.set(f"go/old{rank}", json.dumps({"why": "old"}))
    store.set("gone/old0", json.dumps({"why": "old"}))

    def rounds(rank: int) -> None:
        for number in range(20):
            found = meet(store, None, "g", [0, 1, 2], rank, Limits(60.0, 60.0), {"rank": rank, "round": number})
            assert found == [{"rank": peer, "round": number} for peer in range(3)]

    with ThreadPoolExecutor(3) as threads:
        for one in [threads.submit(rounds, rank) for rank in range(3)]:
            one.result()
    assert store.num_keys() <= 20, "each round leaves its keys"


def test_who_came_and_left_is_not_waited_for():
    """A rank that comes when the others have given up names rank 0, and no rank that has been there."""
    store = dist.HashStore()

    def told(rank: int) -> str:
        with pytest.raises(imbrex.Error) as caught:
            meet(store, None, "g", [0, 1, 2, 3], rank, Limits(1.0, 1.0), {"rank": rank})
        return str(caught.value)

    with ThreadPoolExecutor(3) as threads:
        for text in threads.map(told, [0, 1, 2]):
            assert "rank 3 did not come" in text, text
    began = time.monotonic(), time.process_time()
    assert told(3).startswith("rank 0 did not come")
    waited, worked = time.monotonic() - began[0], time.process_time() - began[1]
    assert waited >= 1.0 and worked < 0.5, f"{worked} s of work in {waited} s: it looks again and again"


STORE = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
import imbrex, imbrex.torch as it
if dist.get_rank() == 0:
    time.sleep(1)
    if sys.argv[1] == "dies":
        os._exit(0)
    os.kill(os.getpid(), 19)
begun = time.monotonic()
try:
    it.all_reduce(torch.ones(2))
except imbrex.Error as error:
    print(f"{time.monotonic() - begun:.1f}|{error}", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["dies", "stops"])
def test_the_store_fails(how, tmp_path):
    """Rank 0 keeps the store of the others: they are told by Imbrex' error, within the limit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "ranks.py"
    script.write_text(STORE)
    path = os.pathsep.join([str(Path(imbrex.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "IMBREX_WAIT_LIMIT": "3"}
    names |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    ranks = [Program([str(script), how], {**os.environ, **names, "RANK": str(rank)}) for rank in range(2)]
    try:
        told = ranks[1].communicate(timeout=120)[0]
    finally:
        for one in ranks:
            one.close()
    seconds, _, text = told.partition("|")
    assert float(seconds) < 20
    if how == "dies":
        assert ("torch's store" in text and "rank 0" in text) or "rank 0 (pid" in text
    else:
        assert "torch's store" in text and "did not answer within 3 s" in text


def test_the_limits_form():
    """A limit from the environment is read as the library reads it."""
    for given, name in ((float("nan"), "wait_limit=nan"), (-1.0, "wait_limit=-1.0"), (2e9, "wait_limit=")):
        with pytest.raises(imbrex.InvalidInput, match=name):
            limits_of(given, 0.0, 600.0)
        with pytest.raises(imbrex.InvalidInput, match=name.replace("wait", "entry")):
            limits_of(0.0, given, 600.0)


def test_a_limit_that_is_set_holds_for_both(monkeypatch):
    """Else ranks are waited for as long as the group has it."""
    monkeypatch.delenv("IMBREX_WAIT_LIMIT", raising=False)
    assert limits_of(0.0, 0.0, 77.0) == (30.0, 77.0)
    assert limits_of(3.0, 0.0, 77.0) == (3.0, 3.0)
    assert limits_of(3.0, 5.0, 77.0) == (3.0, 5.0)
    monkeypatch.setenv("IMBREX_WAIT_LIMIT", "9")
    assert limits_of(0.0, 0.0, 77.0) == (9.0, 9.0)
    assert limits_of(3.0, 0.0, 77.0) == (3.0, 3.0)
