"""The products as users call them: gradients where they are needed, and what the library does not do itself."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import InvalidInput
from . import autograd, extension, front, tangents
from .autocast import cast
from .autocast import is_on as autocast_is_on
from .groups import Group, name_of, size_of
from .lists import list_of_products
from .recording import (
    expect_no_gradient_of_8_bits,
    expect_seen,
    expect_writable,
    needs_gradient,
    refuse_out,
    written,
)
from .rows import scatter_rows
from .shapes import counts_of, expect_out_dtype, padded


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
    rows: Sequence[int] | None = ...,
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
    rows: Sequence[int] | None = ...,
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
    rows: Sequence[int] | None = ...,
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
    rows: Sequence[int] | None = ...,
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
    rows: Sequence[int] | None = None,
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
        rows: each rank's rows along gather_dim, where they are not as many: the same list on every rank, zeros among
            them or not. A is padded to the largest number, in a copy.

    Returns:
        M x N/R, of a's dimensions with gather_dim R times as long; `y.movedim(gather_dim, 0)` lies without gaps. For
        several b a list. With return_gathered a pair: the gathered A, and that.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Up to three b of 16 or 32 bits that lie alike, with a bias each or none, run as one plan. It has one gather, and the
    gathered A is its output. Other combinations run as torch's own gather and products.

    Example:
        >>> y = imbrex.torch.all_gather_matmul(x, weight.t(), group)
        >>> q, k, v = imbrex.torch.all_gather_matmul(x, [wq.t(), wk.t(), wv.t()], group)
    """
    name = group if type(group) is str else name_of(group)
    try:
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if gather_dim:
            gather_dim = front.dimension(gather_dim, a, "gather_dim")
        if front.is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and front.have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options: dict[str, Any] = {"return_gathered": return_gathered, "out_dtype": out_dtype}
            along, scales = {"gather_dim": gather_dim, "rows": rows}, (scale_a, scale_b)
            return tangents.product(all_gather_matmul, a, b, name, bias, scales, along, options)
        if rows is not None:
            rows = counts_of("rows", rows, size_of(name))
        if not isinstance(b, Tensor):
            return list_of_products(
                a, list(b), name, gather_dim, bias, return_gathered, scale_a, scale_b, out_dtype, out, rows
            )
        if return_gathered or rows is not None:
            outs = None if out is None else [out]
            found = list_of_products(
                a, [b], name, gather_dim, [bias], return_gathered, scale_a, [scale_b], out_dtype, outs, rows
            )
            return (found[0], found[1][0]) if return_gathered else found[0]
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            front.expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.AllGatherMatmul.apply(a, b, bias, name, gather_dim, scale_a, scale_b, out_dtype)
        if (
            not gather_dim
            and bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and not front.is_traced()
        ):
            if out is None:
                return front.all_gather.plain(a, b, name)
            expect_writable(out)
            front.all_gather.plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return front.all_gather.full(a, b, name, gather_dim, bias, scale_a, scale_b, out_dtype)
        expect_writable(out)
        front.all_gather.full_out(a, b, name, gather_dim, bias, scale_a, scale_b, out=out)
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
    rows: Sequence[int] | None = None,
) -> Tensor:
    """
    Multiplies, sums over the ranks, and splits the rows: the second layer of a sequence-parallel MLP. Collective.

    Args:
        a: M x K/R, or of three dimensions with K/R last; rows as for `all_gather_matmul`.
        b: K/R x N, of a's dtype, as for `all_gather_matmul`.
        group: the R ranks, as for `all_gather_matmul`.
        scatter_dim: the dimension of the result that is split; it divides by R, or `pad` or `rows` is set.
        pad: put zeros behind `a` until that dimension divides by R, in a copy, which is also made where `a` lies
            otherwise than it must. Every rank gets as many rows; those past the last one hold the bias, or zeros.
        bias: N elements, the same on every rank, added once.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        out_dtype: as for `all_gather_matmul`.
        codec: the sum travels in codes of fewer bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum; not with scales. The all-reduce comes
            after the product then.
        out: where the result goes. Not with gradients.
        rows: how many rows of the result each rank gets, M altogether: the same list on every rank. A is padded so that
            all get the largest number, in a copy.

    Returns:
        This rank's part of the sum, M/R x N, or rows[rank] x N; `y.movedim(scatter_dim, 0)` lies without gaps.

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
            scatter_dim = front.dimension(scatter_dim, a, "scatter_dim")
        if pad and rows is not None:
            raise InvalidInput("pad and rows: pad gives every rank as many rows, so only one of them may be given")
        if pad:
            a, scale_a = padded(a, scale_a, scatter_dim, size_of(name), "matmul_reduce_scatter")
        if front.is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and front.have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"codec": codec, "tolerance": tolerance, "out_dtype": out_dtype}
            along, scales = {"scatter_dim": scatter_dim, "rows": rows}, (scale_a, scale_b)
            return tangents.product(matmul_reduce_scatter, a, b, name, bias, scales, along, options)
        if rows is not None:
            if tolerance is not None:
                front.expect_for_tolerance(a, b, scale_a, scale_b, None, scatter_dim, size_of(name))
            expect_out_dtype(a.dtype, out_dtype)
            counts = counts_of("rows", rows, size_of(name))
            return scatter_rows(a, b, name, counts, scatter_dim, bias, scale_a, scale_b, codec, tolerance, out)
        if tolerance is not None:
            front.expect_for_tolerance(a, b, scale_a, scale_b, out, scatter_dim, size_of(name))
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            front.expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulReduceScatter.apply(
                a, b, bias, name, scatter_dim, scale_a, scale_b, out_dtype, codec, tolerance
            )
        if tolerance is not None:
            return front.into(autograd.scattered(a, b, bias, name, scatter_dim, out_dtype, codec, tolerance), out)
        if (
            not scatter_dim
            and bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and codec is None
            and not front.is_traced()
        ):
            if out is None:
                return front.reduce_scatter.plain(a, b, name)
            expect_writable(out)
            front.reduce_scatter.plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return front.reduce_scatter.full(a, b, name, scatter_dim, bias, scale_a, scale_b, out_dtype, codec)
        expect_writable(out)
        front.reduce_scatter.full_out(a, b, name, scatter_dim, bias, scale_a, scale_b, codec, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)


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
        codec: the sum travels in codes of fewer bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum; not with scales. The all-reduce comes
            after the product then.
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
        if front.is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and front.have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"codec": codec, "tolerance": tolerance, "out_dtype": out_dtype}
            return tangents.product(matmul_all_reduce, a, b, name, bias, (scale_a, scale_b), {}, options)
        if tolerance is not None:
            front.expect_for_tolerance(a, b, scale_a, scale_b, out, 0, 1)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            front.expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulAllReduce.apply(a, b, bias, name, scale_a, scale_b, out_dtype, codec, tolerance)
        if tolerance is not None:
            return front.into(autograd.summed(a, b, bias, name, out_dtype, codec, tolerance), out)
        if (
            bias is None
            and scale_a is None
            and scale_b is None
            and out_dtype is None
            and codec is None
            and not front.is_traced()
        ):
            if out is None:
                return front.all_reduce.plain(a, b, name)
            expect_writable(out)
            front.all_reduce.plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return front.all_reduce.full(a, b, name, 0, bias, scale_a, scale_b, out_dtype, codec)
        expect_writable(out)
        front.all_reduce.full_out(a, b, name, 0, bias, scale_a, scale_b, codec, out=out)
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
    rows: None = None,
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
        rows: None: any two ranks exchange blocks of one size, which no list of each rank's rows describes.

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
        if rows is not None:
            raise InvalidInput(f"rows = {rows}: it must be None, since blocks of matmul_all_to_all are all of one size")
        if autocast_is_on() and out is None:  # as torch.mm, whose out= is not cast
            a, b, bias = cast(a, b, bias)
        if front.is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and front.have_tangents(a, b, bias, scale_a, scale_b):
            refuse_out(out)
            options = {"out_dtype": out_dtype}
            return tangents.product(matmul_all_to_all, a, b, name, bias, (scale_a, scale_b), {}, options)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            front.expect_recorded(a, b, scale_a, scale_b, out)
            return autograd.MatmulAllToAll.apply(a, b, bias, name, scale_a, scale_b, out_dtype)
        if bias is None and scale_a is None and scale_b is None and out_dtype is None and not front.is_traced():
            if out is None:
                return front.all_to_all.plain(a, b, name)
            expect_writable(out)
            front.all_to_all.plain_out(a, b, name, out)
            written(out)
            return out
        if scale_a is not None:
            expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
        if out is None:
            return front.all_to_all.full(a, b, name, 0, bias, scale_a, scale_b, out_dtype)
        expect_writable(out)
        front.all_to_all.full_out(a, b, name, 0, bias, scale_a, scale_b, out=out)
        written(out)
        return out
    except Exception as error:
        extension.raise_for(error, name, a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)
