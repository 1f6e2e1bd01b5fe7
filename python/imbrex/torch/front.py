"""What the products' fronts share: the operators that they call, looked up once, and what they refuse."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .._errors import InvalidInput
from .frames import no_graph_of_its_own
from .recording import expect_no_gradient_of_8_bits, expect_writable, has_tangent, refuse_out

_ops = torch.ops.imbrex


# Looked up once: a call costs a few microseconds altogether.
all_gather_matmul, all_gather_matmul_out = _ops.all_gather_matmul.default, _ops.all_gather_matmul_out.default
reduce_scatter, reduce_scatter_out = _ops.matmul_reduce_scatter.default, _ops.matmul_reduce_scatter_out.default
all_reduce, all_reduce_out = _ops.matmul_all_reduce.default, _ops.matmul_all_reduce_out.default
all_to_all, all_to_all_out = _ops.matmul_all_to_all.default, _ops.matmul_all_to_all_out.default


def _direct(operator: Any) -> Any:
    """What the operator itself calls, without a frame of Python between."""
    return getattr(operator, "_op", operator)


# Operators that take tensors and a group alone: every argument costs torch's parsing more than the kernel's own work.
# The tracer of torch.compile, which knows operators by themselves, does not get here.
all_gather_matmul_plain, all_gather_matmul_plain_out = map(
    _direct, (_ops.all_gather_matmul_plain.default, _ops.all_gather_matmul_plain_out.default)
)
reduce_scatter_plain, reduce_scatter_plain_out = map(
    _direct, (_ops.matmul_reduce_scatter_plain.default, _ops.matmul_reduce_scatter_plain_out.default)
)
all_reduce_plain, all_reduce_plain_out = map(
    _direct, (_ops.matmul_all_reduce_plain.default, _ops.matmul_all_reduce_plain_out.default)
)
all_to_all_plain, all_to_all_plain_out = map(
    _direct, (_ops.matmul_all_to_all_plain.default, _ops.matmul_all_to_all_plain_out.default)
)
is_traced = torch.compiler.is_dynamo_compiling

# They are called where nothing is recorded, so torch's autograd need not look at them.
_unrecorded = torch.library.Library("imbrex", "IMPL")
for _name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"):
    for _suffix in ("_plain", "_plain_out"):
        _unrecorded.impl(_name + _suffix, torch.library.fallthrough_kernel, "Autograd")


@no_graph_of_its_own
def have_tangents(a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any) -> bool:
    """Whether one of them, or of a list of them, is a dual tensor."""
    several = [one for given in (b, bias, scale_b) if isinstance(given, (list, tuple)) for one in given]
    return has_tangent(a, b, bias, scale_a, scale_b, *several)


def expect_recorded(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Any) -> None:
    """Raises InvalidInput where a call that is recorded asks for what has no gradient."""
    refuse_out(out)
    expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))


def dimension(dim: int, a: Tensor, name: str) -> int:
    """A dimension of rows, not negative."""
    if not isinstance(dim, SupportsIndex) or not -a.dim() <= dim < a.dim() - 1 or dim == -1:
        raise InvalidInput(f"{name} = {dim!r} with a of {tuple(a.shape)}: it must be a dimension of a before its last")
    return dim % a.dim()


def expect_for_tolerance(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Tensor | None, dim: int, parts: int
) -> None:
    """Raises InvalidInput for scales, and for an `out` that the result of a call with a tolerance does not fit."""
    if scale_a is not None or scale_b is not None:
        raise InvalidInput("tolerance: not with scale_a and scale_b")
    if out is not None:
        expect_out(out, a, b, dim, a.shape[dim] // parts, a.dtype)


def expect_out(out: Tensor, a: Tensor, b: Tensor, dim: int, rows: int, dtype: torch.dtype) -> None:
    """Raises InvalidInput for an output that may not be written, or is not of the product with so many rows."""
    expect_writable(out)
    shape = [*a.shape[:-1], b.shape[-1]]
    shape[dim] = rows
    if list(out.shape) != shape or out.dtype != dtype:
        raise InvalidInput(f"out is {tuple(out.shape)} of {out.dtype}: it must be {tuple(shape)} of {dtype}")


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, in `out` where that is given."""
    return result if out is None else out.copy_(result)
