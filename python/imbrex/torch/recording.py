"""What torch's autograd has to know of a call: what is recorded, what is written to, and what has no gradient."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import InvalidInput
from .frames import constant_in_graphs, no_graph_of_its_own

# Looked up once: a call costs a few microseconds altogether.
_is_grad_enabled = torch.is_grad_enabled
_is_traced = torch.compiler.is_dynamo_compiling
_is_transformed = torch._C._are_functorch_transforms_active
_increment_version = torch._C._increment_version


@no_graph_of_its_own
def needs_gradient(a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
    """Whether a call with these tensors is to be recorded; raises NotImplementedError where it can't be."""
    if _is_grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)):
        expect_no_transform()
        return True
    return False


_NO_TRANSFORM = (
    "torch.func: grad, vjp, jacrev and vmap take no call of Imbrex that has a gradient; call backward() or "
    "torch.autograd.grad, or detach what needs none"
)


@constant_in_graphs
def _is_within(transform: str) -> bool:
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(one.key() == getattr(torch._C._functorch.TransformType, transform) for one in stack)


@no_graph_of_its_own
def expect_no_transform() -> None:
    """Raises NotImplementedError in a transform of torch.func, which takes no call that is recorded."""
    if _is_within("Grad") if _is_traced() else _is_transformed():
        raise NotImplementedError(_NO_TRANSFORM)


def expect_seen() -> None:
    """
    For a graph in the making: raises NotImplementedError where derivatives are asked for that tracing does not show.

    There a tensor tells neither that a transform of torch.func asks for its gradient nor that it is a dual tensor.
    Its derivative would be lost.
    """
    if _is_within("Grad"):
        raise NotImplementedError(_NO_TRANSFORM)
    if forward_ad._current_level >= 0 and not _is_within("Jvp"):
        raise NotImplementedError("torch.autograd.forward_ad: a graph takes no dual tensors into Imbrex' operators")


def refuse_out(out: Any) -> None:
    """Raises InvalidInput where an output is given to a call that is recorded."""
    if out is not None:
        raise InvalidInput("out: what is written into it has no gradient; call without it, or under torch.no_grad()")


def expect_writable(out: Tensor, name: str = "out") -> None:
    """Raises InvalidInput for an output that is part of what autograd records, as torch's operators do."""
    if out.requires_grad and _is_grad_enabled():
        raise InvalidInput(
            f"{name} requires a gradient: what is written into it has none; detach it, or call under torch.no_grad()"
        )


def written(*outputs: Tensor) -> None:
    """Tells torch that these were written to, so that autograd does not use what it has kept of them."""
    # A graph's outputs are told by what torch.compile makes of them; tensors of the inference mode have no version.
    if not _is_traced():
        _increment_version(outputs)


def expect_no_gradient_of_8_bits(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scales_b: Iterable[Tensor | None]
) -> None:
    """Raises InvalidInput where a recorded call asks for a gradient that there is none of."""
    if not _is_grad_enabled():
        return
    if a.dtype == torch.float8_e4m3fn:
        for name, one in (("a", a), ("b", b)):
            if one.requires_grad:
                raise InvalidInput(
                    f"{name} requires a gradient and is of torch.float8_e4m3fn: products of 8-bit floats have a "
                    "gradient of the bias alone; detach it, or call under torch.no_grad()"
                )
    for name, scale in (("scale_a", scale_a), *[("scale_b", one) for one in scales_b]):
        if scale is not None and scale.requires_grad:
            raise InvalidInput(
                f"{name} requires a gradient: there is none of scales; detach it, or call under torch.no_grad()"
            )


@no_graph_of_its_own
def has_tangent(*given: Any) -> bool:
    """Whether one of them is a dual tensor of forward-mode differentiation; raises NotImplementedError where twice."""
    if not any(isinstance(one, Tensor) and forward_ad.unpack_dual(one).tangent is not None for one in given):
        return False
    # Only the tangent of the innermost of several transforms is seen here.
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if sum(one.key() == torch._C._functorch.TransformType.Jvp for one in stack) > 1:
        raise NotImplementedError("Imbrex' operators have no forward-mode derivatives of forward-mode derivatives")
    return True


def refuse_tangents(operator: str, *given: Any) -> None:
    """Raises NotImplementedError for dual tensors, whose tangents would be lost."""
    if forward_ad._current_level >= 0 and has_tangent(*given):
        raise NotImplementedError(f"{operator} has no forward-mode derivative")
