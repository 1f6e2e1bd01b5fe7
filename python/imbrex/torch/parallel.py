"""
Plans for torch's parallelize_module, with the names and arguments of `torch.distributed.tensor.parallel`.

`ColwiseParallel` and `RowwiseParallel` are classes of Imbrex, which runs linear layers by them; the others are torch's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import Partial as _Partial
from torch.distributed.tensor import parallel as _torchs
from torch.distributed.tensor.parallel import ParallelStyle as ParallelStyle
from torch.distributed.tensor.parallel import PrepareModuleInput as PrepareModuleInput
from torch.distributed.tensor.parallel import PrepareModuleInputOutput as PrepareModuleInputOutput
from torch.distributed.tensor.parallel import PrepareModuleOutput as PrepareModuleOutput
from torch.distributed.tensor.parallel import SequenceParallel as SequenceParallel
from torch.distributed.tensor.parallel import loss_parallel as loss_parallel
from torch.distributed.tensor.parallel import parallelize_module as parallelize_module
from torch.distributed.tensor.placement_types import Placement

from .._errors import InvalidInput
from .autocast import cast
from .autocast import is_on as autocast_is_on
from .autograd import Shared, recorded
from .groups import name_of, size_of
from .ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from .refusals import b_lying, lying, why_no_product, why_not_of_dtype, why_not_parted, why_not_placed, why_not_split
from .stats import count_copy, count_fallback


def _local(x: Any) -> Any:
    return x.to_local() if isinstance(x, DTensor) else x


def _operands(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """X, this rank's part of the weight, K x N, and of the bias, in the type that autocast has."""
    given = (x, _local(module.weight), _local(module.bias))
    x, weight, bias = cast(*given) if autocast_is_on() else given
    return x, weight.t(), bias


def _as_torch_has_it(y: Tensor, style: str) -> Tensor:
    """The result without gaps, as torch's own product lies."""
    if y.is_contiguous():
        return y
    count_copy(style, "result along another dimension than the first")
    return y.contiguous()


def _expect_placement(name: str, layout: Any) -> None:
    if layout is not None and not isinstance(layout, Placement):
        raise InvalidInput(f"{name} is {layout!r}: it must be a Placement, such as Replicate() or Shard(1)")


def _parameters(module: nn.Linear, weight: Shard) -> list[tuple[Any, Placement]]:
    """Weight and bias, and how each is to be placed."""
    bias: Placement = Shard(0) if weight.dim == 0 else Replicate()
    return [(module.weight, weight), *([] if module.bias is None else [(module.bias, bias)])]


def _shard(module: nn.Linear, mesh: DeviceMesh, weight: Shard, source: int | None) -> None:
    """
    Makes the parameters DTensors that hold each rank's part, as torch's own plans do.

    Rank `source` of the mesh gives the parts of all; where it is None, each rank takes its own.
    """
    for name, (parameter, placement) in zip(("weight", "bias"), _parameters(module, weight), strict=False):
        if not isinstance(parameter, DTensor):
            made = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=source)
            setattr(module, name, nn.Parameter(made, requires_grad=parameter.requires_grad))
        elif (parameter.device_mesh, parameter.placements) != (mesh, (placement,)):
            raise InvalidInput(
                f"{name} is a DTensor of {parameter.device_mesh}, placed {parameter.placements}: "
                f"it must be of {mesh}, placed {(placement,)}, or a plain tensor"
            )


class _Split:
    """What both styles share, beside one of torch's: how a layer is split, and who runs a call of it."""

    _weight: Shard
    codec: str | None = None
    tolerance: float | None = None
    input_layouts: Any
    output_layouts: Any
    _desired: tuple[Placement]  # how torch's product takes its input
    use_local_output: bool
    src_data_rank: int | None

    def _split(self, module: nn.Module, mesh: DeviceMesh) -> bool:
        """Splits the layer, if Imbrex is to run it."""
        own = vars(module).get("forward")
        is_split = isinstance(own, partial) and isinstance(getattr(own.func, "__self__", None), _Split)
        reason = why_not_placed("output", self._output) or why_not_split(module, mesh, self._weight.dim, is_split)
        if reason is not None or not isinstance(module, nn.Linear):
            self._count(str(reason))
            return False
        _shard(module, mesh, self._weight, self.src_data_rank)
        module.forward = partial(self._forward, module, mesh, name_of(mesh))  # type: ignore[method-assign]
        module._distribute_module_applied = True  # type: ignore[assignment]  # torch's styles refuse it from here on
        return True

    @property
    def _output(self) -> Placement:
        """How the product is to come out of Imbrex."""
        raise NotImplementedError

    def _count(self, reason: str) -> None:
        name = type(self).__name__
        for option, value in (("codec", self.codec), ("tolerance", self.tolerance)):
            if value is not None:
                raise InvalidInput(f"{option} = {value!r}: torch runs this {name}, without it, for the {reason}")
        count_fallback(name, reason)

    def _given(self, mesh: DeviceMesh, x: Any) -> Any:
        """The input as the product takes it."""
        return x

    def _product(self, module: nn.Linear, mesh: DeviceMesh, group: str, x: Any) -> Tensor | str:
        """The rank's part of the result, or why Imbrex does not run the call."""
        raise NotImplementedError

    def _forward(self, module: Any, mesh: DeviceMesh, group: str, x: Any) -> Any:
        if isinstance(x, DTensor) and x.device_mesh != mesh:
            raise InvalidInput(f"the input is a DTensor of {x.device_mesh}: it must be of {mesh}")
        own: Any = self
        x = self._given(mesh, x)
        y = self._product(module, mesh, group, x)
        if isinstance(y, str):
            self._count(y)
            given = own._prepare_input_fn(self.input_layouts, self._desired, module, (x,), mesh)
            placed = nn.functional.linear(given, module.weight, module.bias)
        else:
            lies = Shard(self._output.dim % y.dim()) if isinstance(self._output, Shard) else self._output
            if self.use_local_output and self.output_layouts[0] in (lies, Shard(-1)):
                return y
            placed = DTensor.from_local(y, mesh, [lies], run_check=False)
        return own._prepare_output_fn(self.output_layouts, self.use_local_output, module, placed, mesh)


class ColwiseParallel(_Split, _torchs.ColwiseParallel):
    """
    Splits an nn.Linear's outputs over the ranks of the mesh. It is torch's class of that name.

    Args:
        input_layouts: how an input that is no DTensor lies: Replicate(), the default; or Shard(d): each rank has its
            part of dimension d, and `all_gather_matmul` gathers it. A DTensor says so itself.
        output_layouts: how the output is to lie; not given: Shard(-1), this rank's columns. Torch moves it elsewhere.
        use_local_output: whether the output is a plain tensor; else a DTensor.

    Torch's own class runs what Imbrex does not: an nn.Embedding, a forward of one's own, sizes that do not divide by
    the ranks, float64, other layouts. `imbrex.torch.stats().fallbacks` counts it, with the reason.

    Raises:
        InvalidInput: a layout is no Placement, or a DTensor is of another mesh.

    Example:
        >>> plan = {"up": imbrex.torch.parallel.ColwiseParallel(input_layouts=Shard(1))}
        >>> mlp = parallelize_module(mlp, mesh["tp"], plan)
    """

    _weight, _desired = Shard(0), (Replicate(),)

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        """Keeps the layouts."""
        _expect_placement("input_layouts", input_layouts)
        _expect_placement("output_layouts", output_layouts)
        _torchs.ColwiseParallel.__init__(
            self, input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return module if self._split(module, device_mesh) else super()._apply(module, device_mesh)

    @property
    def _output(self) -> Placement:
        return Shard(-1)

    def _product(self, module: nn.Linear, mesh: DeviceMesh, group: str, x: Any) -> Tensor | str:
        name = type(self).__name__
        lies = x.placements[0] if isinstance(x, DTensor) else self.input_layouts[0]
        reason = why_not_placed("input", lies)
        if isinstance(lies, Shard):
            a, b, bias = _operands(module, _local(x))
            # A plain tensor has as many rows on every rank.
            whole = x.shape if isinstance(x, DTensor) else torch.Size([size_of(group)] * x.dim())
            reason = why_not_parted(a, b, lies.dim, whole, size_of(group))
            if reason is None:
                dim = lies.dim % a.dim()
                a, b = lying(a, dim, name), b_lying(b, name)
                return _as_torch_has_it(all_gather_matmul(a, b, group, gather_dim=dim, bias=bias), name)
        elif reason is None and not isinstance(x, DTensor):
            reason = why_not_of_dtype(x)
            if reason is None:
                if torch.is_grad_enabled() and x.requires_grad:
                    x = recorded(Shared, x, group)
                return nn.functional.linear(x, _local(module.weight), _local(module.bias))
        if reason is not None:
            self._count(reason)
        x = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        if x.placements != self._desired:
            x = x.redistribute(placements=self._desired)
        # Each rank uses it in its own way: its gradient is what the ranks have together, which what comes before sums.
        given = x.to_local(grad_placements=[_Partial()])
        return nn.functional.linear(given, _local(module.weight), _local(module.bias))


class RowwiseParallel(_Split, _torchs.RowwiseParallel):
    """
    Splits an nn.Linear's inputs over the ranks of the mesh, and sums its outputs. It is torch's class of that name.

    Args:
        input_layouts: how an input that is no DTensor lies; not given: Shard(-1), this rank's columns. Torch moves it
            there from elsewhere. A DTensor says so itself.
        output_layouts: Replicate(), the default: `matmul_all_reduce`; or Shard(d): each rank keeps its part of
            dimension d of the sum, by `matmul_reduce_scatter`.
        use_local_output: whether the output is a plain tensor; else a DTensor.
        codec: the sum travels in codes of fewer bits, as for `matmul_all_reduce`. Torch has none.
        tolerance: with a codec, the largest error that it may cause in a sum.

    Torch's own class runs what Imbrex does not, as for `ColwiseParallel`.

    Raises:
        InvalidInput: a layout is no Placement, a DTensor is of another mesh, or a codec is given for what torch runs.

    Example:
        >>> plan = {"down": imbrex.torch.parallel.RowwiseParallel(output_layouts=Shard(1))}
        >>> mlp = parallelize_module(mlp, mesh["tp"], plan)
    """

    _weight, _desired = Shard(1), (Shard(-1),)

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        codec: str | None = None,
        tolerance: float | None = None,
    ) -> None:
        """Keeps the layouts."""
        _expect_placement("input_layouts", input_layouts)
        _expect_placement("output_layouts", output_layouts)
        _torchs.RowwiseParallel.__init__(
            self, input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        self.codec, self.tolerance = codec, tolerance

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return module if self._split(module, device_mesh) else super()._apply(module, device_mesh)

    def _given(self, mesh: DeviceMesh, x: Any) -> Any:
        last = Shard(x.dim() - 1)
        if not isinstance(x, DTensor) and self.input_layouts[0] not in (last, Shard(-1)):
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        return x.redistribute(placements=[last]) if isinstance(x, DTensor) and x.placements != (last,) else x

    @property
    def _output(self) -> Placement:
        return self.output_layouts[0]  # type: ignore[no-any-return]

    def _product(self, module: nn.Linear, mesh: DeviceMesh, group: str, x: Any) -> Tensor | str:
        a, b, bias = _operands(module, _local(x))
        lies, name = self._output, type(self).__name__
        scattered = isinstance(lies, Shard)
        dim = lies.dim if isinstance(lies, Shard) else 0
        reason = why_not_parted(a, b, dim, a.shape, size_of(group)) if scattered else why_no_product(a, b, dim)
        if reason is not None:
            return reason
        dim %= a.dim()
        a, b = lying(a, dim, name), b_lying(b, name)
        extra: dict[str, Any] = {"bias": bias, "codec": self.codec, "tolerance": self.tolerance}
        if scattered:
            return _as_torch_has_it(matmul_reduce_scatter(a, b, group, scatter_dim=dim, **extra), name)
        return matmul_all_reduce(a, b, group, **extra)
