"""Worlds of torch's groups: when they are made, what ends them, and what is kept for them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of

import imbrex
import imbrex.torch as it
from imbrex.torch import extension, groups


def lazily() -> None:
    """The operators themselves connect a group that they do not know, as a compiled graph from a file has them."""
    fresh = dist.new_group([0, 1, 2, 3])
    assert fresh.group_name not in groups._worlds
    assert torch.ops.imbrex.all_reduce(torch.ones(3), fresh.group_name)[0].item() == 4
    assert groups._worlds[fresh.group_name].size == 4
    with pytest.raises(RuntimeError, match="group 'nobody' is none of this process's"):
        torch.ops.imbrex.all_reduce(torch.ones(3), "nobody")


def test_operators_connect_their_group(ranks):
    ranks.run(lazily)


def ended_and_made_again() -> None:
    """A world that was ended is made anew by the next call; ending none is no error."""
    fresh = dist.new_group([0, 1, 2, 3])
    for _ in range(3):
        assert it.connect(fresh) == fresh.group_name == it.connect(fresh)
        assert it.matmul_all_reduce(torch.ones(4, 4), torch.ones(4, 4), fresh)[0, 0].item() == 16
        it.check(fresh)
        it.destroy(fresh)
        it.destroy(fresh)
        it.check(fresh)
    assert it.all_reduce(torch.ones(2), fresh)[0].item() == 4
    it.destroy(fresh)


def test_destroy(ranks):
    ranks.run(ended_and_made_again)


def on_two_hosts() -> str:
    """Ranks 2 and 3 say that they are elsewhere."""
    fresh = dist.new_group([0, 1, 2, 3])
    real = groups._whereabouts
    groups._whereabouts = lambda gpu: {"host": "there" if dist.get_rank() > 1 else "here", "gpu": ""}
    try:
        with pytest.raises(imbrex.InvalidInput) as caught:
            it.all_reduce(torch.ones(2), fresh)
        with it.drop_in():
            a, b = torch.ones(4, 8), torch.ones(8, 4)
            gathered, _ = torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, fresh.group_name)
            assert gathered is not None and gathered.shape == (16, 8)
    finally:
        groups._whereabouts = real
    return str(caught.value)


def test_groups_on_several_hosts(ranks):
    """A clear error, the same on every rank; the drop-in hands such groups back to torch."""
    for text in ranks.run(on_two_hosts):
        assert "spans 2 hosts: ranks 0 and 2 are on different ones" in text


def warmed_up() -> tuple[int, int, int]:
    """Operators made by warm_up, by calls of the same shapes, and by one of another."""
    group = dist.new_group([0, 1, 2, 3])
    made = it.warm_up(
        [
            (it.matmul_reduce_scatter, (16, 8), (8, 12), torch.float32),
            (it.all_gather_matmul, (4, 8), (8, 3), torch.bfloat16, {"bias": torch.zeros(3, dtype=torch.bfloat16)}),
            (it.all_reduce, (64,), torch.float16, {"codec": "int8"}),
            (it.matmul_all_reduce, (16, 16), (16, 16), torch.float8_e4m3fn),
        ],
        group,
    )
    before = extension.calls()["made"]
    it.matmul_reduce_scatter(torch.ones(16, 8), torch.ones(8, 12), group)
    it.all_reduce(torch.ones(50, dtype=torch.float16), group, codec="int8")
    again = extension.calls()["made"] - before
    it.matmul_reduce_scatter(torch.ones(20, 8), torch.ones(8, 12), group)
    return made, again, extension.calls()["made"] - before


def test_warm_up(ranks):
    for answer in ranks.run(warmed_up):
        assert answer == (4, 0, 1)


def many_shapes() -> None:
    """More shapes than are kept, twice: results stay right, and threads do not pile up."""
    import os

    group = group_of(0, 1, 2, 3)
    for _ in range(2):
        for rows in range(1, 41):
            got = it.matmul_all_reduce(torch.ones(rows, 4), torch.ones(4, 4), group)
            assert got.shape == (rows, 4) and (got == 16).all()
    assert len(os.listdir("/proc/self/task")) < 150


def test_many_shapes(ranks):
    ranks.run(many_shapes)


def counted() -> None:
    """stats() counts calls of each operator."""
    group = group_of(0, 1, 2, 3)
    before = it.stats()
    it.all_reduce(torch.ones(2), group)
    it.matmul_all_reduce(torch.ones(4, 4), torch.ones(4, 4), group, out=torch.empty(4, 4))
    after = it.stats()
    assert after.calls["all_reduce"] - before.calls["all_reduce"] == 1
    assert after.calls["matmul_all_reduce"] - before.calls["matmul_all_reduce"] == 1
    assert after.calls["matmul_all_to_all"] == before.calls["matmul_all_to_all"]


def test_stats(ranks):
    ranks.run(counted)


def logged() -> list[str]:
    """What is said of a group when it is connected."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    log, kept = logging.getLogger("imbrex.torch"), Kept()
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    try:
        group = dist.new_group([1, 3])
        if dist.get_rank() in (1, 3):
            for _ in range(2):
                it.all_reduce(torch.ones(2), group)
    finally:
        log.removeHandler(kept)
        log.setLevel(logging.NOTSET)
    return [line.split(": ", 1)[1] for line in lines]


def test_one_line_a_group(ranks):
    shared = torch.cuda.device_count() <= 2  # ranks 1 and 3 have one of two
    place = "the CPU" if DEVICE == "cpu" else "one GPU, 2 ranks on it" if shared else "2 GPUs"
    assert ranks.run(logged) == [[], [f"Imbrex runs its operators, for ranks [1, 3], on {place}"], [], []]


def outside_of_a_mesh() -> str:
    """What a rank hears that uses a mesh without it."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [0, 1, 2])
    if dist.get_rank() < 3:
        assert it.all_reduce(torch.ones(2), mesh)[0].item() == 3
        return ""
    with pytest.raises(imbrex.InvalidInput) as caught:
        it.all_reduce(torch.ones(2), mesh)
    return str(caught.value)


def test_a_rank_outside_of_a_mesh(ranks):
    said = ranks.run(outside_of_a_mesh)[3]
    assert said.startswith("this process is no member of DeviceMesh(") and said.endswith("its ranks alone call"), said


def test_ids_hold_no_address():
    """The store shows them to all who reach it. With an address, ranks would meet over a network by that id alone."""
    code = """if True:
        import imbrex
        from imbrex.torch import groups
        assert b"@127.0.0.1" in imbrex.World.make_unique_id()
        made = groups._id_on_this_host()
        assert b"@" not in made and len(made) == len(imbrex.World.make_unique_id()), made
        imbrex.World.connect(made, 0, 1).close()
    """
    environment = os.environ | {"IMBREX_ADDRESS": "127.0.0.1:29500"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
