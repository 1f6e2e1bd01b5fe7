"""What of torch's calls Imbrex does not take: decided by what is the same on every rank, so that all decide alike."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import Error
from .groups import apart, connect, size_of
from .stats import count_copy

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_BYTES = 16  # rows on GPUs are whole multiples of so many


class Refusal(Exception):
    """Why a call goes back to torch."""


def expect(condition: bool, reason: str) -> None:
    """Raises Refusal where the condition does not hold."""
    if not condition:
        raise Refusal(reason)


def expect_group(name: str) -> int:
    """How many ranks the group has; connected from here on, or handed back for ever."""
    expect(name not in apart, "group that Imbrex does not connect")
    ranks = size_of(name)
    expect(ranks > 1, "one rank")
    try:
        connect(name)
    except Error:
        apart.add(name)
        raise Refusal("group that Imbrex does not connect") from None
    return ranks


def expect_product(a: Tensor, b: Tensor, dim: int, dtypes: tuple[torch.dtype, ...]) -> int:
    """The collective's dimension, not negative."""
    expect(a.dim() in (2, 3) and b.dim() == 2, "number of dimensions")
    dim = dim + a.dim() if dim < 0 else dim
    expect(0 <= dim < a.dim() - 1, "last dimension")
    expect(a.dtype in dtypes and a.dtype == b.dtype, "dtype")
    expect(a.shape[-1] == b.shape[0] and a.numel() > 0 and b.numel() > 0, "shapes")
    if a.is_cuda:
        for row in (a.shape[-1] * a.element_size(), b.shape[1] * 2):
            expect(row % _BYTES == 0, "rows that are no multiple of 16 bytes")
    return dim


def lies_in_rows(x: Tensor) -> bool:
    """Whether its rows, of the last dimension, are whole and lie evenly, perhaps with something between them."""
    *rows, length = x.shape
    *steps, step = x.stride()
    if (step != 1 and length != 1) or (x.is_cuda and x.storage_offset() * x.element_size() % _BYTES):
        return False
    between = None
    for extent, own in zip(reversed(rows), reversed(steps), strict=True):
        if extent == 1:
            continue
        if own < length or (between is not None and own != between):
            return False
        between = own * extent
    return not x.is_cuda or all([own * x.element_size() % _BYTES == 0 for own in steps])


def lying(a: Tensor, dim: int, operator: str) -> Tensor:
    """A as the library takes it: its dimension `dim` first in memory, in rows that may lie apart."""
    first = a.movedim(dim, 0)
    if first.is_contiguous() or lies_in_rows(first):
        return a
    count_copy(operator, "A is not row-major")
    return first.contiguous().movedim(0, dim)


def b_lying(b: Tensor, operator: str) -> Tensor:
    """B by rows or by columns, which may lie apart."""
    if b.is_contiguous() or b.t().is_contiguous() or lies_in_rows(b) or lies_in_rows(b.t()):
        return b
    count_copy(operator, "B lies neither by rows nor by columns")
    return b.contiguous()
