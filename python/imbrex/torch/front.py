"""What the products' fronts share: the operators that they call, looked up once, and what they refuse."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .._errors import InvalidInput
from .frames import no_graph_of_its_own
from .recording import expect_no_gradient_of_8_bits, expect_writable, has_tangent, refuse_out
from .shapes import expect_out, shape_text

_ops = torch.ops.imbrex


def _direct(operator: Any) -> Any:
    """What the operator itself calls, without a frame of Python between."""
    return getattr(operator, "_op", operator)


class Product:
    """
    An operator's ways to be called, looked up once: a call costs a few microseconds altogether.

    The plain ones take tensors and a group alone: every argument costs torch's parsing more than the kernel's own work.
    The tracer of torch.compile, which knows operators by themselves, does not get to these.
    """

    def __init__(self, name: str) -> None:
        """`name`: the operator's."""
        self.full, self.full_out = (getattr(_ops, name + suffix).default for suffix in ("", "_out"))
        suffixes = ("_plain", "_plain_out")
        self.plain, self.plain_out = (_direct(getattr(_ops, name + suffix).default) for suffix in suffixes)
        # They are called where nothing is recorded, so torch's autograd need not look at them.
        for suffix in suffixes:
            _unrecorded.impl(name + suffix, torch.library.fallthrough_kernel, "Autograd")


_unrecorded = torch.library.Library("imbrex", "IMPL")
all_gather, reduce_scatter = Product("all_gather_matmul"), Product("matmul_reduce_scatter")
all_reduce, all_to_all = Product("matmul_all_reduce"), Product("matmul_all_to_all")
is_traced = torch.compiler.is_dynamo_compiling


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
        raise InvalidInput(f"{name} = {dim!r} with a of {shape_text(a)}: it must be a dimension of a before its last")
    return dim % a.dim()


def expect_for_tolerance(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Tensor | None, dim: int, parts: int
) -> None:
    """Raises InvalidInput for scales, and for an `out` that the result of a call with a tolerance does not fit."""
    if scale_a is not None or scale_b is not None:
        raise InvalidInput("tolerance: not with scale_a and scale_b")
    if out is not None:
        expect_writable(out)
        expect_out(out, a, b, dim, a.shape[dim] // parts, a.dtype)


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, in `out` where that is given."""
    return result if out is None else out.copy_(result)
