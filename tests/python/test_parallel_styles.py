"""imbrex.torch.parallel's styles: DTensors that lie otherwise than declared, parameters that are placed already."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import integers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import imbrex
from imbrex.torch.parallel import ColwiseParallel, RowwiseParallel

RANKS, ROWS, DEPTH, COLUMNS = 4, 8, 16, 8


def mesh_of_all() -> DeviceMesh:
    return DeviceMesh.from_group(group_of(*range(RANKS)), DEVICE)


def linear() -> nn.Linear:
    made = nn.Linear(DEPTH, COLUMNS, device=DEVICE)
    with torch.no_grad():
        made.weight.copy_(integers((COLUMNS, DEPTH), 1, torch.float32))
        made.bias.copy_(integers((COLUMNS,), 2, torch.float32))
    return made


def placed(x: Tensor, mesh: DeviceMesh, placement: Any) -> DTensor:
    """The same tensor however it lies; as a Partial one it is the sum of what the ranks have."""
    if isinstance(placement, Partial):
        return DTensor.from_local(
            x if dist.get_rank() == 2 else torch.zeros_like(x), mesh, [placement], run_check=False
        )
    return distribute_tensor(x, mesh, [placement])


def every_placement() -> None:
    """The product and the gradients are those of an nn.Linear, wherever the input lies."""
    mesh, rank = mesh_of_all(), dist.get_rank()
    x, grad = integers((ROWS, DEPTH), 3, torch.float32), integers((ROWS, COLUMNS), 4, torch.float32)
    whole = linear()
    wanted_x = x.clone().requires_grad_()
    wanted = whole(wanted_x)
    wanted.backward(grad)
    styles: list[tuple[Any, Any, Any]] = [
        (ColwiseParallel(), 1, Shard(0)),
        (ColwiseParallel(input_layouts=Shard(0)), 1, Shard(0)),
        (RowwiseParallel(), None, Shard(1)),
        (RowwiseParallel(output_layouts=Shard(0)), 0, Shard(1)),
    ]
    for style, cut, of_weight in styles:
        for placement in (Replicate(), Shard(0), Shard(1), Partial()):
            model = parallelize_module(linear(), mesh, style)
            given = placed(x, mesh, placement).detach().requires_grad_()
            got = model(given)
            mine, grads = ((t if cut is None else t.chunk(RANKS, cut)[rank]) for t in (wanted.detach(), grad))
            what = (type(style).__name__, style.__dict__, placement)
            assert torch.equal(got, mine), what
            got.backward(grads)
            assert torch.equal(given.grad.full_tensor(), wanted_x.grad), what
            weight = model.weight.grad.to_local()
            assert torch.equal(weight, whole.weight.grad.chunk(RANKS, of_weight.dim)[rank]), what


def test_inputs_that_lie_otherwise(ranks):
    ranks.run(every_placement)


def parameters() -> None:
    """Placed as the style has it they stay; otherwise they are refused; without a source each rank takes its own."""
    mesh, rank = mesh_of_all(), dist.get_rank()
    again = parallelize_module(linear(), mesh, ColwiseParallel())
    part = again.weight
    assert torch.equal(parallelize_module(again, mesh, ColwiseParallel()).weight.to_local(), part.to_local())
    with pytest.raises(
        imbrex.InvalidInput, match=r"weight is a DTensor of .*Shard\(dim=0\).*: it must be of .*Shard\(dim=1\)"
    ):
        parallelize_module(again, mesh, RowwiseParallel())
    for style in (ColwiseParallel(), RowwiseParallel()):
        own = linear()
        with torch.no_grad():
            own.weight.fill_(rank)
        made = parallelize_module(own, mesh, style, src_data_rank=None)
        assert (made.weight.to_local() == rank).all()
        own = linear()
        with torch.no_grad():
            own.weight.fill_(rank + 5)
        assert (parallelize_module(own, mesh, style).weight.to_local() == 5).all()

    for style in (ColwiseParallel(), RowwiseParallel()):
        with pytest.raises(imbrex.InvalidInput, match=f"{type(style).__name__} of a Bilinear: it must be an nn.Linear"):
            parallelize_module(nn.Bilinear(DEPTH, DEPTH, COLUMNS), mesh, style)


def test_parameters_that_are_placed(ranks):
    ranks.run(parameters)


def another_mesh() -> None:
    pair = group_of(0, 1)
    mesh, small = mesh_of_all(), DeviceMesh.from_group(pair, DEVICE) if dist.get_rank() < 2 else None
    model = parallelize_module(linear(), mesh, ColwiseParallel())
    if small is not None:
        with pytest.raises(imbrex.InvalidInput, match=r"the input is a DTensor of .*: it must be of"):
            model(distribute_tensor(torch.ones(ROWS, DEPTH, device=DEVICE), small, [Replicate()]))
    assert model(torch.ones(ROWS, DEPTH, device=DEVICE)).shape == (ROWS, COLUMNS // RANKS)


def test_inputs_of_another_mesh(ranks):
    ranks.run(another_mesh)
