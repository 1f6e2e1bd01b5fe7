"""The all-reduce as users call it, alone and fused with add and RMSNorm."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import InvalidInput
from .._report import Report
from . import autograd, extension, tangents
from .groups import Group, name_of
from .recording import expect_seen, expect_writable, has_tangent, needs_gradient, refuse_out, written

_ops = torch.ops.imbrex
_is_traced = torch.compiler.is_dynamo_compiling
_all_reduce, _all_reduce_out = _ops.all_reduce.default, _ops.all_reduce_out.default
_rms_norm, _rms_norm_out = _ops.all_reduce_rms_norm.default, _ops.all_reduce_rms_norm_out.default


@overload
def all_reduce(
    x: Tensor,
    group: Group = ...,
    *,
    codec: str | None = ...,
    tolerance: float | None = ...,
    report: Literal[False] = ...,
    out: Tensor | None = ...,
) -> Tensor: ...
@overload
def all_reduce(
    x: Tensor,
    group: Group = ...,
    *,
    codec: str | None = ...,
    tolerance: float | None = ...,
    report: Literal[True],
    out: Tensor | None = ...,
) -> tuple[Tensor, Report]: ...
def all_reduce(
    x: Tensor,
    group: Group = None,
    *,
    codec: str | None = None,
    tolerance: float | None = None,
    report: bool = False,
    out: Tensor | None = None,
) -> Any:
    """
    Sums over the ranks, exactly or through a codec, with a bound on every error. Collective.

    Args:
        x: any shape of up to four dimensions, the same on every rank, without gaps; bfloat16, float16 or float32.
        group: the ranks, as for `all_gather_matmul`.
        codec: "int8", "int4+int8" and so on (docs/quantization.md); not given: exact, each sum rounded once.
        tolerance: with a codec, the largest error that it may cause; what could exceed it travels as elements.
        report: also return what the codec did, which all ranks wait for.
        out: where the sum goes, x itself if it may; not with gradients.

    Returns:
        The sum, the same bits on every rank; its gradient is taken to be the same on every rank, too. With `report` a
        pair: the sum, and an `imbrex.Report`.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y, told = imbrex.torch.all_reduce(x, group, codec="int8", tolerance=0.1, report=True)
        >>> told.largest_error <= 0.1
        True
    """
    name = name_of(group)
    try:
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and has_tangent(x):
            refuse_out(out)
            options = {"codec": codec, "tolerance": tolerance, "report": report}
            return tangents.all_reduce(all_reduce, x, name, options)
        if needs_gradient(x, x, None):
            refuse_out(out)
            result = autograd.AllReduce.apply(x, name, codec, tolerance, report)
        elif out is None:
            result = _all_reduce(x, name, codec, tolerance, report)
        else:
            expect_writable(out)
            _all_reduce_out(x, name, codec, tolerance, report, out=out)
            written(out)
            result = out
        return (result, told(name)) if report else result
    except Exception as error:
        extension.raise_for(error, name, x=x, out=out)


def told(name: str) -> Report:
    """The report of the group's last all-reduce that was made with one."""
    return extension.report(name)


def all_reduce_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float = 1e-6,
    group: Group = None,
    *,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """
    Sums over the ranks, adds the residual, and normalises each row: what lies between two layers. Collective.

    Args:
        x: this rank's part, rows of `hidden` elements, of up to four dimensions with hidden last, without gaps.
        residual: as x, the same on every rank, added to the sum; None: nothing is added.
        weight: hidden elements of x's dtype or float32, the same on every rank. Products with it are computed in
            float32 and rounded once, to x's dtype.
        eps: added to the mean of the squares.
        group: the ranks, as for `all_gather_matmul`.
        out: where the normalised rows go; both outputs are given, or none. Not with gradients.
        residual_out: where the sum goes; it may be `residual` or `x`.

    Returns:
        The normalised rows, and the sum with the residual; the same bits on every rank.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names. Nothing was launched.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y, residual = imbrex.torch.all_reduce_rms_norm(x, residual, norm.weight, 1e-6, group)
    """
    name = name_of(group)
    try:
        if _is_traced():
            expect_seen()
        if forward_ad._current_level >= 0 and has_tangent(x, residual, weight):
            refuse_out(out)
            refuse_out(residual_out)
            return tangents.all_reduce_rms_norm(all_reduce_rms_norm, x, residual, weight, eps, name)
        if needs_gradient(x, weight, residual):
            refuse_out(out)
            refuse_out(residual_out)
            return autograd.AllReduceRmsNorm.apply(x, residual, weight, eps, name)
        if out is None and residual_out is None:
            return _rms_norm(x, residual, weight, eps, name)
        if out is None or residual_out is None:
            raise InvalidInput("out and residual_out: both must be given, or neither")
        expect_writable(out)
        expect_writable(residual_out, "residual_out")
        _rms_norm_out(x, residual, weight, eps, name, out=out, residual_out=residual_out)
        written(out, residual_out)
        return out, residual_out
    except Exception as error:
        extension.raise_for(error, name, x=x, residual=residual, weight=weight, out=out, residual_out=residual_out)
