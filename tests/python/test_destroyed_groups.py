"""Torch's groups that are destroyed and made again: their names come back, their worlds do not."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import backend_of
from pool import Pool
from torch.distributed.device_mesh import init_device_mesh

import imbrex
import imbrex.torch as it
from imbrex.torch import groups


def begin_again(folder: str, number: int, rank: int, size: int) -> None:
    """The default group of these ranks, in a store of its own."""
    if dist.is_initialized():
        name = dist.group.WORLD.group_name
        dist.destroy_process_group()
        with pytest.raises(RuntimeError, match=name):  # torch has forgotten it, too
            torch._C._distributed_c10d._resolve_process_group(name)
    dist.init_process_group(backend_of(rank), init_method=f"file://{folder}/{number}", rank=rank, world_size=size)


def expect_order(group: Any) -> None:
    """Each operator works among the ranks as the group has them now."""
    members = group.group if isinstance(group, Named) else group
    rank, size = dist.get_rank(members), dist.get_world_size(members)
    given = group.name if isinstance(group, Named) else group
    mine, eye = torch.full((1, size), float(rank)), torch.eye(size)
    assert it.all_gather_matmul(mine, eye, given)[:, 0].tolist() == list(range(size))
    rows = torch.arange(float(size)).repeat(size, 1).t().contiguous()
    assert it.matmul_reduce_scatter(rows, eye, given)[0, 0].item() == rank * size
    assert it.matmul_all_to_all(rows, eye, given)[:, 0].tolist() == [rank] * size
    assert it.matmul_all_reduce(mine, eye, given)[0, 0].item() == sum(range(size))
    assert it.all_reduce(mine, given)[0, 0].item() == sum(range(size))
    assert it.all_reduce_rms_norm(mine, mine, torch.ones(size), 1e-6, given)[1][0, 0].item() == sum(range(size)) + rank


class Named:
    """A group that is given by its name."""

    def __init__(self, group: Any) -> None:
        self.group, self.name = group, group.group_name


@pytest.fixture
def pool():
    """Ranks whose groups may be destroyed."""
    made = Pool(3)
    yield made
    made.close()


def renumbered(folder: str) -> None:
    """The same processes, each round with other numbers; the third round has fewer."""
    mine = dist.get_rank()
    for number, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 2], [0, 2, 1])):
        if mine not in order:
            dist.destroy_process_group()
            continue
        begin_again(folder, number, order.index(mine), len(order))
        mesh = init_device_mesh("cpu", (len(order),))
        for group in (None, dist.group.WORLD, Named(dist.group.WORLD), mesh) if number % 2 else (mesh, None):
            if group is mesh:
                expect_order(mesh.get_group())
                it.all_reduce(torch.ones(2), mesh)
            else:
                expect_order(group if group is not None else dist.group.WORLD)
                assert it.all_reduce(torch.ones(2), None)[0].item() == len(order)
    dist.destroy_process_group()
    assert not groups._worlds and not groups._names


def test_renumbered_ranks(pool, tmp_path):
    pool.run(renumbered, folder=str(tmp_path))


def of_other_ranks(folder: str) -> None:
    """A group of ranks 0 and 1, made again and again, then one of 0 and 2, which torch calls the same."""
    rank = dist.get_rank()
    names = []
    for number, members in enumerate(([0, 1], [0, 2], [1, 2], [0, 1])):
        begin_again(folder, number, rank, 3)
        group = dist.new_group(members)
        if rank not in members:
            continue
        names.append(group.group_name)
        for _ in range(3 - number):
            expect_order(group)
            it.destroy(group)
        expect_order(group)
    assert len({*names}) == 1


def test_groups_of_other_ranks_by_an_old_name(pool, tmp_path):
    pool.run(of_other_ranks, folder=str(tmp_path))


def old_objects(folder: str) -> None:
    """What was made with a destroyed group says so, and does not take its successor's place."""
    rank = dist.get_rank()
    old = dist.new_group([0, 1, 2])
    expect_order(old)
    bag = it.nn.ShardedEmbeddingBag([(6, 4)], batch_size=3, group=old)
    begin_again(folder, 0, rank, 3)
    new = dist.new_group([2, 1, 0])
    assert new.group_name == old.group_name
    for call in (
        lambda: it.all_reduce(torch.ones(2), old),
        lambda: it.matmul_all_reduce(torch.ones(2, 2), torch.ones(2, 2), old),
        lambda: it.connect(old),
    ):
        with pytest.raises(imbrex.InvalidInput, match="was destroyed; another group has that name now"):
            call()
    none = torch.zeros(0, dtype=torch.int64)
    for call in (bag.report, lambda: bag(none, torch.zeros(len(bag._op.own) * 3 + 1, dtype=torch.int64))):
        with pytest.raises(imbrex.InvalidInput, match="this world is closed: torch's group was destroyed"):
            call()
    it.destroy(old)
    it.check(old)
    expect_order(new)
    it.destroy(old)
    expect_order(new)


def test_what_is_left_of_a_destroyed_group(pool, tmp_path):
    pool.run(old_objects, folder=str(tmp_path))


def in_a_graph(folder: str) -> None:
    """A compiled graph holds a name: it works with the group that has it."""
    rank = dist.get_rank()

    @torch.compile(backend="eager")
    def gathered(x: torch.Tensor) -> torch.Tensor:
        return it.all_gather_matmul(x, torch.eye(3, device=x.device), dist.group.WORLD)

    for number, own in enumerate((rank, (rank + 1) % 3)):
        begin_again(folder, number, own, 3)
        assert gathered(torch.full((1, 3), float(own)))[:, 0].tolist() == [0, 1, 2]


def test_compiled_graphs(pool, tmp_path):
    pool.run(in_a_graph, folder=str(tmp_path))


def given_back(folder: str) -> None:
    """What the drop-in gave back to torch for an old group, it takes for a new one."""
    rank = dist.get_rank()
    real = groups._whereabouts
    counts = []
    for number in range(2):
        begin_again(folder, number, rank, 3)
        groups._whereabouts = real if number else lambda gpu: {"host": str(rank), "gpu": ""}
        before = it.stats().calls["all_gather_matmul"]
        with it.drop_in():
            torch.ops.symm_mem.fused_all_gather_matmul(
                torch.ones(2, 8), [torch.ones(8, 4)], 0, dist.group.WORLD.group_name
            )
        counts.append(it.stats().calls["all_gather_matmul"] - before)
    assert counts == [0, 1], counts


def test_the_drop_in(pool, tmp_path):
    pool.run(given_back, folder=str(tmp_path))


def ended_apart() -> tuple[float, str]:
    """Rank 1 ends its group a while after rank 0, and rank 2 after an error of its own."""
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2])
    expect_order(group)
    time.sleep(0.5 * rank)
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        try:
            if rank == 2:
                raise KeyError("of the program")
        except KeyError:
            dist.destroy_process_group()
        if dist.is_initialized():
            dist.destroy_process_group()
    return time.monotonic() - begun, " ".join(str(one.message) for one in told)


def test_ends_are_quiet(pool):
    for seconds, told in pool.run(ended_apart):
        assert seconds < 20 and not told


def ended_alone() -> float:
    """Rank 0 ends the group, the others keep theirs."""
    group = dist.new_group([0, 1, 2])
    expect_order(group)
    begun = time.monotonic()
    if dist.get_rank() == 0:
        dist.destroy_process_group(group)
        return time.monotonic() - begun
    time.sleep(5)
    with pytest.raises(imbrex.Error, match="rank 0"):
        it.all_reduce(torch.ones(2), group)
    os.environ["IMBREX_WAIT_LIMIT"] = "2"
    return 0.0


def test_an_end_that_the_others_do_not_share(tmp_path):
    pool = Pool(3, IMBREX_WAIT_LIMIT="2")
    try:
        assert pool.run(ended_alone)[0] < 4.5
    finally:
        pool.close()
