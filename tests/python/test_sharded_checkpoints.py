"""Checkpoints of layers that data parallelism shards once more, and of embedding tables."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoints_for_tests import (
    FULL,
    HIDDEN,
    WIDE,
    Model,
    adam,
    bits,
    expect_same,
    loaded,
    saved,
    step,
    trained,
    whole_of,
)
from device_for_tests import DEVICE
from groups_for_tests import first, group_of
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import imbrex
import imbrex.torch as it


@cache
def plane() -> DeviceMesh:
    return init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))


def with_fsdp(folder: str) -> None:
    """Layers that fully_shard has cut again are saved whole, and come back to four ranks, two, or one."""
    from torch.distributed.fsdp import fully_shard

    def sharded(seed: int, mesh: DeviceMesh) -> tuple[Any, Any]:
        model = Model(mesh["tp"], seed)
        for part in (model.up, model.down):
            fully_shard(part, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        return model, adam(model)

    def locals_of(model: Any, optimizer: Any) -> dict[str, Tensor]:
        return {name: getattr(one, "_local_tensor", one) for name, one in bits(model, optimizer).items()}

    model, optimizer = sharded(0, plane())
    for number in range(2):
        step(model, optimizer, number)
    own, want = locals_of(model, optimizer), whole_of(model, optimizer)
    assert want["up.weight"].shape == want["up.weight.exp_avg"].shape == (WIDE, HIDDEN)
    plain, its = trained(plane()["tp"])
    for name, value in whole_of(plain, its).items():
        torch.testing.assert_close(want[name], value, msg=name)
    saved(model, optimizer, folder, None)
    again, its = sharded(9, plane())
    states = dict(zip(("model", "optimizer"), get_state_dict(again, its), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(again, its, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    expect_same(locals_of(again, its), own)
    for one, optimizer_of_it in ((model, optimizer), (again, its)):
        step(one, optimizer_of_it, 7)
    expect_same(locals_of(again, its), locals_of(model, optimizer))
    expect_same(whole_of(*loaded(folder, group_of(0, 1, 2, 3))), want)
    if (alone := first(1)) is not None:
        expect_same(whole_of(*loaded(folder, alone)), want)
    # From whole tensors.
    again, its = sharded(9, plane())
    weights = {name: want[name] for name, _ in again.named_parameters()}
    set_model_state_dict(again, dict(weights), options=FULL)
    expect_same(get_model_state_dict(again, options=FULL), weights)
    # A state of a shape of its own, which is no DTensor, has no place among ranks of two kinds.
    its = torch.optim.SGD(again.parameters(), lr=0.1)
    its.state[again.up.weight]["rows"] = torch.ones(3)
    with pytest.raises(imbrex.InvalidInput, match=r"has shape \(3,\): a state of a layer that FSDP shards must have"):
        its.state_dict()


def test_with_fsdp(ranks, tmp_path):
    ranks.run(with_fsdp, folder=str(tmp_path))


def meshes() -> None:
    """A flattened dimension is as good as another; a group beside the mesh and an uneven cut are refused."""
    from torch.distributed.fsdp import fully_shard

    cube = init_device_mesh(DEVICE, (2, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
    torch.manual_seed(0)
    layer = it.nn.ColumnParallelLinear(HIDDEN, WIDE, cube["tp"], device=DEVICE)
    want = layer.state_dict()["weight"].full_tensor()
    for mesh in (cube["dp", "cp"]._flatten("both"), cube["cp", "dp"]):
        again = copy.deepcopy(layer)
        fully_shard(again, mesh=mesh)
        assert torch.equal(again.state_dict()["weight"].full_tensor(), want)
        again.load_state_dict({"weight": 2 * want})
        assert torch.equal(again.state_dict()["weight"].full_tensor(), 2 * want)
    uneven = it.nn.ColumnParallelLinear(HIDDEN, 6, cube["tp"], device=DEVICE)
    beside = it.nn.ColumnParallelLinear(HIDDEN, WIDE, group_of(0, 1, 2, 3), device=DEVICE)
    for one in (uneven, beside):
        fully_shard(one, mesh=cube["dp"])
    with pytest.raises(imbrex.InvalidInput, match=r"weight has shape \(3, 8\): dimension 0 must divide by the 2 ranks"):
        uneven.state_dict()
    with pytest.raises(imbrex.InvalidInput, match=r"weight is a DTensor of .* is no dimension of the same mesh"):
        beside.state_dict()


def test_meshes(ranks):
    ranks.run(meshes)


def zero_redundancy(folder: str) -> None:
    """torch's ZeroRedundancyOptimizer over the other dimension, by files of which each is loaded by two ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, data = dist.get_rank(), plane()["dp"].get_group()
    model = Model(plane()["tp"])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=data, lr=0.01)
    step(model, optimizer, 0)
    inner = optimizer.optim.state
    own = {one: {key: value.clone() for key, value in state.items()} for one, state in inner.items()}
    assert 0 < len(own) < len([*model.parameters()])
    optimizer.consolidate_state_dict(to=0)
    if rank < 2:
        torch.save((model.state_dict(), optimizer.state_dict()), f"{folder}/{rank}.pt")
    dist.barrier()
    step(model, optimizer, 1)
    weights, states = torch.load(f"{folder}/{rank % 2}.pt", weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
    for one, state in own.items():
        expect_same(inner[one], state)
    step(model, optimizer, 1)
    # The file of the other rank of the layer is not this rank's.
    weights, states = torch.load(f"{folder}/{(rank + 1) % 2}.pt", weights_only=True)
    with pytest.raises(RuntimeError, match=r"up\.weight is given as the shard of place \[\d\] among the ranks"):
        model.load_state_dict(weights)
    with pytest.raises(imbrex.InvalidInput, match=r"exp_avg of weight of .* is given as the shard of place"):
        adam(model).load_state_dict(states)


def test_zero_redundancy(ranks, tmp_path):
    ranks.run(zero_redundancy, folder=str(tmp_path))


def tables(folder: str) -> None:
    """Tables' shards come back to whatever rank holds the same columns; other columns are refused."""
    group = group_of(0, 1, 2, 3)
    sizes, options = (
        [(10, 8), (6, 4), (7, 4), (5, 4)],
        {"batch_size": 8, "optimizer": "row_wise_adagrad", "device": DEVICE},
    )
    shards = [(0, 0, 0, 4), (0, 1, 4, 8), (1, 2, 0, 4), (2, 3, 0, 4), (3, 0, 0, 4)]
    bag = it.nn.ShardedEmbeddingBag(sizes, group=group, shards=shards, **options)
    for name, state in bag.named_buffers():
        state.fill_(dist.get_rank() + len(name))
    own = {name: one.clone() for name, one in bag.state_dict().items()}
    dcp.save(get_model_state_dict(bag), checkpoint_id=folder)
    bag.reset_parameters()
    states = get_model_state_dict(bag)
    dcp.load(states, checkpoint_id=folder)
    set_model_state_dict(bag, states)
    expect_same(dict(bag.state_dict()), own)
    # On other ranks.
    moved = [(table, 3 - rank, begin, end) for table, rank, begin, end in shards]
    other = it.nn.ShardedEmbeddingBag(sizes, group=group, shards=moved, **options)
    states = get_model_state_dict(other)
    dcp.load(states, checkpoint_id=folder)
    set_model_state_dict(other, states)
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, own)
    expect_same(dict(other.state_dict()), everyone[3 - dist.get_rank()])
    # In other columns.
    whole = [(0, 0, 0, 8), (1, 1, 0, 4), (2, 3, 0, 4), (3, 2, 0, 4)]
    other = it.nn.ShardedEmbeddingBag(sizes, group=group, shards=whole, **options)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: table0_0_8"):
        dcp.load(get_model_state_dict(other), checkpoint_id=folder)
    if dist.get_rank() == 0:
        rule = r"table0_0_8 is not given, but table0_0_4: shards are loaded with the columns that they were saved with"
        with pytest.raises(RuntimeError, match=rule):
            other.load_state_dict(own)
    bag.close()
    other.close()


def test_tables(ranks, tmp_path):
    ranks.run(tables, folder=str(tmp_path))
