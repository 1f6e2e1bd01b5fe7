"""imbrex.torch.parallel's styles beside torch's own, and DTensors and parameters that lie otherwise than declared."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel as torchs
from device_for_tests import DEVICE
from groups_for_tests import group_of
from problems import integers
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import imbrex
import imbrex.torch as it
from imbrex.torch.parallel import ColwiseParallel, RowwiseParallel

RANKS, ROWS, DEPTH, COLUMNS = 4, 8, 32, 32


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
        with pytest.raises(NotImplementedError, match=f"{type(style).__name__} currently only support nn.Linear"):
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


def one_step(style: Any, module: nn.Module, x: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """What a layer says and its gradients, of small integers; and how both lie, where that is told."""
    model = parallelize_module(module, mesh, style)
    given = x.detach().requires_grad_(x.is_floating_point())
    y = model(given)
    local = y.to_local() if isinstance(y, DTensor) else y
    grad = integers(tuple(y.shape), 5, local.dtype)
    y.backward(distribute_tensor(grad, mesh, y.placements) if isinstance(y, DTensor) else grad)
    found = {"y": y, "weight": model.weight.grad, "bias": getattr(model, "bias", None), "x": given.grad}
    if found["bias"] is not None:
        found["bias"] = found["bias"].grad
    told = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in found.items()}
    return told | {"lies": getattr(y, "placements", None), "contiguous": local.is_contiguous()}


LAYOUTS = (None, Replicate(), Shard(0), Shard(1), Shard(-1))


def beside_torchs_own(rows: tuple[int, ...]) -> dict[str, int]:
    """Every layout of inputs and outputs, plain tensors and DTensors: the same bits, and lying alike."""
    mesh, before = mesh_of_all(), it.stats()
    whole = integers((*rows, DEPTH), 3, torch.float32)
    for name, given, wanted, local in itertools.product(
        ("ColwiseParallel", "RowwiseParallel"), LAYOUTS, LAYOUTS, (False, True)
    ):
        options = {"input_layouts": given, "output_layouts": wanted, "use_local_output": local}
        if any(isinstance(one, Shard) and whole.shape[one.dim] % RANKS for one in (given, wanted)):
            continue
        lies = given or (Replicate() if name == "ColwiseParallel" else Shard(-1))
        for x in (distribute_tensor(whole, mesh, [lies]).to_local(), distribute_tensor(whole, mesh, [lies])):
            mine = one_step(getattr(it.parallel, name)(**options), linear(), x, mesh)
            theirs = one_step(getattr(torchs, name)(**options), linear(), x, mesh)
            for key, value in theirs.items():
                same = torch.equal(mine[key], value) if isinstance(value, Tensor) else mine[key] == value
                assert same, (name, options, key, mine[key], value)
    after = it.stats()
    return {why: n - before.copies.get(why, 0) for why, n in after.copies.items() if "Parallel: " in why}


@pytest.mark.parametrize("rows", ((RANKS, RANKS * 2), (1, RANKS * 2), (RANKS * 3,)))
def test_every_layout_beside_torchs_own(ranks, rows):
    """A batch that is gathered along its sequence is copied, which is counted."""
    for copies in ranks.run(beside_torchs_own, rows=rows):
        assert not len(rows) == 2 or rows[0] == 1 or copies["ColwiseParallel: A is not row-major"] > 0, copies
        assert rows[0] != 1 or not any(copies.values()), copies


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def handed_back() -> None:
    """Torch's class runs what Imbrex' does not, with torch's result, and the reason is counted."""
    mesh = mesh_of_all()
    x = integers((ROWS, DEPTH), 3, torch.float32)
    words = torch.arange(ROWS, device=DEVICE)

    def embedding() -> nn.Module:
        made = nn.Embedding(ROWS, DEPTH, device=DEVICE)
        nn.init.constant_(made.weight, 3)
        return made

    def doubled() -> nn.Module:
        made = Doubled(DEPTH, COLUMNS, device=DEVICE)
        made.load_state_dict(linear().state_dict())
        return made

    def uneven() -> nn.Module:
        made = nn.Linear(DEPTH + 1, COLUMNS + 1, device=DEVICE)
        nn.init.ones_(made.weight)
        nn.init.ones_(made.bias)
        return made

    def weighed() -> nn.Module:
        return nn.utils.parametrizations.weight_norm(linear())

    wide = distribute_tensor(torch.ones(ROWS, DEPTH + 1, device=DEVICE), mesh, [Replicate()])
    odd = distribute_tensor(integers((ROWS + 1, DEPTH), 3, torch.float32), mesh, [Shard(0)])
    column, row = {"use_local_output": False}, {"output_layouts": Shard(0), "use_local_output": False}
    divides = "that do not divide by the ranks"
    cases: list[tuple[str, Any, dict[str, Any], Any, str]] = [
        ("ColwiseParallel", embedding, column, words, "layer of type Embedding"),
        ("RowwiseParallel", embedding, {"input_layouts": Replicate(), **row}, words, "layer of type Embedding"),
        ("ColwiseParallel", doubled, column, x, "forward that is not nn.Linear's"),
        ("ColwiseParallel", uneven, column, wide, f"out_features {divides}"),
        ("RowwiseParallel", uneven, {"input_layouts": Replicate(), **row}, wide, f"in_features {divides}"),
        ("ColwiseParallel", linear, column, odd, "dimension that does not divide by the ranks"),
        ("RowwiseParallel", linear, row, odd, "dimension that does not divide by the ranks"),
        ("ColwiseParallel", lambda: linear().double(), column, x.double(), "dtype"),
        ("RowwiseParallel", lambda: linear().double(), row, placed(x.double(), mesh, Shard(1)), "dtype"),
        ("RowwiseParallel", linear, {"output_layouts": Partial()}, placed(x, mesh, Shard(1)), "output that lies as "),
    ]
    for name, module, options, given, reason in cases:
        before = it.stats().fallbacks
        mine = one_step(getattr(it.parallel, name)(**options), module(), given, mesh)
        now = {why: n - before.get(why, 0) for why, n in it.stats().fallbacks.items() if n != before.get(why, 0)}
        assert len(now) == 1 and next(iter(now)).startswith(f"{name}: {reason}"), (now, name, reason)
        theirs = one_step(getattr(torchs, name)(**options), module(), given, mesh)
        for key, value in theirs.items():
            same = torch.equal(mine[key], value) if isinstance(value, Tensor) else mine[key] == value
            assert same, (name, options, reason, key, mine[key], value)

    with pytest.raises(
        imbrex.InvalidInput, match="codec = 'int8': torch runs this RowwiseParallel, without it, for the "
    ):
        parallelize_module(embedding(), mesh, RowwiseParallel(codec="int8"))
    double = parallelize_module(linear().double(), mesh, RowwiseParallel(codec="int8", tolerance=0.5))
    with pytest.raises(imbrex.InvalidInput, match=r"codec = 'int8': torch runs this RowwiseParallel.* for the dtype"):
        double(placed(x.double(), mesh, Shard(1)))
    # Layers with parameters of other names are torch's as they are, whatever it does with them.
    before = it.stats().fallbacks.get("ColwiseParallel: parameters that are not nn.Linear's", 0)
    with pytest.raises(KeyError, match="parameter name"):
        parallelize_module(weighed(), mesh, ColwiseParallel())
    assert it.stats().fallbacks["ColwiseParallel: parameters that are not nn.Linear's"] == before + 1


def test_what_goes_back_to_torch(ranks):
    ranks.run(handed_back)


def split_twice() -> None:
    """By torch's style and Imbrex', in either order: refused, where the first call failed without a reason."""
    mesh = mesh_of_all()
    one, other = linear(), linear()
    parallelize_module(one, mesh, torchs.ColwiseParallel())
    with pytest.raises(imbrex.InvalidInput, match="was split before"):
        parallelize_module(one, mesh, it.parallel.ColwiseParallel())
    parallelize_module(other, mesh, it.parallel.ColwiseParallel())
    with pytest.raises(RuntimeError, match="only be called once"):
        parallelize_module(other, mesh, torchs.ColwiseParallel())


def test_layers_that_are_split_twice(ranks):
    ranks.run(split_twice)


def test_names_and_arguments_are_torchs():
    """What torch's module exports is here, with its arguments, their kinds and defaults; Imbrex adds a codec alone."""
    for name in torchs.__all__:
        theirs, mine = getattr(torchs, name), getattr(it.parallel, name)
        assert mine is theirs or issubclass(mine, theirs), name
        own, taken = inspect.signature(mine).parameters, inspect.signature(theirs).parameters
        assert set(own) - set(taken) == ({"codec", "tolerance"} if name == "RowwiseParallel" else set()), name
        for key, value in taken.items():
            assert (own[key].kind, own[key].default) == (value.kind, value.default), (name, key)
    for style in (ColwiseParallel, RowwiseParallel):
        assert repr(style()) == repr(getattr(torchs, style.__name__)())
        for name in ("input_layouts", "output_layouts"):
            with pytest.raises(imbrex.InvalidInput, match=f"{name} is 'Shard': it must be a Placement"):
                style(**{name: "Shard"})
        with pytest.raises(TypeError, match="unexpected keyword argument 'overlap'"):
            style(overlap=True)


def in_autocast() -> None:
    """Products of autocast's type, with gradients of the parameters', as torch's own; none is handed back."""
    mesh, before = mesh_of_all(), it.stats().fallbacks
    x = integers((ROWS, DEPTH), 3, torch.float32)
    cases: tuple[tuple[str, dict[str, Any], Any], ...] = (
        ("ColwiseParallel", {}, Replicate()),
        ("ColwiseParallel", {"input_layouts": Shard(0)}, Shard(0)),
        ("RowwiseParallel", {}, Shard(1)),
        ("RowwiseParallel", {"output_layouts": Shard(0)}, Shard(1)),
    )
    for name, options, lies in cases:
        given = distribute_tensor(x, mesh, [lies]).to_local()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            mine = one_step(getattr(it.parallel, name)(**options), linear(), given, mesh)
            theirs = one_step(getattr(torchs, name)(**options), linear(), given, mesh)
        for key, value in theirs.items():
            same = torch.equal(mine[key], value) if isinstance(value, Tensor) else mine[key] == value
            assert same, (name, options, key, mine[key], value)
            assert not isinstance(value, Tensor) or mine[key].dtype == value.dtype, (name, options, key)
    assert it.stats().fallbacks == before


def test_autocast(ranks):
    ranks.run(in_autocast)
