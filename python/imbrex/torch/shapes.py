"""What results look like and which arguments are refused: what the operators say, for tracing without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .._errors import InvalidInput
from .refusals import lying
from .stats import count_copy

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float8_e4m3fn: "e4m3"}


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one element"


def _expect_type(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _NAMES:
        raise InvalidInput(
            f"{name} is of {tensor.dtype}: its dtype must be torch.bfloat16, torch.float16, torch.float32 or "
            "torch.float8_e4m3fn"
        )


def out_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the product of matrices of that one."""
    return torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype


def expect_out_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Raises InvalidInput where the product of matrices of that dtype is to have another than it has."""
    if out_dtype is not None and out_dtype != out_dtype_of(dtype):
        raise InvalidInput(
            f"out_dtype: of a and b of type {_NAMES.get(dtype, dtype)} the result is "
            f"{_NAMES.get(out_dtype_of(dtype), dtype)}"
        )


def expect_product(
    a: Tensor,
    b: Tensor,
    dim: int,
    bias: Tensor | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """Raises InvalidInput with the text that the operator would raise."""
    for name, tensor in (("a", a), ("b", b), ("bias", bias), ("scale_a", scale_a), ("scale_b", scale_b)):
        if tensor is None:
            continue
        _expect_type(name, tensor)
        if tensor.device != a.device:
            raise InvalidInput(f"{name} is on {tensor.device}, a on {a.device}: all tensors must be on one device")
    if not 2 <= a.dim() <= 3:
        raise InvalidInput(f"a is {_shape(a)}: it must have 2 or 3 dimensions")
    if b.dim() != 2:
        raise InvalidInput(f"b is {_shape(b)}: it must have 2 dimensions")
    if not 0 <= dim <= a.dim() - 2:
        raise InvalidInput(f"dim = {dim} with a of {_shape(a)}: it must be a dimension of a before its last")
    if a.dtype != b.dtype:
        raise InvalidInput(f"a is of type {_NAMES[a.dtype]}, b of type {_NAMES[b.dtype]}: they must be of one type")
    if a.shape[-1] != b.shape[0]:
        raise InvalidInput(f"a is {_shape(a)}, b {_shape(b)}: a's last dimension must be b's first")
    if (scale_a is None) != (scale_b is None):
        raise InvalidInput("scale_a and scale_b: both must be given, or neither")
    if scale_a is not None and a.dtype != torch.float8_e4m3fn:
        raise InvalidInput(f"scale_a with a of type {_NAMES[a.dtype]}: only float8_e4m3fn has scales")
    expect_out_dtype(a.dtype, out_dtype)


def padded(a: Tensor, scale: Tensor | None, dim: int, ranks: int, operator: str) -> tuple[Tensor, Tensor | None]:
    """A as it must lie, with zeros added along `dim` until that divides by the ranks, and so a scale of each row."""
    missing = -a.shape[dim] % ranks
    if missing == 0:
        return lying(a, dim, operator), scale
    if scale is not None and scale.numel() != 1:
        if a.dim() != 2:
            raise InvalidInput(f"pad with a scale for each row: a is {_shape(a)}, and must have 2 dimensions")
        scale = in_blocks(scale, 0, [a.shape[0]], a.shape[0] + missing)
    count_copy(operator, "rows are padded")
    return in_blocks(a, dim, [a.shape[dim]], a.shape[dim] + missing), scale


def counts_of(name: str, given: Any, ranks: int) -> list[int]:
    """A list with a number for each rank, of rows. A tensor's numbers would be waited for."""
    if not isinstance(given, (list, tuple)) and (not isinstance(given, Sequence) or isinstance(given, str)):
        raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be a list of each rank's number of rows")
    if len(given) != ranks:
        raise InvalidInput(f"{name} has {len(given)} numbers: it must have one for each of the {ranks} ranks")
    for i, one in enumerate(given):
        if type(one) is int:  # the others take a call tens of microseconds to tell apart
            continue
        if isinstance(one, (bool, Tensor)) or not isinstance(one, SupportsIndex):
            raise InvalidInput(f"{name}[{i}] is of type {type(one).__name__}: it must be an integer")
    # A symbol of torch.compile stays one; an integer of NumPy's would be printed otherwise than the other ranks'.
    counts: list[Any] = [one if isinstance(one, (int, torch.SymInt)) else int(one) for one in given]
    for i, count in enumerate(counts):
        if count < 0:
            raise InvalidInput(f"{name}[{i}] = {count}: it must be 0 or more")
    return counts


def in_blocks(x: Tensor, dim: int, counts: list[int], length: int) -> Tensor:
    """A copy of x with zeros behind each run of so many rows, as long as `length`; `dim` comes first in memory."""
    first = x.movedim(dim, 0)
    zeros = torch.zeros((length - min(counts), *first.shape[1:]), dtype=x.dtype, device=x.device)
    parts = [part for run in torch.split(first, counts) for part in (run, zeros[: length - run.shape[0]])]
    return torch.cat(parts).contiguous().movedim(0, dim)


def out_of_blocks(x: Tensor, dim: int, counts: list[int]) -> Tensor:
    """What was put in blocks, whose length follows from x; no copy where nothing lies between the runs."""
    first = x.movedim(dim, 0)
    length = first.shape[0] // len(counts)
    if all([count == length for count in counts[:-1]]):
        return x.narrow(dim, 0, sum(counts))
    runs = [first.narrow(0, i * length, count) for i, count in enumerate(counts)]
    return torch.cat(runs).movedim(0, dim)


def empty_with_first(like: Tensor, shape: list[int], first: int, dtype: torch.dtype) -> Tensor:
    """A tensor whose dimension `first` comes before the others in memory, without gaps."""
    order = [first, *[i for i in range(len(shape)) if i != first]]
    return like.new_empty([shape[i] for i in order], dtype=dtype).movedim(0, first)


def stream_of(x: Tensor) -> int | None:
    """The current stream where x lies, as ctypes takes it; None on the CPU."""
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None
