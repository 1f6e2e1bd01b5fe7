"""Megatron-core's arguments of its two parallel linear layers: what they come to here, and which are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import InvalidInput
from ..autograd import is_recorded
from ..collect import gather
from ..groups import Group, name_of, rank_of, size_of

# Arguments, and fields of `config`, that have no counterpart, with the one value that asks for nothing.
_REFUSED = {
    "stride": 1,
    "keep_master_weight_for_test": False,
    "skip_weight_param_allocation": False,
    "embedding_activation_buffer": None,
    "grad_output_buffer": None,
    "is_expert": False,
    "disable_grad_reduce": False,
}
_REFUSED_OF_CONFIG = {
    "gradient_accumulation_fusion": False,
    "defer_embedding_wgrad_compute": False,
    "cpu_offloading": False,
}
_OF_COLUMNS_ALONE = (
    "skip_weight_param_allocation",
    "embedding_activation_buffer",
    "grad_output_buffer",
    "disable_grad_reduce",
)


@dataclass(frozen=True)
class Request:
    """What a layer is to be, whichever way its arguments were named."""

    in_features: int
    out_features: int
    group: Group
    sequence_parallel: bool
    bias: bool
    device: Any
    dtype: Any
    config: Any
    init_method: Callable[[Tensor], Any] | None

    @property
    def is_drawn(self) -> bool:
        """Whether the layer draws its weight."""
        return self.config is None or bool(getattr(self.config, "perform_initialization", True))


def read(
    layer: str,
    sizes: tuple[int | None, int | None],
    group: Group,
    sequence_parallel: bool,
    bias: bool | None,
    device: Any,
    dtype: Any,
    config: Any,
    init_method: Callable[[Tensor], Any] | None,
    others: dict[str, Any],
) -> Request:
    """
    The request that a constructor's arguments make. `others` are those that only Megatron-core's layers have.

    Raises:
        NotImplementedError: one asks for what the layer does not do.
        InvalidInput: two contradict each other.
        TypeError: the layer has no such argument, or a size is missing.
    """
    others = dict(others)
    found = []
    for own, theirs, size in zip(("in_features", "out_features"), ("input_size", "output_size"), sizes, strict=True):
        value = others.pop(theirs, None)
        if (size is None) == (value is None):
            raise TypeError(f"{layer} needs {own}, or {theirs}, and not both")
        found.append(int(value if size is None else size))
    tp_group = others.pop("tp_group", None)
    if group is not None and tp_group is not None:
        raise InvalidInput(f"group and tp_group = {tp_group!r}: one of them may be given")
    others.pop("tp_comm_buffer_name", None)  # a buffer of TransformerEngine's, which Megatron's own layers do not use
    for name, value in others.items():
        if name not in _REFUSED or (name in _OF_COLUMNS_ALONE and layer != "ColumnParallelLinear"):
            raise TypeError(f"{layer} got an unexpected keyword argument '{name}'")
        _expect_value(layer, name, value, _REFUSED[name])
    group = group if tp_group is None else tp_group
    if config is not None:
        for name, needed in _REFUSED_OF_CONFIG.items():
            _expect_value(layer, f"config.{name}", getattr(config, name, needed), needed)
        sequence_parallel = sequence_parallel or bool(getattr(config, "sequence_parallel", False))
        dtype = getattr(config, "params_dtype", None) if dtype is None else dtype
        device = _device(config) if device is None else device
        group = _group(config) if group is None else group
    # Megatron's layers have a bias where nothing is said, those without a config none.
    has_bias = config is not None if bias is None else bias
    return Request(found[0], found[1], group, sequence_parallel, has_bias, device, dtype, config, init_method)


def _expect_value(layer: str, name: str, value: Any, needed: Any) -> None:
    if value is not needed and value != needed:
        raise NotImplementedError(f"{name} = {value!r}: Imbrex' {layer} does not do it; it must be {needed!r}")


def _device(config: Any) -> Any:
    if getattr(config, "use_cpu_initialization", False):
        return "cpu"
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def _group(config: Any) -> Group:
    """The tensor-parallel group that Megatron-core has, if it is in use; else all ranks, if there are as many."""
    state = sys.modules.get("megatron.core.parallel_state")
    found: Group = None if state is None else state.get_tensor_model_parallel_group(check_initialized=False)
    ranks, wanted = size_of(name_of(found)), getattr(config, "tensor_model_parallel_size", None)
    if wanted is not None and wanted != ranks:
        raise InvalidInput(
            f"tp_group is None with config.tensor_model_parallel_size = {wanted}: "
            f"there are {ranks} ranks, so it must be given"
        )
    return found


def mark(layer: Any, request: Request, split: Mapping[str, int | None], bias_outside: bool) -> None:
    """Gives a layer that was made by a config what Megatron-core looks for in its own."""
    if request.config is None:
        return
    layer.config = request.config
    layer.input_size, layer.output_size = request.in_features, request.out_features
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        if parameter is None:
            continue
        parameter.allreduce = True
        if split[name] is not None:
            parameter.tensor_model_parallel = True
            parameter.partition_dim, parameter.partition_stride = split[name], 1
        else:
            # Megatron-core sums the gradients of such parameters over the ranks. Where the layer adds the bias itself,
            # each rank's gradient is the whole one already.
            parameter.sequence_parallel = request.sequence_parallel and bias_outside
    layer.register_load_state_dict_pre_hook(_without_extra_state)


def _without_extra_state(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Takes away what checkpoints of Megatron's layers have for TransformerEngine's sake."""
    state.pop(f"{prefix}_extra_state", None)


class Joined(torch.autograd.Function):
    """Every rank's columns, side by side: the same on every rank, as is the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        """All columns."""
        ctx.group = group
        return gather(x, group, x.dim() - 1).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """The gradient of the rank's own columns."""
        return Parted.apply(dy, ctx.group) if is_recorded(dy) else own_columns(dy, ctx.group), None  # type: ignore[no-untyped-call]


class Parted(torch.autograd.Function):
    """The rank's own columns of what is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        """The columns."""
        ctx.group = group
        return own_columns(x, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Every rank's, side by side."""
        if is_recorded(dy):
            return Joined.apply(dy, ctx.group), None  # type: ignore[no-untyped-call]
        return gather(dy, ctx.group, dy.dim() - 1).contiguous(), None


def own_columns(x: Tensor, group: str) -> Tensor:
    """A copy of this rank's part of the last dimension."""
    ranks = size_of(group)
    if x.shape[-1] % ranks:
        raise InvalidInput(f"the input is {tuple(x.shape)}: its last dimension must divide by the {ranks} ranks")
    part = x.shape[-1] // ranks
    return x.narrow(-1, rank_of(group) * part, part).contiguous()


def refuse_sharded_state_dict(layer: nn.Module) -> None:
    """Raises: what Megatron-core takes for a layer without such a method would save one rank's part as the whole."""
    raise NotImplementedError(
        f"sharded_state_dict of Imbrex' {type(layer).__name__}: state_dict() has the "
        "shards that torch.distributed.checkpoint saves"
    )
