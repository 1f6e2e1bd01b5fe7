"""Packed results, and the operations that put them back in rows."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

from . import _c
from ._arguments import real, stream_handle
from ._arrays import NAMES, Array, contiguous_strides, empty_beside, expect_one_device, operand_list, text_of
from ._calls import Preparing
from ._errors import InvalidInput
from ._infer import infer, kinds
from ._world import OwnsHandle, World, expect_world

_OPERATIONS = {"copy": 0, "rms_norm": 1, "silu_multiply": 2, "gelu": 3}


@dataclass(frozen=True)
class PackedLayout:
    """
    How a packed matrix lies: in blocks, each by rows, one after another.

    Attributes:
        shape: rows and columns of the matrix.
        block: rows and columns of a block.
        packed_shape: rows and columns of the packed matrix.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    packed_shape: tuple[int, int]
    fields: Any  # imbrex_packed_layout; its array lives as long as the world


class PackedProduct(OwnsHandle):
    """An operator whose result is packed; made for shapes, and kept by the world."""

    def __init__(self, a: Any, b: Any, world: World, bias: Any, stream: int | None) -> None:
        """Collective. Raises InvalidInput for what does not fit."""
        expect_world(world)
        self.world = world
        with Preparing(world):
            stream = stream_handle(stream)
            sources = (("a", a), ("b", b), ("bias", bias))
            self.kept = [Array(name, one, stream=stream) for name, one in sources if one is not None]
            self.a = self.kept[0]
            if len(self.a.shape) != 2 or self.a.type == _c.E4M3:
                raise InvalidInput(
                    f"a is {text_of(self.a.shape)} of {NAMES[self.a.type]}: it must have 2 dimensions, of float32, "
                    "float16 or bfloat16"
                )
            expect_one_device(self.kept)
            views = [(array.name.encode(), array.view()) for array in self.kept]
            call = infer("matmul_all_reduce", world.size, 0, views)
            call.gemm.packed = 1
            self.operands = [(one.name, one.view) for one in call.operands[: call.length] if one.name != b"out"]

            def make() -> ctypes.c_void_p:
                options = _c.new(_c.OperatorOptions, device=self.a.device, heap_limit=self.world._gpu_heap_limit)
                return _c.make(
                    "operator_make",
                    world.handle,
                    kinds()["matmul_all_reduce"],
                    ctypes.byref(call.gemm),
                    ctypes.byref(options),
                )

            self.made = world.made(("packed", bytes(call.gemm), self.a.device), make, "operator_destroy")
            fields = _c.new(_c.PackedLayoutFields)
            _c.call("operator_packed_layout", self.made, ctypes.byref(fields))
            across = fields.cols // fields.block_cols
            self.layout = PackedLayout(
                (fields.rows, fields.cols),
                (fields.block_rows, fields.block_cols),
                (fields.rows * across, fields.block_cols),
                fields,
            )

    def run(self, out: Any, stream: int | None) -> Any:
        """Multiplies and sums over the ranks, into `out`. Collective."""
        with Preparing(self.world):
            stream = stream_handle(stream)
            target = Array("out", out, stream=stream, writes=True)
            if target.shape != self.layout.packed_shape or target.device != self.a.device:
                raise InvalidInput(f"out has shape {target.shape}: it must be {self.layout.packed_shape}, beside a")
        operands = [*self.operands, (b"out", target.view())]
        _c.call("operator_run", self.made, operand_list(operands), len(operands), stream)
        return out


def matmul_all_reduce_packed(
    a: Any, b: Any, world: World, *, bias: Any = None, out: Any = None, stream: int | None = None
) -> tuple[Any, PackedLayout]:
    """
    Multiplies and sums over the ranks, as `matmul_all_reduce`, and leaves the sums in tiles. Collective.

    Putting the result in rows is left to what comes next: `put_back`.

    Args:
        a: M x K/R: float32, float16 or bfloat16.
        b: K/R x N, of a's dtype; on GPUs N is a multiple of a tile's columns, 128 as a rule.
        world: the R ranks.
        bias: N elements, the same on every rank, added once.
        out: where the packed matrix goes, of `layout.packed_shape`. Not given: a new NumPy array.
        stream: GPUs only: the CUDA stream, as an integer. The call returns when it is queued.

    Returns:
        The packed matrix and its layout, which is valid until the world is closed.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y, layout = imbrex.matmul_all_reduce_packed(np.ones((4, 8), "f"), np.ones((8, 2), "f"), world)
        ...     z = imbrex.put_back("rms_norm", y, layout, weight=np.ones(2, "f"))
        >>> z.shape
        (4, 2)
    """
    product = PackedProduct(a, b, world, bias, stream)
    if out is None:
        out = empty_beside(product.a, product.layout.packed_shape, product.a.type)
    return product.run(out, stream), product.layout


def put_back(
    operation: str,
    packed: Any,
    layout: PackedLayout,
    *,
    weight: Any = None,
    residual: Any = None,
    bias: Any = None,
    eps: float = 1e-6,
    out: Any = None,
    residual_out: Any = None,
    stream: int | None = None,
) -> Any:
    """
    Puts a packed matrix back in rows by the operation that comes next. Every rank by itself.

    Args:
        operation: "copy"; "rms_norm", x / sqrt(mean(x^2) + eps) * weight of each row; "silu_multiply",
            silu(g) * u of each row's halves g and u; or "gelu".
        packed: what `matmul_all_reduce_packed` returned.
        layout: the layout that `matmul_all_reduce_packed` returned.
        weight: of rms_norm, a row.
        residual: of rms_norm: it is added before, and the sum, rounded, is also a result.
        bias: of the activations: a row that is added before.
        eps: of rms_norm.
        out: where the result goes. Not given: a new NumPy array.
        residual_out: where the sum with the residual goes, `residual` itself if it may.
        stream: as for `matmul_all_reduce_packed`.

    Returns:
        The result in rows; with a residual, the result and the sum.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.

    Example:
        >>> import imbrex, numpy as np
        >>> with imbrex.World.from_environment() as world:
        ...     y, layout = imbrex.matmul_all_reduce_packed(np.ones((4, 8), "f"), np.ones((8, 2), "f"), world)
        ...     z = imbrex.put_back("copy", y, layout)
        >>> float(z[0, 0]) == 8.0 * world.size
        True
    """
    if not isinstance(operation, str) or operation not in _OPERATIONS:
        raise InvalidInput(f"operation is {operation!r}: it must be one of {', '.join(_OPERATIONS)}")
    stream = stream_handle(stream)
    source = Array("packed", packed, stream=stream)
    if source.shape != layout.packed_shape or source.device != layout.fields.device:
        raise InvalidInput(f"packed has shape {source.shape}: it must be {layout.packed_shape}, where its layout lies")
    rows, cols = layout.shape
    operands, kept = [(b"in", source.view())], [source]

    def give(name: str, given: Any, shape: tuple[int, ...], writes: bool = False) -> None:
        array = Array(name, given, stream=stream, writes=writes)
        if array.shape != shape or array.device != source.device:
            raise InvalidInput(f"{name} has shape {array.shape}: it must be {shape}, beside the packed matrix")
        if array.strides != contiguous_strides(shape) and math.prod(shape) > 1:
            raise InvalidInput(f"{name} has strides of {array.strides} elements: it must lie by rows, without gaps")
        kept.append(array)
        operands.append((name.encode(), array.view()))

    wide = (rows, cols // 2) if operation == "silu_multiply" else (rows, cols)
    for name, given, shape in (
        ("residual", residual, (rows, cols)),
        ("weight", weight, (cols,)),
        ("bias", bias, (cols,)),
    ):
        if given is not None:
            give(name, given, shape)
    if residual is not None:
        sums = empty_beside(source, (rows, cols), source.type) if residual_out is None else residual_out
        give("residual_out", sums, (rows, cols), writes=True)
    result = empty_beside(source, wide, source.type) if out is None else out
    give("out", result, wide, writes=True)
    _c.call(
        "put_back",
        _OPERATIONS[operation],
        ctypes.byref(layout.fields),
        operand_list(operands),
        len(operands),
        real("eps", eps),
        stream,
    )
    return result if residual is None else (result, sums)
