"""Linear layers of tensor-parallel models, split over the ranks of a group."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import InvalidInput
from ..autograd import Shared
from ..groups import Group, name_of, process_group
from ..ops import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from .checkpoints import Part, Sharded


class _Parallel(Sharded):
    """What both layers share: a weight [out, in] of which each rank has a part."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    _split: dict[str, int]  # the dimension of each parameter of which a rank has a part

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Group,
        sequence_parallel: bool,
        sequence_dim: int,
        fan_in: int,
        local: tuple[int, int],
        bias: int | None,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group_name = name_of(group)
        of = process_group(self.group_name)
        self._rank, self._ranks = int(of.rank()), int(of.size())
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim
        self.weight = nn.Parameter(torch.empty(local, device=device, dtype=dtype))
        self.bias = None if bias is None else nn.Parameter(torch.empty(bias, device=device, dtype=dtype))
        self._fan_in = fan_in
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """
        Draws the weight from nn.Linear's distribution of the whole size, each rank another part.

        Ranks seeded alike draw unlike parts, and their generators stay alike: each draws every rank's part.
        """
        bound = 1 / math.sqrt(self._fan_in)
        group = process_group(self.group_name)
        for _ in range(group.rank() + 1):
            nn.init.uniform_(self.weight, -bound, bound)
        for _ in range(group.rank() + 1, group.size()):
            nn.init.uniform_(torch.empty_like(self.weight), -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _part_of(self, name: str) -> Part | None:
        """How this parameter is split; None where each rank has all of it."""
        if name not in self._split:
            return None
        whole = (self.out_features, self.in_features)[: 1 if name == "bias" else 2]
        owner = f"{name} of {type(self).__name__}({self.in_features}, {self.out_features})"
        return Part(owner, self.group_name, self._rank, self._ranks, self._split[name], torch.Size(whole))

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
        bias: whether each rank's outputs get a bias of their own.
        device: of the parameters.
        dtype: of the parameters.

    The weight is `[out_features/R, in_features]`, as nn.Linear's rows. State dicts hold it as a DTensor of the whole,
    and take whole tensors, too.

    Raises:
        InvalidInput: out_features does not divide by the ranks.

    Example:
        >>> up = imbrex.torch.nn.ColumnParallelLinear(1024, 4096, group, sequence_parallel=True)
    """

    _split = {"weight": 0, "bias": 0}  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Group = None,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """Makes this rank's part."""
        part = _divided(out_features, "out_features", group)
        super().__init__(
            in_features,
            out_features,
            group,
            sequence_parallel,
            sequence_dim,
            in_features,
            (part, in_features),
            part if bias else None,
            device,
            dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        """The rank's outputs, `[..., out_features/R]`, of the whole sequence."""
        if self.sequence_parallel:
            return all_gather_matmul(x, self.weight.t(), self.group_name, gather_dim=self.sequence_dim, bias=self.bias)
        if torch.is_grad_enabled() and x.requires_grad:
            x = Shared.apply(x, self.group_name)  # type: ignore[no-untyped-call]
        return nn.functional.linear(x, self.weight, self.bias)


class RowParallelLinear(_Parallel):
    """
    A linear layer whose inputs are split over the ranks: the second of a pair. Its outputs are summed over them.

    Args:
        in_features: inputs of all ranks together; it divides by them.
        out_features: outputs.
        group: the ranks, as for `all_gather_matmul`.
        sequence_parallel: whether each rank keeps its part of the sequence; otherwise each gets all of it.
        sequence_dim: the dimension of the output that is split.
        bias: whether the sum gets a bias, the same on every rank.
        codec: the sum travels in codes of so many bits, as for `matmul_all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum.
        device: of the parameters.
        dtype: of the parameters.

    The weight is `[out_features, in_features/R]`, as nn.Linear's columns. State dicts hold it as a DTensor of the
    whole, and take whole tensors, too.

    Raises:
        InvalidInput: in_features does not divide by the ranks.

    Example:
        >>> down = imbrex.torch.nn.RowParallelLinear(4096, 1024, group, sequence_parallel=True)
    """

    _split = {"weight": 1}  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: Group = None,
        *,
        sequence_parallel: bool = False,
        sequence_dim: int = 0,
        bias: bool = False,
        codec: str | None = None,
        tolerance: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """Makes this rank's part."""
        super().__init__(
            in_features,
            out_features,
            group,
            sequence_parallel,
            sequence_dim,
            in_features,
            (out_features, _divided(in_features, "in_features", group)),
            out_features if bias else None,
            device,
            dtype,
        )
        self.codec, self.tolerance = codec, tolerance

    def forward(self, x: Tensor) -> Tensor:
        """The sum over the ranks, `[..., out_features]`: this rank's part of the sequence, or all of it."""
        if self.sequence_parallel:
            return matmul_reduce_scatter(
                x,
                self.weight.t(),
                self.group_name,
                scatter_dim=self.sequence_dim,
                bias=self.bias,
                codec=self.codec,
                tolerance=self.tolerance,
            )
        return matmul_all_reduce(
            x, self.weight.t(), self.group_name, bias=self.bias, codec=self.codec, tolerance=self.tolerance
        )
