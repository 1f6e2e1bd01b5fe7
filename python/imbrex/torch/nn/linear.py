"""Linear layers of tensor-parallel models, split over the ranks of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..._errors import InvalidInput
from ..autograd import Shared, recorded
from ..extension import raise_for
from ..groups import Group, name_of, process_group
from ..ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from . import megatron
from .checkpoints import Part, Sharded


class _Parallel(Sharded):
    """What both layers share: a weight [out, in] of which each rank has a part."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    split: ClassVar[Mapping[str, int | None]]
    """The dimension of each parameter of which a rank has a part, or None: every rank has all of it."""

    def __init__(self, request: megatron.Request, sequence_dim: int, local: tuple[int, int], bias: int) -> None:
        super().__init__()
        self.in_features, self.out_features = request.in_features, request.out_features
        self.group_name = name_of(request.group)
        of = process_group(self.group_name)
        self._rank, self._ranks = int(of.rank()), int(of.size())
        self.sequence_parallel, self.sequence_dim = request.sequence_parallel, sequence_dim
        made = {"device": request.device, "dtype": request.dtype}
        self.weight = nn.Parameter(torch.empty(local, **made))
        self.register_parameter("bias", nn.Parameter(torch.empty(bias, **made)) if request.bias else None)
        self._init_method = request.init_method
        if request.is_drawn:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """
        Draws the weight, each rank another part: from nn.Linear's distribution of the whole size, or by `init_method`.

        Ranks seeded alike draw unlike parts, and their generators stay alike: each draws every rank's part.
        """
        bound = 1 / math.sqrt(self.in_features)
        draw = self._init_method or partial(nn.init.uniform_, a=-bound, b=bound)
        group = process_group(self.group_name)
        with torch.no_grad():
            for _ in range(group.rank() + 1):
                draw(self.weight)
            for _ in range(group.rank() + 1, group.size()):
                draw(torch.empty_like(self.weight))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _expect_known(self) -> None:
        """Raises InvalidInput where it is not known how the ranks have a parameter."""
        owner = f"{type(self).__name__}({self.in_features}, {self.out_features})"
        for name in self.split:
            if name not in self._parameters and self._ranks > 1:
                raise InvalidInput(
                    f"{name} of {owner} is parametrized or pruned: what takes its place would be saved as if every "
                    f"rank had all of it; call torch.nn.utils.parametrize.remove_parametrizations(layer, '{name}') or "
                    f"torch.nn.utils.prune.remove(layer, '{name}') first"
                )
        for name, parameter in self._parameters.items():
            if parameter is not None and name not in self.split:
                raise InvalidInput(
                    f"{name} of {owner}: the class attribute `split` must say of which dimension each rank has a part, "
                    "or None: every rank has all of it"
                )

    def _part_of(self, name: str) -> Part | None:
        """How this parameter is split; None where each rank has all of it."""
        owner = f"{type(self).__name__}({self.in_features}, {self.out_features})"
        dim = self.split.get(name)
        if dim is None:
            return None
        if name in ("weight", "bias"):
            whole = (self.out_features, self.in_features)[: 1 if name == "bias" else 2]
        else:
            whole = tuple(n * self._ranks if d == dim else n for d, n in enumerate(getattr(self, name).shape))
        return Part(f"{name} of {owner}", self.group_name, self._rank, self._ranks, dim, torch.Size(whole))

    def _expect_parts(self, rows: Sequence[int] | None) -> None:
        """Raises InvalidInput for rows of a layer of which each rank takes or gives all of the sequence."""
        if rows is not None and not self.sequence_parallel:
            error = InvalidInput(f"rows = {rows}: it must be None, since this layer has no sequence_parallel")
            raise_for(error, self.group_name)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> None:
        """Raises NotImplementedError: `state_dict` has the shards."""
        megatron.refuse_sharded_state_dict(self)

    def extra_repr(self) -> str:
        """The sizes of the whole layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"sequence_parallel={self.sequence_parallel}, group={self.group_name!r}"
        )


def _divided(value: int, name: str, group: Group) -> int:
    ranks = int(process_group(name_of(group)).size())
    if value % ranks:
        raise InvalidInput(f"{name} = {value}: it must divide by the {ranks} ranks of the group")
    return value // ranks


class ColumnParallelLinear(_Parallel):
    """
    A linear layer whose outputs are split over the ranks: the first of a pair, as in an MLP or attention.

    Args:
        in_features: inputs.
        out_features: outputs of all ranks together; it divides by them.
        group: the ranks, as for `all_gather_matmul`.
        sequence_parallel: whether each rank's input is its part of the sequence, which is gathered first. Otherwise the
            input is the same on every rank, and its gradient is summed over them.
        sequence_dim: the dimension of the input that is gathered.
        bias: whether each rank's outputs get a bias of their own; not given: with a `config` only.
        device: of the parameters.
        dtype: of the parameters.
        gather_output: whether each rank gets the outputs of all. Torch's collective gathers them.
        skip_bias_add: whether the bias is left to the caller, and returned beside the output.
        init_method: draws a rank's weight in place; not given: nn.Linear's distribution.
        config: Megatron-core's, of which sequence_parallel, params_dtype, use_cpu_initialization and
            perform_initialization count. With it the layer is called as Megatron-core's, and returns a pair.
        others: arguments of Megatron-core's class: input_size, output_size and tp_group. Those that are not
            honoured may be given with the value that asks for nothing.

    The weight is `[out_features/R, in_features]`, as nn.Linear's rows. State dicts hold it as a DTensor of the whole,
    and take whole tensors, too.

    Raises:
        InvalidInput: out_features does not divide by the ranks, or two arguments contradict each other.
        NotImplementedError: an argument, or a field of `config`, asks for what the layer does not do.

    Example:
        >>> up = imbrex.torch.nn.ColumnParallelLinear(1024, 4096, group, sequence_parallel=True)
    """

    split: ClassVar[Mapping[str, int | None]] = {"weight": 0, "bias": 0}

    def __init__(
        self,
        in_features: int | None = None,
        out_features: int | None = None,
        group: Group = None,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        bias: bool | None = None,
        device: Any = None,
        dtype: Any = None,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        config: Any = None,
        **others: Any,
    ) -> None:
        """Makes this rank's part."""
        sizes = in_features, out_features
        asked = megatron.read(
            "ColumnParallelLinear",
            sizes,
            group,
            sequence_parallel,
            bias,
            device,
            dtype,
            config,
            init_method,
            others,
        )
        part = _divided(asked.out_features, "out_features", asked.group)
        super().__init__(asked, sequence_dim, (part, asked.in_features), part)
        self.gather_output, self.skip_bias_add = gather_output, skip_bias_add
        self._returns_pair = skip_bias_add or config is not None
        megatron.mark(self, asked, self.split, skip_bias_add)

    def forward(
        self,
        x: Tensor,
        weight: None = None,
        runtime_gather_output: bool | None = None,
        *,
        rows: Sequence[int] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """
        The rank's outputs, `[..., out_features/R]`, of the whole sequence; or those of all ranks.

        With `skip_bias_add` or a `config` a pair: the outputs, and the bias that is still to be added, or None.

        Args:
            x: the input, `[..., in_features]`.
            weight: None: the layer has its own.
            runtime_gather_output: stands for `gather_output` where it is given.
            rows: with sequence_parallel, each rank's part of the sequence, as for `all_gather_matmul`.
        """
        self._expect_parts(rows)
        if weight is not None:
            raise NotImplementedError(f"weight is {tuple(weight.shape)}: the layer uses its own; it must be None")
        bias = None if self.skip_bias_add else self.bias
        if self.sequence_parallel:
            y = all_gather_matmul(
                x, self.weight.t(), self.group_name, gather_dim=self.sequence_dim, bias=bias, rows=rows
            )
        else:
            if torch.is_grad_enabled() and x.requires_grad:
                x = recorded(Shared, x, self.group_name)
            y = nn.functional.linear(x, self.weight, bias)
        if self.gather_output if runtime_gather_output is None else runtime_gather_output:
            y = recorded(megatron.Joined, y, self.group_name)
        return (y, self.bias if self.skip_bias_add else None) if self._returns_pair else y


class RowParallelLinear(_Parallel):
    """
    A linear layer whose inputs are split over the ranks: the second of a pair. Its outputs are summed over them.

    Args:
        in_features: inputs of all ranks together; it divides by them.
        out_features: outputs.
        group: the ranks, as for `all_gather_matmul`.
        sequence_parallel: whether each rank keeps its part of the sequence; otherwise each gets all of it.
        sequence_dim: the dimension of the output that is split.
        bias: whether the sum gets a bias, the same on every rank; not given: with a `config` only.
        codec: the sum travels in codes of fewer bits, as for `matmul_all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum.
        device: of the parameters.
        dtype: of the parameters.
        input_is_parallel: whether a rank's input is its columns. Otherwise all ranks have all, and each takes its own.
        skip_bias_add: as for `ColumnParallelLinear`, and so are `init_method`, `config` and the others.
        init_method: draws a rank's weight in place; not given: nn.Linear's distribution.
        config: Megatron-core's.
        others: arguments of Megatron-core's class.

    The weight is `[out_features, in_features/R]`, as nn.Linear's columns. State dicts hold it as a DTensor of the
    whole, and take whole tensors, too.

    Raises:
        InvalidInput: in_features does not divide by the ranks, or two arguments contradict each other.
        NotImplementedError: an argument, or a field of `config`, asks for what the layer does not do.

    Example:
        >>> down = imbrex.torch.nn.RowParallelLinear(4096, 1024, group, sequence_parallel=True)
    """

    split: ClassVar[Mapping[str, int | None]] = {"weight": 1, "bias": None}

    def __init__(
        self,
        in_features: int | None = None,
        out_features: int | None = None,
        group: Group = None,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        bias: bool | None = None,
        codec: str | None = None,
        tolerance: float | None = None,
        device: Any = None,
        dtype: Any = None,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        config: Any = None,
        **others: Any,
    ) -> None:
        """Makes this rank's part."""
        sizes = in_features, out_features
        asked = megatron.read(
            "RowParallelLinear", sizes, group, sequence_parallel, bias, device, dtype, config, init_method, others
        )
        if asked.sequence_parallel and not input_is_parallel:
            raise InvalidInput("input_is_parallel = False with sequence_parallel: it must be True there")
        local = asked.out_features, _divided(asked.in_features, "in_features", asked.group)
        super().__init__(asked, sequence_dim, local, asked.out_features)
        self.codec, self.tolerance = codec, tolerance
        self.input_is_parallel, self.skip_bias_add = input_is_parallel, skip_bias_add
        self._returns_pair = skip_bias_add or config is not None
        megatron.mark(self, asked, self.split, skip_bias_add)

    def forward(self, x: Tensor, *, rows: Sequence[int] | None = None) -> Tensor | tuple[Tensor, Tensor | None]:
        """
        The sum over the ranks, `[..., out_features]`: this rank's part of the sequence, or all of it.

        With `skip_bias_add` or a `config` a pair: the sum, and the bias that is still to be added, or None.

        Args:
            x: the input, `[..., in_features/R]`.
            rows: with sequence_parallel, each rank's part of the sequence, as for `matmul_reduce_scatter`.
        """
        self._expect_parts(rows)
        if not self.input_is_parallel:
            x = recorded(megatron.Parted, x, self.group_name)
        extra: dict[str, Any] = {
            "bias": None if self.skip_bias_add else self.bias,
            "codec": self.codec,
            "tolerance": self.tolerance,
        }
        if self.sequence_parallel:
            extra["rows"] = rows
            y = matmul_reduce_scatter(x, self.weight.t(), self.group_name, scatter_dim=self.sequence_dim, **extra)
        else:
            y = matmul_all_reduce(x, self.weight.t(), self.group_name, **extra)
        return (y, self.bias if self.skip_bias_add else None) if self._returns_pair else y
