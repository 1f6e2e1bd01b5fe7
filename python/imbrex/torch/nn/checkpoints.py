"""
State dicts in which a rank's part of a layer is a shard of the whole: a DTensor, as torch's checkpoints take it.

Parameters stay plain tensors: a DTensor costs the host in every call and step, and no optimizer or norm of gradients
takes it beside the plain parameters of other layers. So a layer's part becomes a DTensor where a state dict is made,
and plain again where one is loaded. Moments are converted alike. An optimizer does not know whose parameters it has, so
the layers are known here.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.optim import Optimizer

from ..._errors import InvalidInput
from ..groups import process_group


class Part(NamedTuple):
    """How a rank's part of a parameter lies in the whole one."""

    owner: str
    """What it is, for messages."""
    group: str
    rank: int
    ranks: int
    dim: int
    """The dimension that is split."""
    whole: torch.Size

    @property
    def shape(self) -> torch.Size:
        """The shape of the part."""
        return torch.Size(n // self.ranks if d == self.dim else n for d, n in enumerate(self.whole))

    def of(self, whole: Tensor) -> Tensor:
        """The rank's part of a whole tensor, in memory of its own."""
        return whole.chunk(self.ranks, self.dim)[self.rank].clone(memory_format=torch.contiguous_format)


def _group_of(part: Part) -> Any:
    group = process_group(part.group)
    if (group.rank(), group.size()) != (part.rank, part.ranks):
        raise InvalidInput(
            f"{part.owner} is the part of rank {part.rank} of {part.ranks}; in group '{part.group}' this is now rank "
            f"{group.rank()} of {group.size()}: make the layer in the group that it is to be saved or loaded in"
        )
    return group


def _kind(tensor: Tensor) -> str:
    """The type of device that a mesh for this tensor names."""
    if not tensor.is_meta:
        return tensor.device.type
    return "cuda" if torch.cuda.is_available() else "cpu"


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _spread(tensor: Tensor, part: Part) -> tuple[DeviceMesh, list[Placement]]:
    """The mesh over which the whole is spread, and how: the layer's group, after the dimensions that FSDP shards."""
    group = _group_of(part)
    if not isinstance(tensor, DTensor):
        return DeviceMesh.from_group(group, _kind(tensor)), [Shard(part.dim)]
    data = tensor.device_mesh
    root = data._get_root_mesh()
    ranks = dist.get_process_group_ranks(group)
    names = [n for n in root.mesh_dim_names or () if dist.get_process_group_ranks(root.get_group(n)) == ranks]
    if not names or not data.mesh_dim_names:
        raise InvalidInput(
            f"{part.owner} is a DTensor of {data}, and group '{part.group}' of ranks {ranks} is no dimension of the "
            "same mesh: both must be, as mesh['dp'] and mesh['tp'] are"
        )
    placements: list[Placement] = []
    for size, placed in zip(data.shape, tensor.placements, strict=True):
        if isinstance(placed, Shard) and placed.dim == part.dim:
            if tensor.shape[part.dim] % size:
                raise InvalidInput(
                    f"{part.owner} has shape {tuple(tensor.shape)}: dimension {part.dim} must divide by the {size} "
                    f"ranks of {data}"
                )
            # The layer's ranks cut first: each has a part of these dimensions' shards.
            placed = _StridedShard(part.dim, split_factor=part.ranks) if part.ranks > 1 else placed
        placements.append(placed)
    # Slices of the root by names leave out flattened dimensions; fully_shard joins meshes so, too.
    return DeviceMesh._concatenate([data, root[names[0]]]), [*placements, Shard(part.dim)]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_shard(tensor: Tensor, part: Part) -> DTensor:
    """The part as a DTensor of the whole, in the same memory."""
    if tensor.shape != part.shape:
        raise InvalidInput(
            f"{part.owner} has shape {tuple(tensor.shape)}: rank {part.rank}'s part of {part.ranks} of "
            f"{tuple(part.whole)} must have {tuple(part.shape)}"
        )
    mesh, placements = _spread(tensor, part)
    strides = _strides(part.whole)
    return DTensor.from_local(_local(tensor), mesh, placements, run_check=False, shape=part.whole, stride=strides)


def _whole(given: DTensor, owner: str) -> Tensor:
    """All of a DTensor, which its ranks put together."""
    place = given.device_mesh.get_coordinate()
    if place is None or int(given.device_mesh.mesh[tuple(place)]) != dist.get_rank():
        raise InvalidInput(
            f"{owner} is given as a DTensor of {given.device_mesh}, placed {given.placements}, of another rank than "
            f"{dist.get_rank()}: it must be this rank's own, or a whole tensor"
        )
    return given.full_tensor()


def as_part(given: Tensor, part: Part, like: Tensor) -> Tensor:
    """What is given for a part: the whole or the part, a plain tensor or a DTensor, as it lies in `like`."""
    if given.shape == part.whole and isinstance(given, DTensor):
        mesh, placements = _spread(like, part)
        if (given.device_mesh.shape, [*given.placements]) == (mesh.shape, placements):
            # A file of one rank's state dict tells of the ranks that wrote it, by other numbers perhaps. What torch
            # computes of such a tensor, as by detach(), tells of this rank.
            its, own = ([*(one.get_coordinate() or ())] for one in (given.device_mesh, mesh))
            if its != own:
                raise InvalidInput(
                    f"{part.owner} is given as the shard of place {its} among the ranks: it must be that of {own}, "
                    "which is this rank's, or a whole tensor"
                )
            local = given.to_local()
            if not isinstance(like, DTensor):
                return local
            mesh, placements = like.device_mesh, [*like.placements]
            strides = like.stride()
            return DTensor.from_local(local, mesh, placements, run_check=False, shape=like.shape, stride=strides)
        given = _whole(given, part.owner)
    if given.shape == part.whole and part.ranks > 1:
        _group_of(part)
        given = part.of(given)
    if given.shape != part.shape:
        raise InvalidInput(
            f"{part.owner} is given with shape {tuple(given.shape)}: it must have {tuple(part.whole)}, as the whole "
            f"has, or {tuple(part.shape)}, as rank {part.rank}'s part of {part.ranks} has"
        )
    if not isinstance(like, DTensor):
        return _whole(given, part.owner) if isinstance(given, DTensor) else given
    if isinstance(given, DTensor):
        return given
    return distribute_tensor(given.to(_kind(like)), like.device_mesh, like.placements, src_data_rank=None)


def as_stack(state: Tensor, part: Part, parameter: Tensor) -> DTensor:
    """What an optimizer keeps of a parameter in a shape of its own: the ranks' one after another, [ranks, ...]."""
    if isinstance(state, DTensor) or isinstance(parameter, DTensor):
        raise InvalidInput(
            f"{part.owner} has shape {tuple(state.shape)}: a state of a layer that FSDP shards must have "
            f"{tuple(part.shape)}, as the parameter"
        )
    mesh = DeviceMesh.from_group(_group_of(part), _kind(state))
    return DTensor.from_local(state.unsqueeze(0), mesh, [Shard(0)], run_check=False)


def from_stack(given: Tensor, part: Part, now: Any) -> Tensor:
    """The rank's own of a stack; `now` is what the optimizer has, if it has one."""
    if isinstance(given, DTensor):
        if given.shape[0] != part.ranks:
            raise InvalidInput(
                f"{part.owner} is given with shape {tuple(given.shape)}: it must have {tuple(part.whole)}, as the "
                f"whole parameter has, or begin with the {part.ranks} ranks, each of which keeps a shape of its own"
            )
        given = _whole(given, part.owner)[part.rank].clone()
    elif isinstance(now, Tensor) and given.shape == (part.ranks, *now.shape):
        given = given[part.rank].clone()
    if isinstance(now, Tensor) and given.shape != now.shape:
        raise InvalidInput(
            f"{part.owner} is given with shape {tuple(given.shape)}: it must have {tuple(now.shape)}, of this rank, or "
            f"{(part.ranks, *now.shape)}, of all {part.ranks}"
        )
    return given


_layers: weakref.WeakSet[Any] = weakref.WeakSet()


class Sharded(nn.Module):
    """A layer whose state dict has DTensors for the parameters that it has a part of."""

    def __init__(self) -> None:
        """Makes the layer known to optimizers' state dicts."""
        super().__init__()
        _layers.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same for copies."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _layers.add(self)

    def _part_of(self, name: str) -> Part | None:
        """How this parameter is split; None where each rank has all of it."""
        raise NotImplementedError

    def _expect_known(self) -> None:
        """Raises InvalidInput where it is not known how the ranks have a parameter."""
        raise NotImplementedError

    def _parts(self) -> Iterator[tuple[str, Tensor, Part]]:
        for name, parameter in self._parameters.items():
            part = None if parameter is None else self._part_of(name)
            if parameter is not None and part is not None:
                yield name, parameter, part


def _parts_in(module: nn.Module) -> Iterator[tuple[str, Tensor, Part]]:
    """The parameters of which this rank has a part, also those that another module shares with a layer."""
    if isinstance(module, Sharded):
        yield from module._parts()
    elif any(one is not None for one in module._parameters.values()):
        known = {id(one): (layer, name) for layer in [*_layers] for name, one in layer._parameters.items()}
        for name, parameter in module._parameters.items():
            layer, theirs = known.get(id(parameter), (None, ""))
            part = None if parameter is None or layer is None else layer._part_of(theirs)
            if parameter is not None and part is not None:
                yield name, parameter, part


def _given_out_by(module: nn.Module, destination: Any, prefix: str) -> None:
    if isinstance(module, Sharded):
        module._expect_known()
    for name, _, part in _parts_in(module):
        key = prefix + name
        destination[key] = as_shard(destination[key], part._replace(owner=key))


@torch.no_grad()
def _taken_in_by(module: nn.Module, state_dict: Any, prefix: str, errors: list[str]) -> None:
    parts = [*_parts_in(module)]
    for name, parameter, part in parts:
        key = prefix + name
        if not isinstance(state_dict.get(key), Tensor):
            continue
        try:
            state_dict[key] = as_part(state_dict[key], part._replace(owner=key), parameter)
        except InvalidInput as error:
            errors.append(str(error))
            state_dict[key] = parameter.detach()
    for name, own in module._parameters.items() if parts else ():
        given = state_dict.get(prefix + name)
        if isinstance(given, DTensor) and not isinstance(own, DTensor):
            state_dict[prefix + name] = _whole(given, prefix + name)


def _observe_modules() -> None:
    """A module of any kind may share a layer's parameter, as an embedding shares the last layer's."""
    give, take = nn.Module._save_to_state_dict, nn.Module._load_from_state_dict

    @functools.wraps(give)
    def save(self: nn.Module, destination: Any, prefix: str, keep_vars: bool) -> None:
        give(self, destination, prefix, keep_vars)
        if _layers and not keep_vars:
            _given_out_by(self, destination, prefix)

    @functools.wraps(take)
    def load(
        self: nn.Module,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if _layers:
            _taken_in_by(self, state_dict, prefix, error_msgs)
        take(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    nn.Module._save_to_state_dict = save  # type: ignore[method-assign]
    nn.Module._load_from_state_dict = load  # type: ignore[method-assign]


def _parts_of(optimizer: Optimizer) -> dict[int, tuple[Tensor, Part | None]]:
    """By its number in the optimizer: each parameter of the layers, and how it is split."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    wanted, known = {id(one) for one in parameters}, {}
    for layer in [*_layers]:
        if any(id(parameter) in wanted for parameter in layer.parameters()):
            layer._expect_known()
            for name, parameter in layer._parameters.items():
                known[id(parameter)] = (parameter, layer._part_of(name))
    return {number: known[id(one)] for number, one in enumerate(parameters) if id(one) in known}


def _converted(states: Any, convert: Callable[[str, Tensor, Any], Tensor], now: Any) -> Any:
    """The states of one parameter, whose tensors `convert` gets: by their names, and what the optimizer has of them."""
    found = {}
    for name, value in states.items():
        has = now.get(name) if isinstance(now, dict) else None
        if isinstance(value, dict):
            found[name] = _converted(value, convert, has)
        elif isinstance(value, Tensor) and value.dim():
            found[name] = convert(str(name), value, has)
        else:
            found[name] = value
    return found


def _given_out(optimizer: Optimizer, states: Any) -> Any:
    """An optimizer's state dict, in which states of the layers' parts are DTensors."""
    parts = _parts_of(optimizer) if _layers else {}
    numbers = [one for group in states["param_groups"] for one in group["params"]]
    state = {**states["state"]}
    for number, (parameter, part) in parts.items():
        found = state.get(numbers[number])
        if part is None or not isinstance(found, dict):
            continue

        def convert(name: str, value: Tensor, _: Any, part: Part = part, parameter: Tensor = parameter) -> Tensor:
            named = part._replace(owner=f"{name} of {part.owner}")
            return as_shard(value, named) if value.shape == part.shape else as_stack(value, named, parameter)

        state[numbers[number]] = _converted(found, convert, None)
    return {**states, "state": state} if parts else states


def _taken(states: Any, parameter: Tensor, part: Part | None, now: Any) -> Any:
    """The states that are given for a parameter, as an optimizer keeps them, which has those in `now`."""

    def convert(name: str, value: Tensor, has: Any) -> Tensor:
        if part is None:
            if isinstance(value, DTensor) and not isinstance(parameter, DTensor):
                return _whole(value, name)
            return value
        named = part._replace(owner=f"{name} of {part.owner}")
        of_parameter = value.shape in (part.whole, part.shape) if has is None else has.shape == part.shape
        return as_part(value, named, parameter) if of_parameter else from_stack(value, named, has)

    return _converted(states, convert, now)


def _taken_in(optimizer: Optimizer, states: Any) -> Any:
    """A state dict that an optimizer is to load, with this rank's parts in it."""
    parts = _parts_of(optimizer) if _layers else {}
    numbers = [one for group in states["param_groups"] for one in group["params"]]
    if not parts or len(numbers) != sum(len(group["params"]) for group in optimizer.param_groups):
        return states
    state = {**states["state"]}
    for number, (parameter, part) in parts.items():
        found = state.get(numbers[number])
        if isinstance(found, dict):
            state[numbers[number]] = _taken(found, parameter, part, optimizer.state.get(parameter))
    return {**states, "state": state}


def _observe_optimizers() -> None:
    """Optimizers' own hooks are of one optimizer, and nothing tells of those that take a layer's parameters."""
    give, take = Optimizer.state_dict, Optimizer.load_state_dict

    @functools.wraps(give)
    def state_dict(self: Optimizer) -> Any:
        return _given_out(self, give(self))

    @functools.wraps(take)
    def load_state_dict(self: Optimizer, state_dict: Any) -> None:
        # As the last hook: those of the user may give parameters other numbers.
        hook = self.register_load_state_dict_pre_hook(_taken_in)
        try:
            take(self, state_dict)
        finally:
            hook.remove()
        # ZeroRedundancyOptimizer hands states to the optimizer within before it comes here.
        within = getattr(self, "optim", None)
        if _layers and isinstance(within, Optimizer):
            for parameter, part in _parts_of(within).values():
                if parameter in within.state:
                    within.state[parameter] = _taken(within.state[parameter], parameter, part, None)

    Optimizer.state_dict = state_dict  # type: ignore[method-assign]
    Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]


_observe_modules()
_observe_optimizers()
