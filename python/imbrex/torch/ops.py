"""The products as users call them: gradients where they are needed, and what the library does not do itself."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import InvalidInput
from . import autograd, extension, tangents
from .autocast import cast
from .autocast import is_on as autocast_is_on
from .frames import no_graph_of_its_own
from .groups import Group, name_of, size_of
from .lists import list_of_products
from .recording import (
    expect_no_gradient_of_8_bits,
    expect_seen,
    expect_writable,
    has_tangent,
    needs_gradient,
    refuse_out,
    written,
)
from .shapes import padded

_ops = torch.ops.imbrex


# Looked up once: a call costs a few microseconds altogether.
_all_gather_matmul, _all_gather_matmul_out = _ops.all_gather_matmul.default, _ops.all_gather_matmul_out.default
_reduce_scatter, _reduce_scatter_out = _ops.matmul_reduce_scatter.default, _ops.matmul_reduce_scatter_out.default
_all_reduce, _all_reduce_out = _ops.matmul_all_reduce.default, _ops.matmul_all_reduce_out.default
_all_to_all, _all_to_all_out = _ops.matmul_all_to_all.default, _ops.matmul_all_to_all_out.default


def _direct(operator: Any) -> Any:
    """What the operator itself calls, without a frame of Python between."""
    return getattr(operator, "_op", operator)


# Operators that take tensors and a group alone: every argument costs torch's parsing more than the kernel's own work.
# The tracer of torch.compile, which knows operators by themselves, does not get here.
_all_gather_matmul_plain, _all_gather_matmul_plain_out = map(
    _direct, (_ops.all_gather_matmul_plain.default, _ops.all_gather_matmul_plain_out.default)
)
_reduce_scatter_plain, _reduce_scatter_plain_out = map(
    _direct, (_ops.matmul_reduce_scatter_plain.default, _ops.matmul_reduce_scatter_plain_out.default)
)
_all_reduce_plain, _all_reduce_plain_out = map(
    _direct, (_ops.matmul_all_reduce_plain.default, _ops.matmul_all_reduce_plain_out.default)
)
_all_to_all_plain, _all_to_all_plain_out = map(
    _direct, (_ops.matmul_all_to_all_plain.default, _ops.matmul_all_to_all_plain_out.default)
)
_is_traced = torch.compiler.is_dynamo_compiling

# They are called where nothing is recorded, so torch's autograd need not look at them.
_unrecorded = torch.library.Library("imbrex", "IMPL")
for _name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"):
    for _suffix in ("_plain", "_plain_out"):
        _unrecorded.impl(_name + _suffix, torch.library.fallthrough_kernel, "Autograd")


@no_graph_of_its_own
def _have_tangents(a: Any, b: Any, bias: Any, scale_a: Any, scale_b: Any) -> bool:
    several = [one for given in (b, bias, scale_b) if isinstance(given, (list, tuple)) for one in given]
    return has_tangent(a, b, bias, scale_a, scale_b, *several)


def _expect_recorded(a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Any) -> None:
    """Raises InvalidInput where a call that is recorded asks for what has no gradient."""
    refuse_out(out)
    expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))


def _dimension(dim: int, a: Tensor, name: str) -> int:
    if not isinstance(dim, SupportsIndex) or not -a.dim() <= dim < a.dim() - 1 or dim == -1:
        raise InvalidInput(f"{name} = {dim!r} with a of {tuple(a.shape)}: it must be a dimension of a before its last")
    return dim % a.dim()


@overload
def all_gather_matmul(
    a: Tensor,
    b: Tensor,
    group: Group = ...,
    *,
    gather_dim: int = ...,
    bias: Tensor | None = ...,
    return_gathered: Literal[False] = ...,
    scale_a: Tensor | None = ...,
    scale_b: Tensor | None = ...,
    out_dtype: torch.dtype | None = ...,
    out: Tensor | None = ...,
) -> Tensor: ...
@overload
def all_gather_matmul(
    a: Tensor,
    b: Tensor,
    group: Group = ...,
    *,
    gather_dim: int = ...,
    bias: Tensor | None = ...,
    return_gathered: Literal[True],
    scale_a: Tensor | None = ...,
    scale_b: Tensor | None = ...,
    out_dtype: torch.dtype | None = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def all_gather_matmul(
    a: Tensor,
    b: Sequence[Tensor],
    group: Group = ...,
    *,
    gather_dim: int = ...,
    bias: Sequence[Tensor | None] | None = ...,
    return_gathered: Literal[False] = ...,
    scale_a: Tensor | None = ...,
    scale_b: Sequence[Tensor] | None = ...,
    out_dtype: torch.dtype | None = ...,
    out: Sequence[Tensor] | None = ...,
) -> list[Tensor]: ...
@overload
def all_gather_matmul(
    a: Tensor,
    b: Sequence[Tensor],
    group: Group = ...,
    *,
    gather_dim: int = ...,
    bias: Sequence[Tensor | None] | None = ...,
    return_gathered: Literal[True],
    scale_a: Tensor | None = ...,
    scale_b: Sequence[Tensor] | None = ...,
    out_dtype: torch.dtype | None = ...,
    out: Sequence[Tensor] | None = ...,
) -> tuple[Tensor, list[Tensor]]: ...
def all_gather_matmul(
    a: Tensor,
    b: Tensor | Sequence[Tensor],
    group: Group = None,
    *,
    gather_dim: int = 0,
    bias: Any = None,
    return_gathered: bool = False,
    scale_a: Tensor | None = None,
    scale_b: Any = None,
    out_dtype: torch.dtype | None = None,
    out: Any = None,
) -> Any:
    """
    Gathers A over the ranks, then multiplies: the first layer of a sequence-parallel MLP or attention. Collective.

    Args:
        a: this rank's part, M/R x K, or of three dimensions with K last; bfloat16, float16, float32 or float8_e4m3fn.
            The rows of `a.movedim(gather_dim, 0)` lie evenly, and may lie apart, as those of a slice do.
        b: this rank's columns, K x N/R, of a's dtype; or several of them, which share one gather. A linear layer's
            weight comes as `weight.t()`.
        group: the R ranks: a ProcessGroup, a DeviceMesh of one dimension, a group's name, or None for all.
        gather_dim: the dimension of `a` that is gathered.
        bias: N/R elements added to every row, of the result's dtype; for several b a list.
        return_gathered: return the gathered A too.
        scale_a: float8_e4m3fn only, float32: one element, or one for each row of `a`; both scales or none.
        scale_b: one element, or one for each column of `b`; for several b a list.
        out_dtype: bfloat16 of float8_e4m3fn, else a's dtype: it may be given, and changes nothing.
        out: where the result goes; for several b a list. Not with gradients.

    Returns:
        M x N/R, of a's dimensions with gather_dim R times as long; `y.movedim(gather_dim, 0)` lies without gaps. For
        several b a list. With return_gathered a pair: the gathered A, and that.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Up to three b of 16 or 32 bits that lie alike, with a bias each or none, run as one plan, with one gather and the
    gathered A as its output; what else a list or return_gathered asks for runs as torch's own gather and products.

    Example:
        >>> y = imbrex.torch.all_gather_matmul(x, weight.t(), group)
        >>> q, k, v = imbrex.torch.all_gather_matmul(x, [wq.t(), wk.t(), wv.t()], group)
    """
    name = group if type(group) is str else name_of(group)
    try:
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if gather_dim:
            gather_dim = _dimension(gather_dim, a, "gather_dim")
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and _have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options: dict[str, Any] = {"return_gathered": return_gathered, "out_dtype": out_dtype}
            along, scales = {"gather_dim": gather_dim}, (scale_a, scale_b)
            return tangents.product(all_gather_matmul, a, b, name, bias, scales, along, options)
        if not isinstance(b, Tensor):
            return list_of_products(
                a, list(b), name, gather_dim, bias, return_gathered, scale_a, scale_b, out_dtype, out
            )
        if return_gathered:
            outs = None if out is None else [out]
            gathered, products = list_of_products(
                a, [b], name, gather_dim, [bias], True, scale_a, [scale_b], out_dtype, outs
            )
            return gathered, products[0]
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            _expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.AllGatherMatmul.apply(a, b, bias, name, gather_dim, scale_a, scale_b, out_dtype)
        if (
            not gather_dim
            and bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and not _is_traced()
        ):
            if out is None:
                return _all_gather_matmul_plain(a, b, name)
            expect_writable(out)
            _all_gather_matmul_plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return _all_gather_matmul(a, b, name, gather_dim, bias, scale_a, scale_b, out_dtype)
        expect_writable(out)
        _all_gather_matmul_out(a, b, name, gather_dim, bias, scale_a, scale_b, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    scatter_dim: int = 0,
    pad: bool = False,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    codec: str | None = None,
    tolerance: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """
    Multiplies, sums over the ranks, and splits the rows: the second layer of a sequence-parallel MLP. Collective.

    Args:
        a: M x K/R, or of three dimensions with K/R last; rows as for `all_gather_matmul`.
        b: K/R x N, of a's dtype, as for `all_gather_matmul`.
        group: the R ranks, as for `all_gather_matmul`.
        scatter_dim: the dimension of the result that is split; it divides by R, or `pad` is set.
        pad: put zeros behind `a` until that dimension divides by R, in a copy, which is also made where `a` lies
            otherwise than it must. Every rank gets as many rows; those past the last one hold the bias, or zeros.
        bias: N elements, the same on every rank, added once.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        out_dtype: as for `all_gather_matmul`.
        codec: the sum travels in codes of so many bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum; not with scales. The all-reduce comes
            behind the product then.
        out: where the result goes. Not with gradients.

    Returns:
        This rank's part of the sum, M/R x N; `y.movedim(scatter_dim, 0)` lies without gaps.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y = imbrex.torch.matmul_reduce_scatter(h, weight.t(), group)
    """
    name = group if type(group) is str else name_of(group)
    try:
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if scatter_dim:
            scatter_dim = _dimension(scatter_dim, a, "scatter_dim")
        if pad:
            a, scale_a = padded(a, scale_a, scatter_dim, size_of(name), "matmul_reduce_scatter")
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and _have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"codec": codec, "tolerance": tolerance, "out_dtype": out_dtype}
            along, scales = {"scatter_dim": scatter_dim}, (scale_a, scale_b)
            return tangents.product(matmul_reduce_scatter, a, b, name, bias, scales, along, options)
        if tolerance is not None:
            _expect_for_tolerance(a, b, scale_a, scale_b, out, scatter_dim, size_of(name))
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            _expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulReduceScatter.apply(
                a, b, bias, name, scatter_dim, scale_a, scale_b, out_dtype, codec, tolerance
            )
        if tolerance is not None:
            return _into(autograd.scattered(a, b, bias, name, scatter_dim, out_dtype, codec, tolerance), out)
        if (
            not scatter_dim
            and bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and codec is None
            and not _is_traced()
        ):
            if out is None:
                return _reduce_scatter_plain(a, b, name)
            expect_writable(out)
            _reduce_scatter_plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return _reduce_scatter(a, b, name, scatter_dim, bias, scale_a, scale_b, out_dtype, codec)
        expect_writable(out)
        _reduce_scatter_out(a, b, name, scatter_dim, bias, scale_a, scale_b, codec, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)


def _expect_for_tolerance(
    a: Tensor, b: Tensor, scale_a: Tensor | None, scale_b: Tensor | None, out: Tensor | None, dim: int, parts: int
) -> None:
    if scale_a is not None or scale_b is not None:
        raise InvalidInput("tolerance: not with scale_a and scale_b")
    if out is None:
        return
    expect_writable(out)
    shape = [*a.shape[:-1], b.shape[-1]]
    shape[dim] //= parts
    if list(out.shape) != shape or out.dtype != a.dtype:
        raise InvalidInput(f"out is {tuple(out.shape)} of {out.dtype}: it must be {tuple(shape)} of {a.dtype}")


def _into(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)


def matmul_all_reduce(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    codec: str | None = None,
    tolerance: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """
    Multiplies and sums over the ranks: tensor-parallel layers, decoding. Collective.

    Args:
        a: M x K/R, or of three dimensions with K/R last; rows as for `all_gather_matmul`.
        b: K/R x N, of a's dtype, as for `all_gather_matmul`.
        group: the R ranks, as for `all_gather_matmul`.
        bias: N elements, the same on every rank, added once.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        out_dtype: as for `all_gather_matmul`.
        codec: the sum travels in codes of so many bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum; not with scales. The all-reduce comes
            behind the product then.
        out: where the result goes. Not with gradients.

    Returns:
        The sum, M x N, the same bits on every rank. Its gradient is taken to be the same on every rank, too.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y = imbrex.torch.matmul_all_reduce(h, weight.t(), group)
    """
    name = group if type(group) is str else name_of(group)
    try:
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and _have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"codec": codec, "tolerance": tolerance, "out_dtype": out_dtype}
            return tangents.product(matmul_all_reduce, a, b, name, bias, (scale_a, scale_b), {}, options)
        if tolerance is not None:
            _expect_for_tolerance(a, b, scale_a, scale_b, out, 0, 1)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            _expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulAllReduce.apply(a, b, bias, name, scale_a, scale_b, out_dtype, codec, tolerance)
        if tolerance is not None:
            return _into(autograd.summed(a, b, bias, name, out_dtype, codec, tolerance), out)
        if (
            bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and codec is None
            and not _is_traced()
        ):
            if out is None:
                return _all_reduce_plain(a, b, name)
            expect_writable(out)
            _all_reduce_plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return _all_reduce(a, b, name, 0, bias, scale_a, scale_b, out_dtype, codec)
        expect_writable(out)
        _all_reduce_out(a, b, name, 0, bias, scale_a, scale_b, codec, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)


def matmul_all_to_all(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """
    Multiplies, and sends row blocks to the ranks that want them: expert parallelism. Collective.

    Args:
        a: M x K, each rank's own; M divides by the R ranks.
        b: K x N, each rank's own, of a's dtype, as for `all_gather_matmul`.
        group: the R ranks, as for `all_gather_matmul`.
        bias: N elements, each rank's own.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        out_dtype: as for `all_gather_matmul`.
        out: where the result goes. Not with gradients.

    Returns:
        M x N, whose row block s is this rank's block of rank s's product.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y = imbrex.torch.matmul_all_to_all(tokens, expert.t(), group)
    """
    name = group if type(group) is str else name_of(group)
    try:
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and _have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"out_dtype": out_dtype}
            return tangents.product(matmul_all_to_all, a, b, name, bias, (scale_a, scale_b), {}, options)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            _expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulAllToAll.apply(a, b, bias, name, scale_a, scale_b, out_dtype)
        if bias is None and scale_a is None and scale_b is None and out_dtype is None and not _is_traced():
            if out is None:
                return _all_to_all_plain(a, b, name)
            expect_writable(out)
            _all_to_all_plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return _all_to_all(a, b, name, 0, bias, scale_a, scale_b, out_dtype)
        expect_writable(out)
        _all_to_all_out(a, b, name, 0, bias, scale_a, scale_b, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)
