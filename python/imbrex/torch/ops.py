"""The products as users call them: gradients where they are needed, and what the library does not do itself."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn, overload

import torch
from torch import Tensor

from .._errors import InvalidInput
from . import autograd, extension
from .collect import gather_products
from .groups import Group, name_of

_ops = torch.ops.imbrex


# Looked up once: a call costs a few microseconds altogether.
_is_grad_enabled = torch.is_grad_enabled
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


def needs_gradient(a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
    """Whether a call with these tensors is to be recorded."""
    return _is_grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad))


def refuse_out(out: Tensor | None) -> None:
    """Raises InvalidInput where an output is given to a call that is recorded."""
    if out is not None:
        raise InvalidInput("out: what is written into it has no gradient; call without it, or under torch.no_grad()")


def _raise_for_others(error: AttributeError, a: Any, b: Any, bias: Any) -> NoReturn:
    """Raises InvalidInput where one of them is no tensor, which is looked at once a call has failed, else the error."""
    for name, given in (("a", a), ("b", b), ("bias", bias)):
        for one in given if isinstance(given, (list, tuple)) and name != "a" else (given,):
            if one is not None and not isinstance(one, Tensor):
                raise InvalidInput(f"{name} is of type {type(one).__name__}: it must be a torch.Tensor") from None
    raise error


def _dimension(dim: int, a: Tensor, name: str) -> int:
    if not -a.dim() <= dim < a.dim() - 1 or dim == -1:
        raise InvalidInput(f"{name} = {dim} with a of {tuple(a.shape)}: it must be a dimension of a before its last")
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
    if gather_dim:
        gather_dim = _dimension(gather_dim, a, "gather_dim")
    try:
        if not isinstance(b, Tensor):
            return _list_of_products(a, list(b), name, gather_dim, bias, return_gathered, scale_a, scale_b, out)
        if return_gathered:
            gathered, products = _list_of_products(
                a, [b], name, gather_dim, [bias], True, scale_a, [scale_b], None if out is None else [out]
            )
            return gathered, products[0]
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            refuse_out(out)
            return autograd.AllGatherMatmul.apply(a, b, bias, name, gather_dim)
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
            _all_gather_matmul_plain_out(a, b, name, out)
            return out
        if out is None:
            return _all_gather_matmul(a, b, name, gather_dim, bias, scale_a, scale_b, out_dtype)
        _all_gather_matmul_out(a, b, name, gather_dim, bias, scale_a, scale_b, out=out)
        return out
    except RuntimeError as error:
        extension.raise_for(error)
    except AttributeError as error:
        _raise_for_others(error, a, b, bias)


def _list_of_products(
    a: Tensor,
    bs: list[Tensor],
    name: str,
    dim: int,
    biases: Any,
    return_gathered: bool,
    scale_a: Tensor | None,
    scales_b: Any,
    out: Any,
) -> Any:
    """The products of one gathered A, and that A where it is asked for."""
    count = len(bs)
    if count == 0:
        raise InvalidInput("b is an empty list: it must hold one tensor or more")
    given = {"bias": biases, "scale_b": scales_b, "out": out}
    lists: dict[str, list[Any]] = {key: [None] * count if one is None else list(one) for key, one in given.items()}
    for key, one in lists.items():
        if len(one) != count:
            raise InvalidInput(f"{key} has {len(one)} elements, b {count}: it must have as many")
    if scale_a is not None or a.dtype == torch.float8_e4m3fn:
        # Products of 8-bit floats with scales are the library's own: one operator each.
        from .collect import gather

        results = [
            _all_gather_matmul(a, b, name, dim, bias, scale_a, scale_b)
            for b, bias, scale_b in zip(bs, lists["bias"], lists["scale_b"], strict=True)
        ]
        gathered = gather(a, name, dim) if return_gathered else None
    elif any(needs_gradient(a, b, bias) for b, bias in zip(bs, lists["bias"], strict=True)):
        refuse_out(out)
        pairs = [
            autograd.GatherProducts.apply(a, b, bias, name, dim)
            if return_gathered and i == 0
            else (None, autograd.AllGatherMatmul.apply(a, b, bias, name, dim))
            for i, (b, bias) in enumerate(zip(bs, lists["bias"], strict=True))
        ]
        gathered, results = pairs[0][0], [product for _, product in pairs]
    else:
        for b in bs:
            if b.dim() != 2 or b.shape[0] != a.shape[-1] or b.dtype != a.dtype or b.device != a.device:
                raise InvalidInput(
                    f"b is {tuple(b.shape)} of {b.dtype} on {b.device}, a {tuple(a.shape)} of {a.dtype} on {a.device}: "
                    "a's last dimension must be b's first, of one dtype, on one device"
                )
        gathered, results = gather_products(a, bs, name, dim, lists["bias"], keep=return_gathered)
    if out is not None:
        for target, result in zip(out, results, strict=True):
            if target.shape != result.shape:
                raise InvalidInput(f"out is {tuple(target.shape)}: it must be {tuple(result.shape)}")
            target.copy_(result)
        results = list(out)
    return (gathered, results) if return_gathered else results


def matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    group: Group = None,
    *,
    scatter_dim: int = 0,
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
        scatter_dim: the dimension of the result that is split; it divides by R.
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
    if scatter_dim:
        scatter_dim = _dimension(scatter_dim, a, "scatter_dim")
    try:
        if tolerance is not None:
            _refuse_scales(scale_a, scale_b)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            refuse_out(out)
            if codec is None and tolerance is None:
                return autograd.MatmulReduceScatter.apply(a, b, bias, name, scatter_dim)
            return autograd.CodedReduceScatter.apply(a, b, bias, name, scatter_dim, codec, tolerance)
        if tolerance is not None:
            return _into(autograd.coded_scatter(a, b, bias, name, scatter_dim, codec, tolerance), out)
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
            _reduce_scatter_plain_out(a, b, name, out)
            return out
        if out is None:
            return _reduce_scatter(a, b, name, scatter_dim, bias, scale_a, scale_b, out_dtype, codec)
        _reduce_scatter_out(a, b, name, scatter_dim, bias, scale_a, scale_b, codec, out=out)
        return out
    except RuntimeError as error:
        extension.raise_for(error)
    except AttributeError as error:
        _raise_for_others(error, a, b, bias)


def _refuse_scales(scale_a: Tensor | None, scale_b: Tensor | None) -> None:
    if scale_a is not None or scale_b is not None:
        raise InvalidInput("tolerance: not with scale_a and scale_b")


def _into(result: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise InvalidInput(
            f"out is {tuple(out.shape)} of {out.dtype}: it must be {tuple(result.shape)} of {result.dtype}"
        )
    return out.copy_(result)


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
        if tolerance is not None:
            _refuse_scales(scale_a, scale_b)
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            refuse_out(out)
            return autograd.MatmulAllReduce.apply(a, b, bias, name, codec, tolerance)
        if tolerance is not None:
            return _into(autograd.summed(a, b, bias, name, codec, tolerance), out)
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
            _all_reduce_plain_out(a, b, name, out)
            return out
        if out is None:
            return _all_reduce(a, b, name, 0, bias, scale_a, scale_b, out_dtype, codec)
        _all_reduce_out(a, b, name, 0, bias, scale_a, scale_b, codec, out=out)
        return out
    except RuntimeError as error:
        extension.raise_for(error)
    except AttributeError as error:
        _raise_for_others(error, a, b, bias)


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
        if (a.requires_grad or b.requires_grad or bias is not None) and needs_gradient(a, b, bias):
            refuse_out(out)
            return autograd.MatmulAllToAll.apply(a, b, bias, name)
        if bias is None and scale_a is None and scale_b is None and out_dtype is None and not _is_traced():
            if out is None:
                return _all_to_all_plain(a, b, name)
            _all_to_all_plain_out(a, b, name, out)
            return out
        if out is None:
            return _all_to_all(a, b, name, 0, bias, scale_a, scale_b, out_dtype)
        _all_to_all_out(a, b, name, 0, bias, scale_a, scale_b, out=out)
        return out
    except RuntimeError as error:
        extension.raise_for(error)
    except AttributeError as error:
        _raise_for_others(error, a, b, bias)
