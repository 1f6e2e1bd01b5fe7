"""The operators for NumPy's arrays and for those of any library that speaks DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _c
from ._arguments import LARGEST_32, flag, index_of, optional_text, stream_handle
from ._arrays import Array, empty_beside, expect_one_device, text_of
from ._calls import Preparing, skip_call
from ._errors import InvalidInput
from ._infer import infer, kinds, shape_of
from ._reductions import NO_REPORT, all_reduce
from ._report import Report, report_of
from ._world import World, expect_world


def _product(
    name: str,
    a: Any,
    b: Any,
    world: World,
    dim: int,
    bias: Any,
    scale_a: Any,
    scale_b: Any,
    out: Any,
    stream: int | None,
    codec: str | None = None,
    report: bool = False,
) -> Any:
    expect_world(world)
    with Preparing(world):
        stream, report, codec_text = stream_handle(stream), bool(flag("report", report)), optional_text("codec", codec)
        along = _dimension(dim)
        sources = ((b"a", a), (b"b", b), (b"bias", bias), (b"a_scale", scale_a), (b"b_scale", scale_b), (b"out", out))
        kept = [
            Array(operand.decode(), source, stream=stream, writes=operand == b"out", may_be_empty=True)
            for operand, source in sources
            if source is not None
        ]
        expect_one_device(kept)
        call = infer(name, world.size, along, [(array.name.encode(), array.view()) for array in kept])
        result = out
        if result is None:
            result = empty_beside(kept[0], shape_of(call.results.out), call.results.out.type, along)
            call.place(b"out", Array("out", result, writes=True, may_be_empty=True).data)
        kind, device = kinds()[name], kept[0].device

        def make() -> ctypes.c_void_p:
            options = _c.new(_c.OperatorOptions, device=device, codec=codec_text, heap_limit=world._gpu_heap_limit)
            return _c.make("operator_make", world.handle, kind, ctypes.byref(call.gemm), ctypes.byref(options))

        key = (kind, bytes(call.gemm), device, codec_text)
        made = None if call.gemm.m == 0 else world.made(key, make, "operator_destroy")
    if made is None:
        skip_call(world, f"a is {text_of(kept[0].shape)}: the rows must be as many on every rank")
        return (result, NO_REPORT) if report else result
    _c.call("operator_run", made, call.operands, call.length, stream)
    if not report:
        return result
    fields = _c.new(_c.ReportFields)
    _c.call("operator_codec_report", made, stream, ctypes.byref(fields))
    return result, report_of(fields)


def _dimension(given: Any) -> int:
    """A dimension as C takes it, which says whether `a` has it."""
    dim = index_of(given)
    if dim is None or abs(dim) > LARGEST_32:
        raise InvalidInput(f"dim = {given!r}: it must be a dimension of a before its last")
    return dim


def all_gather_matmul(
    a: Any,
    b: Any,
    world: World,
    *,
    gather_dim: int = 0,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Gathers A over the ranks, then multiplies: the first layer of a sequence-parallel MLP or attention. Collective.

    Args:
        a: this rank's rows, M/R x K, or of three dimensions with K last. float32, float16, bfloat16 or float8_e4m3fn.
            Rows that lie apart, as those of a slice `x[:, :k]`, are read where they lie: so are those of `b`, and `out`
            may be a block of columns. How far apart they lie is the same on every rank.
        b: this rank's columns, K x N/R, of a's dtype; of float8_e4m3fn by columns, as the transpose of an array.
        world: the R ranks.
        gather_dim: the dimension of `a` that is gathered.
        bias: N/R elements that are added to every row, of out's dtype.
        scale_a: float8_e4m3fn only, float32: one element, or one for each row of `a`; both scales or none.
        scale_b: one element, or one for each column of `b`.
        out: where the result goes, M x N/R; bfloat16 where a is float8_e4m3fn. Not given: a new NumPy array.
        stream: GPUs only: the CUDA stream, as an integer. The call returns when it is queued.

    Returns:
        The result: `out`, or a new NumPy array.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y = imbrex.all_gather_matmul(np.ones((4, 8), np.float32), np.ones((8, 2), np.float32), world)
        >>> float(y[0, 0])
        8.0
    """
    return _product("all_gather_matmul", a, b, world, gather_dim, bias, scale_a, scale_b, out, stream)


def matmul_reduce_scatter(
    a: Any,
    b: Any,
    world: World,
    *,
    scatter_dim: int = 0,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    codec: str | None = None,
    tolerance: float | None = None,
    report: bool = False,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Multiplies, sums over the ranks, and splits the rows: the second layer of a sequence-parallel MLP. Collective.

    Args:
        a: M x K/R, or of three dimensions with K/R last.
        b: K/R x N, of a's dtype and as for `all_gather_matmul`.
        world: the R ranks.
        scatter_dim: the dimension of the result that is split.
        bias: N elements, the same on every rank, added once.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        codec: the sum travels in codes of fewer bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum. NumPy's arrays without scales only: the
            all-reduce comes after the product then.
        report: with a codec, also return what it did, before a bias.
        out: where the result goes, M/R x N.
        stream: as for `all_gather_matmul`.

    Returns:
        The rank's rows of the sum: `out`, or a new NumPy array. With `report`, these and a `Report`.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y = imbrex.matmul_reduce_scatter(np.ones((4, 8), np.float32), np.ones((8, 2), np.float32), world)
        >>> y.shape[0] * world.size
        4
    """
    if tolerance is None:
        return _product(
            "matmul_reduce_scatter", a, b, world, scatter_dim, bias, scale_a, scale_b, out, stream, codec, report
        )
    expect_world(world)
    with Preparing(world):
        flag("report", report)
        along = _dimension(scatter_dim)
        part = _wanted("matmul_reduce_scatter", a, b, world, along, out)[along]
    summed, told = _within_tolerance(a, b, world, bias, scale_a, codec, tolerance)
    mine = np.moveaxis(np.moveaxis(summed, along, 0)[world.rank * part : (world.rank + 1) * part], 0, along)
    return _handed_over(mine, out, told if report else None)


def matmul_all_reduce(
    a: Any,
    b: Any,
    world: World,
    *,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    codec: str | None = None,
    tolerance: float | None = None,
    report: bool = False,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Multiplies and sums over the ranks: tensor-parallel layers, decoding. Collective.

    Args:
        a: M x K/R, or of three dimensions with K/R last.
        b: K/R x N, of a's dtype and as for `all_gather_matmul`.
        world: the R ranks.
        bias: N elements, the same on every rank, added once.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        codec: the sum travels in codes of fewer bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum. NumPy's arrays without scales only: the
            all-reduce comes after the product then.
        report: with a codec, also return what it did, before a bias.
        out: where the result goes, M x N.
        stream: as for `all_gather_matmul`.

    Returns:
        The sum, the same bits on every rank: `out`, or a new NumPy array. With `report`, the sum and a `Report`.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y = imbrex.matmul_all_reduce(np.ones((4, 8), np.float32), np.ones((8, 2), np.float32), world)
        >>> float(y[0, 0]) == 8.0 * world.size
        True
    """
    if tolerance is None:
        return _product("matmul_all_reduce", a, b, world, 0, bias, scale_a, scale_b, out, stream, codec, report)
    expect_world(world)
    with Preparing(world):
        flag("report", report)
        _wanted("matmul_all_reduce", a, b, world, 0, out)
    summed, told = _within_tolerance(a, b, world, bias, scale_a, codec, tolerance)
    return _handed_over(summed, out, told if report else None)


def _wanted(name: str, a: Any, b: Any, world: World, dim: int, out: Any) -> tuple[int, ...]:
    """The shape of a product with a tolerance. Raises InvalidInput where the operands make none, or `out` misfits."""
    plain = [isinstance(one, np.ndarray) and not isinstance(one, np.ma.MaskedArray) for one in (a, b)]
    if not all(plain):
        raise InvalidInput(f"a is a {type(a).__name__}, b a {type(b).__name__}: with a tolerance both are NumPy arrays")
    views = [(name.encode(), Array(name, one, may_be_empty=True).view()) for name, one in (("a", a), ("b", b))]
    shape = shape_of(infer(name, world.size, dim, views).results.out)
    if out is not None and (not isinstance(out, np.ndarray) or out.shape != shape or not out.flags.writeable):
        raise InvalidInput(f"out: with a tolerance it must be a NumPy array of shape {shape} that can be written")
    return shape


def _within_tolerance(
    a: Any, b: Any, world: World, bias: Any, scale_a: Any, codec: str | None, tolerance: float
) -> tuple[np.ndarray[Any, Any], Report]:
    """The product, then its sum: the library's operators take no tolerance."""
    with Preparing(world):
        if scale_a is not None:
            raise InvalidInput("tolerance: a and b must be NumPy arrays without scales")
        if bias is not None and np.shape(bias) != np.shape(b)[-1:]:
            raise InvalidInput(f"bias has shape {np.shape(bias)}: it must be {np.shape(b)[-1:]}")
        product = np.matmul(a, b)
    summed, told = all_reduce(product, world, codec=codec, tolerance=tolerance, report=True)
    if bias is not None:
        summed += bias
    return summed, told


def _handed_over(result: np.ndarray[Any, Any], out: Any, told: Report | None) -> Any:
    if out is None:
        out = np.ascontiguousarray(result)
    else:
        np.copyto(out, result)
    return out if told is None else (out, told)


def matmul_all_to_all(
    a: Any,
    b: Any,
    world: World,
    *,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Multiplies, and sends row blocks to the ranks that want them: expert parallelism. Collective.

    Args:
        a: M x K, each rank's own; M divides by the ranks.
        b: K x N, each rank's own, of a's dtype and as for `all_gather_matmul`.
        world: the R ranks.
        bias: N elements, each rank's own.
        scale_a: as for `all_gather_matmul`.
        scale_b: as for `all_gather_matmul`.
        out: where the result goes, M x N.
        stream: as for `all_gather_matmul`.

    Returns:
        M x N, whose row block s comes from rank s: `out`, or a new NumPy array.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y = imbrex.matmul_all_to_all(np.ones((4, 8), np.float32), np.ones((8, 2), np.float32), world)
        >>> y.shape
        (4, 2)
    """
    return _product("matmul_all_to_all", a, b, world, 0, bias, scale_a, scale_b, out, stream)
