"""The all-reduce, alone and with a norm, for NumPy's arrays and for those of any library that speaks DLPack."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from . import _c
from ._arguments import flag, optional_text, real, stream_handle
from ._arrays import NAMES, Array, contiguous_strides, empty_beside, operand_list
from ._calls import Preparing, skip_call
from ._errors import InvalidInput
from ._report import Report, report_of
from ._world import World, expect_world

NO_REPORT = Report(0.0, 0, 0, 0, exact=True, algorithm="")  # of a call without elements


def _result_like(x: Array, out: Any, name: str, stream: int | None) -> tuple[Any, Array]:
    result = empty_beside(x, x.shape, x.type) if out is None else out
    array = Array(name, result, stream=stream, writes=True, may_be_empty=True)
    if array.shape != x.shape or array.type != x.type or array.device != x.device:
        raise InvalidInput(
            f"{name} has shape {array.shape} of {NAMES[array.type]}: it must be as x, {x.shape} of {NAMES[x.type]}"
        )
    return result, array


def _check_plain(array: Array) -> None:
    if array.strides != contiguous_strides(array.shape) and math.prod(array.shape) > 1:
        raise InvalidInput(f"{array.name} has strides of {array.strides} elements: it must lie by rows, without gaps")


def all_reduce(
    x: Any,
    world: World,
    *,
    codec: str | None = None,
    tolerance: float | None = None,
    report: bool = False,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Sums over the ranks, exactly or through a codec, with a bound on every error. Collective.

    Args:
        x: any shape, the same on every rank; float32, float16 or bfloat16, by rows without gaps.
        world: the ranks.
        codec: "int8", "int4+int8" and so on (docs/quantization.md); not given: exact, each sum rounded once.
        tolerance: with a codec, the largest error that it may cause; what could exceed it travels as elements.
        report: also return what the codec did.
        out: where the sum goes, as x, or x itself. Not given: a new NumPy array.
        stream: as for `all_gather_matmul`.

    Returns:
        The sum, the same bits on every rank; with `report`, the sum and a `Report`.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y, report = imbrex.all_reduce(np.ones(1024, np.float32), world, codec="int8", report=True)
        >>> bool(abs(y[0] - world.size) <= report.largest_error + 1e-6)
        True
    """
    expect_world(world)
    with Preparing(world):
        stream, report = stream_handle(stream), bool(flag("report", report))
        limit = None if tolerance is None else ctypes.c_float(real("tolerance", tolerance))
        codec_text = optional_text("codec", codec)
        source = Array("x", x, stream=stream, may_be_empty=True)
        result, target = _result_like(source, out, "out", stream)
        count = math.prod(source.shape)
        most = 1 << (count - 1).bit_length()

        def make() -> ctypes.c_void_p:
            options = _c.new(_c.AllReduceOptions, device=source.device, no_report=int(not report))
            options.codec = codec_text
            if limit is not None:
                options.tolerance = ctypes.pointer(limit)
            return _c.make("all_reduce_make", world.handle, most, source.type, ctypes.byref(options))

        key = (
            "all_reduce",
            most,
            source.type,
            source.device,
            codec_text,
            None if limit is None else limit.value,
            report,
        )
        made = None if count == 0 else world.made(key, make, "collective_destroy")
    if made is None:
        skip_call(world, f"x has shape {source.shape}: its size must be the same on every rank")
        return (result, NO_REPORT) if report else result
    operands = operand_list([(b"in", source.view()), (b"out", target.view())])
    _c.call("collective_run", made, operands, len(operands), stream)
    if not report:
        return result
    return result, _report(made)


def _report(made: ctypes.c_void_p) -> Report:
    fields = _c.new(_c.ReportFields)
    _c.call("collective_report", made, ctypes.byref(fields))
    return report_of(fields)


def all_reduce_rms_norm(
    x: Any,
    residual: Any,
    weight: Any,
    world: World,
    *,
    eps: float = 1e-6,
    out: Any = None,
    residual_out: Any = None,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """
    Sums over the ranks, adds the residual, and normalises each row: what lies between two layers. Collective.

    Args:
        x: this rank's part, rows of `hidden` elements, of any number of dimensions with hidden last.
        residual: as x, the same on every rank; added to the sum. None: nothing is added.
        weight: hidden elements, the same on every rank; of x's dtype or float32, which is not rounded to x's.
        world: the ranks.
        eps: added to the mean of the squares.
        out: where the normalised rows go, as x. Not given: a new NumPy array.
        residual_out: where the sum goes, as x. Not given: a new NumPy array.
        stream: as for `all_gather_matmul`.

    Returns:
        The normalised rows, and the sum with the residual, the same bits on every rank.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y, s = imbrex.all_reduce_rms_norm(np.ones((2, 8), np.float32), None, np.ones(8, np.float32), world)
        >>> bool(abs(y[0, 0] - 1) < 1e-3)
        True
    """
    expect_world(world)
    with Preparing(world):
        stream, added = stream_handle(stream), ctypes.c_float(real("eps", eps))
        source = Array("x", x, stream=stream, may_be_empty=True)
        scale = Array("weight", weight, stream=stream)
        if not source.shape or scale.shape != source.shape[-1:]:
            raise InvalidInput(f"weight has shape {scale.shape}, x {source.shape}: weight must be one row of x")
        if scale.type not in (source.type, _c.FP32):
            raise InvalidInput(
                f"weight is {NAMES[scale.type]}, x {NAMES[source.type]}: weight must be fp32, or of x's type"
            )
        hidden = source.shape[-1]
        rows = math.prod(source.shape) // hidden
        operands = [(b"in", source.view())]
        kept = [source, scale]
        if residual is not None:
            kept.append(Array("residual", residual, stream=stream, may_be_empty=True))
            if kept[-1].shape != source.shape:
                raise InvalidInput(f"residual has shape {kept[-1].shape}: it must be as x, {source.shape}")
            operands.append((b"residual", kept[-1].view()))
        for array in kept:
            _check_plain(array)
        sums, sums_array = _result_like(source, residual_out, "residual_out", stream)
        result, result_array = _result_like(source, out, "out", stream)
        operands += [(b"weight", scale.view()), (b"residual_out", sums_array.view()), (b"out", result_array.view())]
        most = 1 << (rows - 1).bit_length()

        def make() -> ctypes.c_void_p:
            options = _c.new(_c.RmsNormOptions, device=source.device, eps=ctypes.pointer(added))
            options.weight_type = ctypes.pointer(ctypes.c_int32(scale.type))
            return _c.make("all_reduce_rms_norm_make", world.handle, most, hidden, source.type, ctypes.byref(options))

        key = ("rms_norm", most, hidden, source.type, source.device, added.value, scale.type)
        made = None if rows == 0 else world.made(key, make, "collective_destroy")
    if made is None:
        skip_call(world, f"x has shape {source.shape}: its size must be the same on every rank")
        return result, sums
    _c.call("collective_run", made, operand_list(operands), len(operands), stream)
    return result, sums
