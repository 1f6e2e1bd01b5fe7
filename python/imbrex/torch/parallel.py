"""Plans for torch's parallelize_module: a model's linear layers, split and run by Imbrex."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from .._errors import InvalidInput
from .autograd import Shared
from .groups import name_of
from .ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter


def _local(x: Any) -> Any:
    return x.to_local() if isinstance(x, DTensor) else x


def _given(x: Any, mesh: DeviceMesh, layout: Placement) -> Any:
    """The rank's part of an input that is to lie so; a DTensor that lies otherwise is moved first."""
    if not isinstance(x, DTensor):
        return x
    if x.device_mesh != mesh:
        raise InvalidInput(f"the input is a DTensor of {x.device_mesh}: it must be of {mesh}")
    return (x if x.placements == (layout,) else x.redistribute(placements=[layout])).to_local()


def _shard(module: nn.Module, mesh: DeviceMesh, weight: Placement, bias: Placement, source: int | None) -> None:
    """
    Makes the parameters DTensors that hold each rank's part, as torch's own plans do.

    Rank `source` of the mesh gives the parts of all; where it is None, each rank takes its own.
    """
    for name, placement in (("weight", weight), ("bias", bias)):
        parameter = getattr(module, name, None)
        if parameter is None:
            continue
        if isinstance(placement, Shard) and parameter.shape[placement.dim] % mesh.size():
            raise InvalidInput(
                f"{name} is {tuple(parameter.shape)}: dimension {placement.dim} must divide by the {mesh.size()} ranks"
            )
        if not isinstance(parameter, DTensor):
            made = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=source)
        elif (parameter.device_mesh, parameter.placements) == (mesh, (placement,)):
            made = parameter
        else:
            raise InvalidInput(
                f"{name} is a DTensor of {parameter.device_mesh}, placed {parameter.placements}: "
                f"it must be of {mesh}, placed {(placement,)}, or a plain tensor"
            )
        setattr(module, name, nn.Parameter(made, requires_grad=parameter.requires_grad))


def _expect_linear(module: nn.Module, style: str) -> None:
    if not isinstance(module, nn.Linear):
        raise InvalidInput(f"{style} of a {type(module).__name__}: it must be an nn.Linear")


def _handed_out(y: Tensor, mesh: DeviceMesh, placement: Placement, local: bool) -> Any:
    return y if local else DTensor.from_local(y, mesh, [placement], run_check=False)


class ColwiseParallel(ParallelStyle):
    """
    Splits an nn.Linear's outputs over the ranks of the mesh.

    Args:
        input_layouts: Replicate(), or Shard(d): each rank has its part of dimension d, which is gathered first. An
            input that is no DTensor is taken to lie so; a DTensor that lies otherwise is moved first.
        use_local_output: whether the output is a plain tensor, this rank's columns; else a DTensor.

    Raises:
        InvalidInput: the layout is another, the module no nn.Linear, or its outputs do not divide by the ranks.

    Example:
        >>> plan = {"up": imbrex.torch.parallel.ColwiseParallel(input_layouts=Shard(1))}
        >>> mlp = parallelize_module(mlp, mesh["tp"], plan)
    """

    def __init__(self, *, input_layouts: Placement | None = None, use_local_output: bool = True) -> None:
        """Keeps the layouts."""
        super().__init__()
        self.input_layout = input_layouts if input_layouts is not None else Replicate()
        if not isinstance(self.input_layout, Replicate | Shard):
            raise InvalidInput(f"input_layouts is {input_layouts}: it must be Replicate() or Shard(d)")
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _expect_linear(module, "ColwiseParallel")
        _shard(module, device_mesh, Shard(0), Shard(0), self.src_data_rank)
        module.forward = partial(self._forward, module, device_mesh, name_of(device_mesh))
        return module

    def _forward(self, module: Any, mesh: DeviceMesh, group: str, x: Any) -> Any:
        weight, bias, given = _local(module.weight), _local(module.bias), _given(x, mesh, self.input_layout)
        if isinstance(self.input_layout, Shard):
            y = all_gather_matmul(given, weight.t(), group, gather_dim=self.input_layout.dim, bias=bias)
        else:
            if torch.is_grad_enabled() and given.requires_grad:
                given = Shared.apply(given, group)  # type: ignore[no-untyped-call]
            y = nn.functional.linear(given, weight, bias)
        return _handed_out(y, mesh, Shard(y.dim() - 1), self.use_local_output)


class RowwiseParallel(ParallelStyle):
    """
    Splits an nn.Linear's inputs over the ranks of the mesh, and sums its outputs.

    Args:
        output_layouts: Replicate(), or Shard(d): each rank keeps its part of dimension d of the sum.
        use_local_output: whether the output is a plain tensor; else a DTensor.
        codec: the sum travels in codes of so many bits, as for `matmul_all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum.

    Raises:
        InvalidInput: the layout is another, the module no nn.Linear, or its inputs do not divide by the ranks.

    Example:
        >>> plan = {"down": imbrex.torch.parallel.RowwiseParallel(output_layouts=Shard(1))}
        >>> mlp = parallelize_module(mlp, mesh["tp"], plan)
    """

    def __init__(
        self,
        *,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        codec: str | None = None,
        tolerance: float | None = None,
    ) -> None:
        """Keeps the layouts."""
        super().__init__()
        self.output_layout = output_layouts if output_layouts is not None else Replicate()
        if not isinstance(self.output_layout, Replicate | Shard):
            raise InvalidInput(f"output_layouts is {output_layouts}: it must be Replicate() or Shard(d)")
        self.use_local_output, self.codec, self.tolerance = use_local_output, codec, tolerance

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _expect_linear(module, "RowwiseParallel")
        _shard(module, device_mesh, Shard(1), Replicate(), self.src_data_rank)
        module.forward = partial(self._forward, module, device_mesh, name_of(device_mesh))
        return module

    def _forward(self, module: Any, mesh: DeviceMesh, group: str, x: Any) -> Any:
        weight, bias, given = _local(module.weight), _local(module.bias), _given(x, mesh, Shard(x.dim() - 1))
        extra: dict[str, Any] = {"bias": bias, "codec": self.codec, "tolerance": self.tolerance}
        if isinstance(self.output_layout, Shard):
            y = matmul_reduce_scatter(given, weight.t(), group, scatter_dim=self.output_layout.dim, **extra)
        else:
            y = matmul_all_reduce(given, weight.t(), group, **extra)
        return _handed_out(y, mesh, self.output_layout, self.use_local_output)
