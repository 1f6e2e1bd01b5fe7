"""Tensors as the library's arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _c
from .._arrays import Array, type_of
from .._errors import InvalidInput

_NAMES = {
    getattr(torch, name): name
    for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "uint8", "int32", "int64")
}
_DEVICES = {"cpu": _c.CPU, "cuda": _c.CUDA}


class TensorArray(Array):
    """
    A tensor's memory, read without DLPack, whose capsule costs more than a call takes altogether.

    It is for work on torch's current stream: DLPack would have other streams wait for that one.
    """

    def __init__(self, name: str, source: Tensor, takes: tuple[str, ...], *, writes: bool = False) -> None:
        """Reads the tensor. Raises InvalidInput for what Imbrex does not take, as `Array`."""
        dtype, device = _NAMES.get(source.dtype, ""), _DEVICES.get(source.device.type)
        is_plain = source.layout is torch.strided and not (source.requires_grad or source.is_neg() or source.is_conj())
        if dtype not in takes or device is None or not is_plain or source.dim() > _c.MOST_DIMS:
            super().__init__(name, source, takes=takes, writes=writes, may_be_empty=True)  # which says why
            return
        self.name, self.source, self.takes = name, source, takes
        self.type, self.device = type_of(dtype), device
        try:
            self.data = source.data_ptr()
        except RuntimeError as error:
            raise InvalidInput(f"{name}: its memory cannot be had: {error}") from error
        self.shape, self.strides = tuple(source.shape), source.stride()
