"""Arrays of any library, as views of their memory: NumPy's own, and whatever speaks DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _c
from ._errors import InvalidInput

_TYPES = {
    "bfloat16": _c.BF16,
    "float16": _c.FP16,
    "float32": _c.FP32,
    "float8_e4m3fn": _c.E4M3,
    "uint8": _c.INT8,
    "int32": _c.INT32,
    "int64": _c.INT64,
}
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn")
NAMES = ("bf16", "fp16", "fp32", "e4m3")

# DLPack's numbers: (code, bits) of the types, and the kinds of devices.
_DL_TYPES = {
    (2, 32): "float32",
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (1, 8): "uint8",
    (0, 32): "int32",
    (0, 64): "int64",
}
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST = 1, 2, 3
_DL_LEGACY_STREAM = 1


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class Array:
    """An array's memory, which is kept alive as long as this is."""

    def __init__(
        self,
        name: str,
        source: Any,
        *,
        stream: int | None = None,
        writes: bool = False,
        takes: tuple[str, ...] = FLOATS,
        may_be_empty: bool = False,
    ) -> None:
        """
        Reads shape, strides, type and device of `source`.

        Raises InvalidInput for what Imbrex does not take: of dtypes, those that `takes` does not name.
        """
        self.name, self.source, self.takes = name, source, takes
        if isinstance(source, np.ndarray):
            self._from_numpy(source, writes)
        elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
            self._from_dlpack(source, stream)
        else:
            raise InvalidInput(f"{name} is a {type(source).__name__}: it must be a NumPy array, or speak DLPack")
        if len(self.shape) > _c.MOST_DIMS:
            raise InvalidInput(f"{name} has {len(self.shape)} dimensions: at most {_c.MOST_DIMS}")
        if 0 in self.shape and not may_be_empty:
            raise InvalidInput(f"{name} has shape {self.shape}: no dimension may be 0")

    def _from_numpy(self, source: np.ndarray[Any, Any], writes: bool) -> None:
        if isinstance(source, np.ma.MaskedArray):
            raise InvalidInput(f"{self.name} is a masked array: it must be a plain one, since masks are not looked at")
        name = source.dtype.name
        if name not in self.takes or not source.dtype.isnative:
            raise InvalidInput(f"{self.name} is of dtype {source.dtype}: it must be {self._taken()}")
        if writes and not source.flags.writeable:
            raise InvalidInput(f"{self.name} is read-only: the result is written to it")
        if any(stride % source.itemsize for stride in source.strides):
            raise InvalidInput(f"{self.name} has strides of {source.strides} bytes: they must be whole elements")
        self.type = _TYPES[name]
        self.device = _c.CPU
        self.data = source.ctypes.data
        self.shape = tuple(source.shape)
        self.strides = tuple(stride // source.itemsize for stride in source.strides)

    def _from_dlpack(self, source: Any, stream: int | None) -> None:
        try:
            kind = int(source.__dlpack_device__()[0])
        except Exception as error:
            raise InvalidInput(f"{self.name}: its DLPack device cannot be had: {error}") from error
        if kind not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST):
            raise InvalidInput(f"{self.name} is on a device of DLPack's kind {kind}: it must be on the CPU or a GPU")
        # A capsule that is never consumed gives the memory back when it is deleted.
        wanted = {"stream": stream or _DL_LEGACY_STREAM} if kind == _DL_CUDA else {}
        try:
            self.capsule = source.__dlpack__(**wanted)
            address = _pointer_of(self.capsule, b"dltensor")
        except Exception as error:
            raise InvalidInput(f"{self.name}: its memory cannot be had by DLPack: {error}") from error
        tensor = _DLTensor.from_address(address)
        name = _DL_TYPES.get((tensor.code, tensor.bits), "")
        if name not in self.takes or tensor.lanes != 1:
            told = name or f"DLPack's type code {tensor.code} with {tensor.bits} bits"
            raise InvalidInput(f"{self.name} is of dtype {told}: it must be {self._taken()}")
        self.type = _TYPES[name]
        self.device = _c.CUDA if kind == _DL_CUDA else _c.CPU
        self.data = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        if tensor.strides:
            self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
        else:
            self.strides = contiguous_strides(self.shape)

    def _taken(self) -> str:
        *others, last = self.takes
        return f"{', '.join(others)} or {last}" if others else last

    def view(self) -> _c.View:
        """The view of it for the library."""
        return _c.View(data=self.data, type=self.type, dims=len(self.shape), extents=self.shape, strides=self.strides)


def type_of(dtype: str) -> int:
    """The library's number of a dtype, by its name."""
    return _TYPES[dtype]


def text_of(shape: tuple[int, ...]) -> str:
    """A shape in an error, as the library writes it."""
    return " x ".join(map(str, shape)) or "one element"


def expect_one_device(arrays: list[Array]) -> None:
    """Raises InvalidInput where one of them is not on the first one's device."""
    first = arrays[0]
    for array in arrays:
        if array.device != first.device:
            places = ["the CPU" if one.device == _c.CPU else "a GPU" for one in (array, first)]
            raise InvalidInput(
                f"{array.name} is on {places[0]}, {first.name} on {places[1]}: all must be on one device"
            )


def operand_list(pairs: list[tuple[bytes, _c.View]]) -> ctypes.Array[_c.Operand]:
    """What C takes."""
    return (_c.Operand * len(pairs))(*(_c.Operand(name, view) for name, view in pairs))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of an array of that shape without gaps, by rows."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name, of bfloat16 too. Raises InvalidInput where that needs a package that is not there."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InvalidInput("out is missing: without the package ml_dtypes NumPy has no bfloat16 for it") from None
    return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return,unused-ignore]


def empty_beside(like: Array, shape: tuple[int, ...], kind: int, first: int = 0) -> Any:
    """A NumPy array for a result; for other libraries' arrays the caller gives `out`."""
    if not isinstance(like.source, np.ndarray):
        raise InvalidInput(f"out is missing: it must be given where {like.name} is a {type(like.source).__name__}")
    dtype = like.source.dtype if kind == like.type else numpy_dtype("bfloat16")
    if not shape:
        return np.empty((), dtype)
    order = [first, *(i for i in range(len(shape)) if i != first)]
    return np.moveaxis(np.empty([shape[i] for i in order], dtype), 0, first)
