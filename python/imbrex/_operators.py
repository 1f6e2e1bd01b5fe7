"""The operators for NumPy's arrays and for those of any library that speaks DLPack."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from . import _c
from ._arguments import flag, index_of, optional_text, stream_handle
from ._arrays import NAMES, Array, empty_beside, leading_dimension, operand_list
from ._calls import Preparing, skip_call
from ._errors import InvalidInput
from ._reductions import NO_REPORT, all_reduce
from ._report import Report, report_of
from ._world import World, expect_world


def _product(
    kind: int,
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
        first, second = Array("a", a, stream=stream, may_be_empty=True), Array("b", b, stream=stream)
        rows, columns = first.shape, second.shape
        if len(rows) not in (2, 3) or len(columns) != 2:
            raise InvalidInput(f"a has shape {rows}, b {columns}: a must have 2 or 3 dimensions, b must have 2")
        if 0 in (rows[-1], *columns):
            raise InvalidInput(f"a has shape {rows}, b {columns}: only a's rows may be none")
        if rows[-1] != columns[0]:
            raise InvalidInput(f"a has shape {rows}, b {columns}: a's last dimension must be b's first")
        if first.type != second.type:
            raise InvalidInput(f"a is {NAMES[first.type]}, b {NAMES[second.type]}: they must be of one type")
        along = index_of(dim)
        if along is None or not 0 <= along <= len(rows) - 2:
            raise InvalidInput(f"dimension {dim!r} with a of shape {rows}: it must be a dimension of a before its last")
        if (scale_a is None) != (scale_b is None):
            raise InvalidInput("scale_a and scale_b: both must be given, or neither")

        shape = [*rows[:-1], columns[1]]
        by_columns = second.lies_by_columns()
        gemm = _c.new(_c.Gemm, m=math.prod(rows[:-1]), n=columns[1], k=columns[0], type=first.type)
        gemm.b_layout = int(by_columns and first.type != _c.E4M3)
        if kind == _c.ALL_GATHER_GEMM:
            shape[along] *= world.size
            gemm.m *= world.size
            gemm.n *= world.size
        elif kind == _c.GEMM_REDUCE_SCATTER and shape[along] % world.size:
            raise InvalidInput(f"a has shape {rows}: dimension {along} must divide by the {world.size} ranks")
        elif kind == _c.GEMM_REDUCE_SCATTER:
            shape[along] //= world.size
        if kind in (_c.GEMM_REDUCE_SCATTER, _c.GEMM_ALL_REDUCE):
            gemm.k *= world.size

        operands = [(b"a", first.matrix(along)), (b"b", second.view())]
        kept = [first, second]
        for name, source in ((b"bias", bias), (b"a_scale", scale_a), (b"b_scale", scale_b)):
            if source is not None:
                kept.append(Array(name.decode(), source, stream=stream))
                operands.append((name, kept[-1].view()))
        gemm.bias = int(bias is not None)
        if scale_a is not None:
            one_each = all(math.prod(array.shape) == 1 for array in kept[-2:])
            gemm.scales = _c.SCALES_TENSOR if one_each else _c.SCALES_ROW
        result = out
        if result is None:
            result = empty_beside(first, tuple(shape), _c.BF16 if first.type == _c.E4M3 else first.type, along)
        target = Array("out", result, stream=stream, writes=True, may_be_empty=True)
        if target.shape != tuple(shape):
            raise InvalidInput(f"out has shape {target.shape}: it must be {tuple(shape)}")
        operands.append((b"out", target.matrix(along)))
        gemm.lda = leading_dimension(operands[0][1])
        gemm.ldb = leading_dimension(operands[1][1], by_columns or first.type == _c.E4M3)
        gemm.ldo = leading_dimension(operands[-1][1])
        for array in [*kept, target]:
            if array.device != first.device:
                raise InvalidInput(f"{array.name} and a must be on one device: one is on the CPU, the other on a GPU")

        def make() -> ctypes.c_void_p:
            options = _c.new(
                _c.OperatorOptions, device=first.device, codec=codec_text, heap_limit=world._gpu_heap_limit
            )
            return _c.make("operator_make", world.handle, kind, ctypes.byref(gemm), ctypes.byref(options))

        sizes = (gemm.m, gemm.n, gemm.k, gemm.lda, gemm.ldb, gemm.ldo)
        key = (kind, *sizes, gemm.type, gemm.bias, gemm.scales, by_columns, first.device, codec_text)
        made = None if gemm.m == 0 else world.made(key, make, "operator_destroy")
    if made is None:
        skip_call(world, f"a has shape {rows}: the rows must be as many on every rank")
        return (result, NO_REPORT) if report else result
    _c.call("operator_run", made, operand_list(operands), len(operands), stream)
    if not report:
        return result
    fields = _c.new(_c.ReportFields)
    _c.call("operator_codec_report", made, stream, ctypes.byref(fields))
    return result, report_of(fields)


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
    return _product(_c.ALL_GATHER_GEMM, a, b, world, gather_dim, bias, scale_a, scale_b, out, stream)


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
        codec: the sum travels in codes of so many bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum. NumPy's arrays without scales only: the
            all-reduce comes behind the product then.
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
            _c.GEMM_REDUCE_SCATTER, a, b, world, scatter_dim, bias, scale_a, scale_b, out, stream, codec, report
        )
    expect_world(world)
    with Preparing(world):
        flag("report", report)
        shape, columns = _shapes_of(a, b)
        along = index_of(scatter_dim)
        if along is None or not 0 <= along <= len(shape) - 2 or shape[along] % world.size:
            raise InvalidInput(
                f"scatter_dim = {scatter_dim!r} with a of shape {shape}: it must be a dimension before the last that "
                f"divides by the {world.size} ranks"
            )
        part = shape[along] // world.size
        _expect_out(out, (*shape[:along], part, *shape[along + 1 : -1], columns[1]))
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
        codec: the sum travels in codes of so many bits, as for `all_reduce`.
        tolerance: with a codec, the largest error that it may cause in a sum. NumPy's arrays without scales only: the
            all-reduce comes behind the product then.
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
        return _product(_c.GEMM_ALL_REDUCE, a, b, world, 0, bias, scale_a, scale_b, out, stream, codec, report)
    expect_world(world)
    with Preparing(world):
        flag("report", report)
        shape, columns = _shapes_of(a, b)
        _expect_out(out, (*shape[:-1], columns[1]))
    summed, told = _within_tolerance(a, b, world, bias, scale_a, codec, tolerance)
    return _handed_over(summed, out, told if report else None)


def _shapes_of(a: Any, b: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the operands of a product with a tolerance. Raises InvalidInput where they make none."""
    plain = [isinstance(one, np.ndarray) and not isinstance(one, np.ma.MaskedArray) for one in (a, b)]
    if not all(plain):
        raise InvalidInput(f"a is a {type(a).__name__}, b a {type(b).__name__}: with a tolerance both are NumPy arrays")
    if a.ndim not in (2, 3) or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise InvalidInput(f"a has shape {a.shape}, b {b.shape}: a's last dimension must be b's first")
    return a.shape, b.shape


def _expect_out(out: Any, shape: tuple[int, ...]) -> None:
    """Raises InvalidInput where the result of that shape does not fit."""
    if out is not None and (not isinstance(out, np.ndarray) or out.shape != shape or not out.flags.writeable):
        raise InvalidInput(f"out: with a tolerance it must be a NumPy array of shape {shape} that can be written")


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
    return _product(_c.GEMM_ALL_TO_ALL, a, b, world, 0, bias, scale_a, scale_b, out, stream)
