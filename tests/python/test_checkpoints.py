"""Checkpoints of split layers and of their optimizers, by torch's own calls: every rank gets back what it had."""

from __future__ import annotations

import copy
import io
import pickle
import re
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoints_for_tests import (
    FULL,
    HIDDEN,
    ROWS,
    WIDE,
    Model,
    Whole,
    adam,
    bits,
    expect_same,
    loaded,
    saved,
    step,
    trained,
    whole_of,
)
from device_for_tests import DEVICE, generator_of
from groups_for_tests import first, group_of
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils import prune

import imbrex
import imbrex.torch as it


def round_trip(folder: str) -> None:
    """Two ranks get back their own bits, and go on as if nothing had been saved."""
    group = first(2)
    if group is None:
        return
    for number, options in enumerate(({}, {"foreach": True}, {"fused": True}, {"amsgrad": True})):
        model, optimizer = trained(group, **options)
        own = bits(model, optimizer)
        other = [torch.empty_like(model.up.weight) for _ in range(2)]
        dist.all_gather(other, model.up.weight.detach(), group)
        assert not torch.equal(*other)
        saved(model, optimizer, f"{folder}/{number}", group)
        again, its_optimizer = loaded(f"{folder}/{number}", group, **options)
        expect_same(bits(again, its_optimizer), own)
        for one, its in ((model, optimizer), (again, its_optimizer)):
            step(one, its, 7)
        expect_same(bits(again, its_optimizer), bits(model, optimizer))


def test_round_trip(ranks, tmp_path):
    ranks.run(round_trip, folder=str(tmp_path))


def by_state_dict(folder: str) -> None:
    """The model's and the optimizer's own state dicts are as good, also before a first step."""
    group = first(2)
    if group is None:
        return
    model, optimizer = trained(group)
    own = bits(model, optimizer)
    dcp.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder, process_group=group
    )
    again, its_optimizer = trained(group, seed=3, steps=1)
    states = {"model": again.state_dict(), "optimizer": its_optimizer.state_dict()}
    weight = states["model"]["up.weight"]
    assert isinstance(weight, DTensor) and weight.shape == (WIDE, HIDDEN) and weight.placements == (Shard(0),)
    dcp.load(states, checkpoint_id=folder, process_group=group)
    fresh = Model(group, 4)
    fresh.load_state_dict(states["model"])
    fresh_optimizer = adam(fresh)
    fresh_optimizer.load_state_dict(states["optimizer"])
    expect_same(bits(fresh, fresh_optimizer), own)
    # A file of each rank's own, as without torch's checkpoints.
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    kept.seek(0)
    states = torch.load(kept, weights_only=True)
    fresh = Model(group, 4)
    fresh.load_state_dict(states["model"])
    fresh_optimizer = adam(fresh)
    fresh_optimizer.load_state_dict(states["optimizer"])
    expect_same(bits(fresh, fresh_optimizer), own)


def test_by_state_dict(ranks, tmp_path):
    ranks.run(by_state_dict, folder=str(tmp_path))


def other_numbers_of_ranks(folder: str) -> None:
    """Two ranks to one and back, and two to four: the whole stays the same."""
    group = first(2)
    want = None
    if group is not None:
        model, optimizer = trained(group)
        want = whole_of(model, optimizer)
        saved(model, optimizer, f"{folder}/two", group)
    dist.barrier()
    alone = first(1)
    if alone is not None:
        model, optimizer = loaded(f"{folder}/two", alone)
        expect_same(whole_of(model, optimizer), want)
        saved(model, optimizer, f"{folder}/one", alone)
    dist.barrier()
    if group is not None:
        expect_same(whole_of(*loaded(f"{folder}/one", group)), want)
    everyone = group_of(0, 1, 2, 3)
    got = whole_of(*loaded(f"{folder}/two", everyone))
    if want is not None:
        expect_same(got, want)


def test_other_numbers_of_ranks(ranks, tmp_path):
    ranks.run(other_numbers_of_ranks, folder=str(tmp_path))


def full_states() -> None:
    """What torch gathers goes back in on every rank, or from rank 0."""
    group = group_of(0, 1, 2, 3)
    model, optimizer = trained(group)
    own = bits(model, optimizer)
    states = get_state_dict(model, optimizer, options=FULL)
    assert states[0]["down.weight"].shape == (HIDDEN, WIDE) and not isinstance(states[0]["down.weight"], DTensor)
    for broadcast in (False, True):
        again = Model(group, 9)
        its = adam(again)
        given = copy.deepcopy(states) if not broadcast or dist.get_rank() == 0 else ({}, {})
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
        set_model_state_dict(again, given[0], options=options)
        set_optimizer_state_dict(again, its, given[1], options=options)
        expect_same(bits(again, its), own)


def test_full_states(ranks):
    ranks.run(full_states)


def of_torch() -> None:
    """An nn.Linear's weights are split where they are loaded; a rank's own part goes in as it is."""
    group, rank = group_of(0, 1, 2, 3), dist.get_rank()
    whole = Whole()
    x = torch.randn(ROWS, HIDDEN, generator=generator_of(1), device=DEVICE)
    for assign in (False, True):
        model = Model(group)
        model.load_state_dict(whole.state_dict(), assign=assign)
        assert torch.equal(model.up.weight, whole.up.weight.chunk(4)[rank])
        assert torch.equal(model.up.bias, whole.up.bias.chunk(4)[rank])
        assert torch.equal(model.down.weight, whole.down.weight.chunk(4, 1)[rank])
        torch.testing.assert_close(model(x), whole(x))
        assert model.down.weight.is_contiguous() and type(model.down.weight) is nn.Parameter
    # The moments of one process, too.
    optimizer, its = adam(whole), adam(model)
    step(whole, optimizer, 0)
    its.load_state_dict(optimizer.state_dict())
    want = optimizer.state[whole.down.weight]["exp_avg"].chunk(4, 1)[rank]
    assert torch.equal(its.state[model.down.weight]["exp_avg"], want)
    parts = {name: torch.full_like(one, rank) for name, one in model.named_parameters()}
    model.load_state_dict(parts)
    assert all(torch.equal(one, parts[name]) for name, one in model.named_parameters())
    of_parts = {
        number: {key: torch.full_like(value, rank) for key, value in its.state[one].items()}
        for number, one in enumerate(model.parameters())
    }
    its.load_state_dict({"state": of_parts, "param_groups": its.state_dict()["param_groups"]})
    assert all((its.state[one]["exp_avg"] == rank).all() for one in model.parameters())
    # torch's plan has DTensors as parameters, and gives the same names.
    mesh = DeviceMesh.from_group(group, DEVICE)
    plan = {"up": it.parallel.ColwiseParallel(), "down": it.parallel.RowwiseParallel()}
    split = torch.distributed.tensor.parallel.parallelize_module(Whole(), mesh, plan)
    model.load_state_dict(split.state_dict())
    torch.testing.assert_close(model(x), Whole()(x))
    assert torch.equal(model.up.weight, Whole().up.weight.chunk(4)[rank])


def test_weights_of_torch(ranks):
    ranks.run(of_torch)


def refusals() -> None:
    """What is of another shape is refused by name, and nothing of it is taken."""
    group = group_of(0, 1, 2, 3)
    model, optimizer = trained(group)
    before = bits(model, optimizer)
    rule = r"it must have \(16, 8\), as the whole has, or \(4, 8\), as rank \d's part of 4 has"
    given = Whole().state_dict() | {"up.weight": torch.ones(8, 8)}
    with pytest.raises(RuntimeError, match=rf"up\.weight is given with shape \(8, 8\): {rule}"):
        Model(group).load_state_dict(given)
    states = copy.deepcopy(optimizer.state_dict())
    states["state"][0]["exp_avg"] = torch.ones(8, 8)
    with pytest.raises(
        imbrex.InvalidInput,
        match=rf"exp_avg of weight of ColumnParallelLinear\(8, 16\) is given with shape \(8, 8\): {rule}",
    ):
        optimizer.load_state_dict(states)
    expect_same(bits(model, optimizer), before)
    with torch.no_grad():
        model.up.weight = nn.Parameter(torch.ones(5, HIDDEN))
    with pytest.raises(imbrex.InvalidInput, match=r"up\.weight has shape \(5, 8\): rank \d's part of 4 of \(16, 8\)"):
        model.state_dict()


def test_refusals(ranks):
    ranks.run(refusals)


class Tied(nn.Module):
    """A plain module that shares the last layer's parameter, and one that is named before it, or after it."""

    def __init__(self, group: Any, names: tuple[str, str]) -> None:
        super().__init__()
        head = it.nn.ColumnParallelLinear(HIDDEN, WIDE, group, device=DEVICE)
        embedding = nn.Embedding(head.weight.shape[0], HIDDEN, device=DEVICE)
        embedding.weight = head.weight
        for name in names:
            setattr(self, name, head if name == "head" else embedding)


def shared_parameters(folder: str) -> None:
    """A part that another module shares is saved and loaded as the layer's own is."""
    group = first(2)
    if group is None:
        return
    for number, names in enumerate((("head", "tokens"), ("atoms", "head"))):
        model = Tied(group, names)
        want = model.head.weight.detach().clone()
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/{number}", process_group=group)
        nn.init.zeros_(model.head.weight)
        state = model.state_dict()
        assert all(isinstance(one, DTensor) and one.shape == (WIDE, HIDDEN) for one in state.values()), names
        dcp.load({"model": state}, checkpoint_id=f"{folder}/{number}", process_group=group)
        model.load_state_dict(state)
        assert torch.equal(model.head.weight, want), names


def test_parameters_that_are_shared(ranks, tmp_path):
    ranks.run(shared_parameters, folder=str(tmp_path))


class WithMore(it.nn.ColumnParallelLinear):
    """A layer that has more parameters, and does not say how the ranks have them."""

    def __init__(self, group: Any) -> None:
        super().__init__(HIDDEN, WIDE, group, device=DEVICE)
        self.low = nn.Parameter(torch.zeros(self.weight.shape[0], 2, device=DEVICE))
        self.scale = nn.Parameter(torch.ones(1, device=DEVICE))


class WithMoreThatAreSplit(WithMore):
    """One that says so."""

    split = it.nn.ColumnParallelLinear.split | {"low": 0, "scale": None}


def further_parameters() -> None:
    """What a layer's own names do not tell is refused, where one rank's part was saved as the whole."""
    group = first(2)
    if group is None:
        return
    with pytest.raises(imbrex.InvalidInput, match=r"low of WithMore.*the class attribute `split` must say"):
        WithMore(group).state_dict()
    model = WithMoreThatAreSplit(group)
    nn.init.constant_(model.low, 1.0 + dist.get_rank())
    state = model.state_dict()
    assert state["low"].full_tensor()[:, 0].unique().tolist() == [1.0, 2.0]
    assert state["low"].shape == (WIDE, 2) and not isinstance(state["scale"], DTensor)
    model.load_state_dict({**state, "low": torch.full((WIDE, 2), 7.0)})
    assert model.low.eq(7).all()
    refused = "weight of .*ColumnParallelLinear.* is parametrized or pruned"
    for change in (
        nn.utils.parametrizations.weight_norm,
        lambda one: prune.random_unstructured(one, "weight", 0.5),
    ):
        layer = it.nn.ColumnParallelLinear(HIDDEN, WIDE, group, device=DEVICE)
        change(layer)
        optimizer = adam(layer)
        layer(torch.ones(2, HIDDEN, device=DEVICE)).sum().backward()
        optimizer.step()
        for call in (layer.state_dict, optimizer.state_dict):
            with pytest.raises(imbrex.InvalidInput, match=refused):
                call()


def test_further_parameters(ranks):
    ranks.run(further_parameters)


def groups_that_are_gone() -> None:
    """A layer of a destroyed group says so; so does one whose group's name has gone to other ranks."""
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2, 3])
    model = Model(group)
    dist.destroy_process_group(group)
    for call in (model.state_dict, lambda: model.load_state_dict(Whole().state_dict())):
        with pytest.raises((imbrex.InvalidInput, RuntimeError), match="was destroyed, or never made"):
            call()
    parts = {name: torch.full_like(one, rank) for name, one in model.named_parameters()}
    model.load_state_dict(parts)
    model = Model(group_of(0, 1, 2, 3))
    model.up._rank = (rank + 1) % 4
    with pytest.raises(imbrex.InvalidInput, match=rf"up\.weight is the part of rank {(rank + 1) % 4} of 4; in group"):
        model.state_dict()


def test_groups_that_are_gone(ranks):
    ranks.run(groups_that_are_gone)


class Odd(torch.optim.Optimizer):
    """Keeps a sum for each row, one number, and a dict."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state |= {"rows": torch.zeros(len(one), 1), "count": torch.zeros(()), "in": {"like": one.clone()}}
                state["rows"] += one.grad.reshape(len(one), -1).sum(1, keepdim=True)
                state["count"] += 1


def plain_states_of_other_shapes(optimizer: Odd, weight: nn.Parameter) -> None:
    """A rank takes its own from a plain tensor of all ranks, or is given its own; other shapes are refused."""
    kept = optimizer.state[weight]["rows"].clone()
    stack = optimizer.state_dict()["state"][0]["rows"].full_tensor()
    assert stack.shape == (2, *kept.shape) and not torch.equal(stack[0], stack[1])

    def load(rows: Tensor) -> None:
        states = optimizer.state_dict()
        states["state"][0]["rows"] = rows
        optimizer.state[weight]["rows"].zero_()
        optimizer.load_state_dict(states)

    for rows in (stack, kept):
        load(rows)
        assert torch.equal(optimizer.state[weight]["rows"], kept)
    rule = rf"\({HIDDEN}, 1\), of this rank, or \(2, {HIDDEN}, 1\), of all 2"
    for rows in (stack[:1], stack[:, :-1], kept[:-1]):
        given = re.escape(str(tuple(rows.shape)))
        with pytest.raises(
            imbrex.InvalidInput, match=f"^rows of .*weight.* is given with shape {given}: it must have {rule}"
        ):
            load(rows)


def states_of_other_shapes(folder: str) -> None:
    """What an optimizer keeps in a shape of its own comes back to each rank, and is not resharded."""
    group = first(2)
    if group is not None:
        layer = it.nn.RowParallelLinear(WIDE, HIDDEN, group)
        optimizer = Odd(layer.parameters())
        layer(torch.full((ROWS, WIDE // 2), dist.get_rank() + 1.0)).sum().backward()
        optimizer.step()
        own = optimizer.state[layer.weight]
        kept = {"rows": own["rows"].clone(), "like": own["in"]["like"].clone()}
        dcp.save(get_optimizer_state_dict(layer, optimizer), checkpoint_id=folder, process_group=group)
        own["rows"].zero_()
        own["in"]["like"].zero_()
        states = get_optimizer_state_dict(layer, optimizer)
        dcp.load(states, checkpoint_id=folder, process_group=group)
        set_optimizer_state_dict(layer, optimizer, states)
        now = optimizer.state[layer.weight]
        assert torch.equal(now["rows"], kept["rows"]) and torch.equal(now["in"]["like"], kept["like"])
        full = get_optimizer_state_dict(layer, optimizer, options=FULL)
        again = Odd(layer.parameters())
        again.load_state_dict(optimizer.state_dict())
        assert torch.equal(again.state[layer.weight]["rows"], kept["rows"])
        assert full["state"]["weight"]["rows"].shape == (2, HIDDEN, 1)
        set_optimizer_state_dict(layer, optimizer, full, options=FULL)
        assert torch.equal(optimizer.state[layer.weight]["rows"], kept["rows"])
        plain_states_of_other_shapes(optimizer, layer.weight)
    dist.barrier()
    everyone = group_of(0, 1, 2, 3)
    layer = it.nn.RowParallelLinear(WIDE, HIDDEN, everyone)
    optimizer = Odd(layer.parameters())
    states = get_optimizer_state_dict(layer, optimizer)
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load(states, checkpoint_id=folder, process_group=everyone)


def test_states_of_other_shapes(ranks, tmp_path):
    ranks.run(states_of_other_shapes, folder=str(tmp_path))


def copies() -> None:
    """Copies and what was pickled have state dicts of their own; graphs and autocast are as before."""
    group = group_of(0, 1, 2, 3)
    model = Model(group)
    x = torch.randn(ROWS, HIDDEN, generator=generator_of(1), device=DEVICE)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        optimizer = adam(again)
        step(again, optimizer, 0)
        assert not torch.equal(again.up.weight, model.up.weight)
        moment = optimizer.state_dict()["state"][0]["exp_avg"]
        assert isinstance(moment, DTensor) and moment.shape == (WIDE, HIDDEN)
        assert torch.equal(again.state_dict()["up.weight"].to_local(), again.up.weight)
        assert again.state_dict()["up.weight"].to_local().data_ptr() == again.up.weight.data_ptr()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    assert [*get_model_state_dict(compiled)] == [*model.state_dict()]
    for one in (model, compiled):
        with torch.autocast(DEVICE, torch.bfloat16):
            one(x).float().sum().backward()
    assert type(model.up.weight.grad) is Tensor and model.up.weight.grad.dtype == torch.float32
    # Norms of gradients, and optimizers, take these parameters beside others.
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam(model, fused=True).step()
    assert all(type(one) is nn.Parameter for one in model.parameters())
    assert type(model.state_dict(keep_vars=True)["up.weight"]) is nn.Parameter
    # Without memory, too.
    empty = it.nn.RowParallelLinear(WIDE, HIDDEN, group, device="meta").state_dict()["weight"]
    assert empty.is_meta and empty.shape == (HIDDEN, WIDE)


def test_copies_graphs_and_autocast(ranks):
    ranks.run(copies)
