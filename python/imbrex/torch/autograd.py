"""
Gradients of the operators. They lie in the front, so that calls without gradients do not pay for them.

A gradient that is the same on every rank, as that of an all-reduced result, counts once: the formulas are those of
tensor-parallel layers, in which the ranks together hold one model.

Products and norms have first derivatives only. What asks for a second one is told so, also where the first one's own
gradients need none: A'B + AB' mixes both matrices.
"""

# torch's Functions have signatures of their own.
# mypy: disable-error-code="override,no-untyped-call"
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import front
from .collect import exchange, gather, gather_products, reduce_scatter
from .groups import rank_of, size_of
from .recording import expect_no_transform
from .shapes import expect_out_dtype

_ops = torch.ops.imbrex

_TWICE = b"Imbrex' products and norms have no second derivatives: the first one was recorded, and asked for its own"


def once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """
    A backward pass whose results raise where they are differentiated again.

    torch's once_differentiable looks at the gradients that come in alone. A sum's do not depend on anything, yet the
    gradient of A then depends on B, and a second derivative would come out without that part.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if torch.compiler.is_dynamo_compiling():  # torch refuses second derivatives of compiled graphs itself
            return backward(ctx, *grads)
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return results
        # The gradient of one matrix alone depends on what comes in, a norm's on what it norms.
        mixed = all(ctx.needs_input_grad[:2]) or getattr(ctx, "curved", False)
        if not mixed and not any(isinstance(grad, Tensor) and grad.requires_grad for grad in grads):
            return results
        marked = [one.detach().requires_grad_() if isinstance(one, Tensor) else one for one in results]
        return torch._C._functions.DelayedError(_TWICE, len(marked))(*marked)

    return once


def lying(x: Tensor, dim: int) -> Tensor:
    """The gradient as the operators take it: dimension `dim` first in memory. torch hands over any strides."""
    return x.movedim(dim, 0).contiguous().movedim(0, dim)


def weight_gradient(a: Tensor, dy: Tensor) -> Tensor:
    """AᵀdY over all rows."""
    return a.reshape(-1, a.shape[-1]).t() @ dy.reshape(-1, dy.shape[-1])


def bias_gradient(dy: Tensor) -> Tensor:
    """The sum over all rows."""
    return dy.reshape(-1, dy.shape[-1]).sum(0)


class AllGatherMatmul(torch.autograd.Function):
    """Y = gather(A) B: dA is the reduce-scatter of dY Bᵀ, dB the gathered Aᵀ dY."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        dim: int,
        scale_a: Tensor | None = None,
        scale_b: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        ctx.group, ctx.dim = group, dim
        return front.all_gather.full(a, b, group, dim, bias, scale_a, scale_b, out_dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        dy = lying(dy, ctx.dim)
        da = _ops.matmul_reduce_scatter(dy, b.t(), ctx.group, ctx.dim) if need_a else None
        db = None
        if need_b:
            gathered = gather(a, ctx.group, ctx.dim)
            db = weight_gradient(gathered.movedim(ctx.dim, 0), dy.movedim(ctx.dim, 0))
        return da, db, bias_gradient(dy) if need_bias else None, *[None] * (len(ctx.needs_input_grad) - 3)


class GatherProducts(torch.autograd.Function):
    """As AllGatherMatmul, of a B whose product comes with the gathered A."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, group: str, dim: int) -> tuple[Tensor, Tensor]:
        """The gathered A and the product."""
        gathered, (product,) = gather_products(a, [b], group, dim, [bias])
        ctx.save_for_backward(gathered, b)
        ctx.group, ctx.dim = group, dim
        return gathered, product

    @staticmethod
    @once
    def backward(ctx: Any, dgathered: Tensor, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        gathered, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        rows, dim = dy.movedim(ctx.dim, 0), ctx.dim
        da = None
        if need_a:
            # What comes for the gathered A itself adds to what comes through the product, before both are scattered.
            full = torch.matmul(rows, b.t()) + dgathered.movedim(dim, 0)
            da = reduce_scatter(full, ctx.group).movedim(0, dim)
        db = weight_gradient(gathered.movedim(dim, 0), rows) if need_b else None
        return da, db, bias_gradient(rows) if need_bias else None, None, None


class MatmulReduceScatter(torch.autograd.Function):
    """
    Y = scatter(sum of A B): dA is the gathered dY times Bᵀ, dB is Aᵀ times the gathered dY.

    Through a codec, too, whose errors the gradient does not know.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        dim: int,
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        out_dtype: torch.dtype | None,
        codec: str | None,
        tolerance: float | None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        ctx.group, ctx.dim = group, dim
        if tolerance is not None:
            return scattered(a, b, bias, group, dim, out_dtype, codec, tolerance)
        return front.reduce_scatter.full(a, b, group, dim, bias, scale_a, scale_b, out_dtype, codec)  # type: ignore[no-any-return]

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        none, dim = [None] * 7, ctx.dim
        dy = lying(dy, dim)
        if not need_b and not need_bias:
            return _ops.all_gather_matmul(dy, b.t(), ctx.group, dim), None, None, *none
        gathered, products = gather_products(dy, [b.t()] if need_a else [], ctx.group, dim, [None] if need_a else [])
        rows = gathered.movedim(dim, 0)
        db = weight_gradient(a.movedim(dim, 0), rows) if need_b else None
        return products[0] if need_a else None, db, bias_gradient(rows) if need_bias else None, *none


class MatmulAllReduce(torch.autograd.Function):
    """Y = sum of A B, the same on every rank, as is dY: all gradients are local."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        out_dtype: torch.dtype | None,
        codec: str | None,
        tolerance: float | None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        if tolerance is not None:
            return summed(a, b, bias, group, out_dtype, codec, tolerance)
        return front.all_reduce.full(a, b, group, 0, bias, scale_a, scale_b, out_dtype, codec)  # type: ignore[no-any-return]

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        da = torch.matmul(dy, b.t()) if need_a else None
        db = weight_gradient(a, dy) if need_b else None
        return da, db, bias_gradient(dy) if need_bias else None, *[None] * 6


def summed(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    group: str,
    out_dtype: torch.dtype | None,
    codec: str | None,
    tolerance: float,
) -> Tensor:
    """The product, summed over the ranks: the library's operator takes no tolerance, so the all-reduce comes after."""
    expect_out_dtype(a.dtype, out_dtype)
    result: Tensor = _ops.all_reduce(torch.matmul(a, b), group, codec, tolerance)
    return result if bias is None else result + bias


def scattered(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    group: str,
    dim: int,
    out_dtype: torch.dtype | None,
    codec: str | None,
    tolerance: float,
) -> Tensor:
    """The rank's own part of that sum."""
    whole = summed(a, b, bias, group, out_dtype, codec, tolerance)
    part = whole.shape[dim] // size_of(group)
    return whole.narrow(dim, rank_of(group) * part, part).contiguous()


class MatmulAllToAll(torch.autograd.Function):
    """Y = exchange(A B): dY goes back whence it came."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        out_dtype: torch.dtype | None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        ctx.group = group
        return front.all_to_all.full(a, b, group, 0, bias, scale_a, scale_b, out_dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        back = exchange(dy, ctx.group)
        da = torch.matmul(back, b.t()) if need_a else None
        db = weight_gradient(a, back) if need_b else None
        return da, db, bias_gradient(back) if need_bias else None, *[None] * 4


class AllReduce(torch.autograd.Function):
    """Y = sum of X, the same on every rank, as is dY, which is the gradient of each rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str, codec: str | None, tolerance: float | None, report: bool) -> Tensor:
        """The sum."""
        ctx.group = group
        return _ops.all_reduce(x, group, codec, tolerance, report)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """The gradient of x, which can be differentiated again."""
        return Shared.apply(dy, ctx.group) if is_recorded(dy) else dy, None, None, None, None


class Shared(torch.autograd.Function):
    """Y = X, the same on every rank; each uses it in its own way, so that dX is the sum of dY."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        """X itself."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """The sum over the ranks, which can be differentiated again."""
        dy = dy.contiguous()
        if is_recorded(dy):
            return AllReduce.apply(dy, ctx.group, None, None, False), None
        return _ops.all_reduce(dy, ctx.group), None


def recorded(function: type[torch.autograd.Function], x: Tensor, group: str) -> Tensor:
    """What `function` makes of X, recorded; in a transform of torch.func it raises, as all of Imbrex does."""
    expect_no_transform()
    result: Tensor = function.apply(x, group)
    return result


def is_recorded(dy: Tensor) -> bool:
    """Whether a backward pass is recorded itself, and not traced."""
    return torch.is_grad_enabled() and dy.requires_grad and not torch.compiler.is_dynamo_compiling()


class AllReduceRmsNorm(torch.autograd.Function):
    """S = sum of X + residual, Y = S / rms(S) * weight; all gradients are local."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str
    ) -> tuple[Tensor, Tensor]:
        """The normalised rows and the sum."""
        y, s = _ops.all_reduce_rms_norm(x, residual, weight, eps, group)
        ctx.save_for_backward(s, weight)
        ctx.eps, ctx.curved = eps, True
        return y, s

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor, ds: Tensor) -> tuple[Any, ...]:
        """Gradients of x, residual and weight, computed in fp32."""
        s, weight = ctx.saved_tensors
        rows = s.float()
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + ctx.eps)
        normal = rows * scale
        through = dy.float() * weight.float()
        total = (scale * (through - normal * (through * normal).mean(-1, keepdim=True)) + ds.float()).to(s.dtype)
        dweight = (dy.float() * normal).reshape(-1, s.shape[-1]).sum(0).to(weight.dtype)
        need_x, need_residual, need_weight = ctx.needs_input_grad[:3]
        return total if need_x else None, total if need_residual else None, dweight if need_weight else None, None, None
