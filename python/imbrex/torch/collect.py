"""
Products of one gathered A; and torch's own collectives, for what the library does not do, and in backward passes.

Traced by torch.compile, whose newest versions do not trace a generator in a backward pass: hence the lists.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from .groups import size_of
from .refusals import lies_in_rows
from .stats import count_copy

_c10d = torch.ops._c10d_functional
MOST_PRODUCTS = 3
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_BYTES = 16  # rows on GPUs are whole multiples of so many


def gather(x: Tensor, group: str, dim: int) -> Tensor:
    """Every rank's x, one after another along `dim`; that dimension comes first in memory."""
    rows = x.movedim(dim, 0).contiguous()
    is_fp8 = rows.dtype == torch.float8_e4m3fn
    sent = rows.view(torch.uint8) if is_fp8 else rows
    gathered = _c10d.wait_tensor(_c10d.all_gather_into_tensor(sent, size_of(group), group))
    return (gathered.view(rows.dtype) if is_fp8 else gathered).movedim(0, dim)


def reduce_scatter(rows: Tensor, group: str) -> Tensor:
    """The rank's own rows of the sum over the ranks."""
    return _c10d.wait_tensor(_c10d.reduce_scatter_tensor(rows.contiguous(), "sum", size_of(group), group))


def exchange(x: Tensor, group: str) -> Tensor:
    """Row block s of the result is this rank's block of rank s's x."""
    ranks = size_of(group)
    sizes = [x.shape[0] // ranks] * ranks
    return _c10d.wait_tensor(_c10d.all_to_all_single(x.contiguous(), sizes, sizes, group))


def _lies_by_columns(b: Tensor) -> bool:
    return b.stride(1) != 1 and (b.stride(0) == 1 or b.shape[0] == 1)


def suits_the_library(a: Tensor, bs: list[Tensor], biases: list[Tensor | None]) -> bool:
    """Whether the library does it in one plan; by shapes, layouts and dtypes, so that all ranks decide alike."""
    if not 1 <= len(bs) <= MOST_PRODUCTS or a.dtype not in _DTYPES or 0 in [*a.shape, *[b.shape[1] for b in bs]]:
        return False
    if len({bias is None for bias in biases}) > 1:
        return False
    if not all([_lies_by_columns(b) == _lies_by_columns(bs[0]) and 1 in b.stride() for b in bs]):
        return False
    rows = [a.shape[-1], *[b.shape[1] for b in bs]]
    return not a.is_cuda or all([row * a.element_size() % _BYTES == 0 for row in rows])


def products_by_the_library(
    a: Tensor, bs: list[Tensor], group: str, dim: int, biases: list[Tensor | None], keep: bool
) -> tuple[Tensor, list[Tensor]]:
    """The gathered A, empty unless it is kept, and its products, of what suits the library and lies in rows."""
    none: list[Tensor | None] = [None] * (MOST_PRODUCTS - len(bs))
    gathered, *products = torch.ops.imbrex.all_gather_matmuls(a, *bs, *none, group, dim, *biases, *none, keep)
    return gathered, products[: len(bs)]


def gather_products(
    a: Tensor, bs: list[Tensor], group: str, dim: int, biases: list[Tensor | None], *, keep: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """The gathered A, unless it is not to be kept, and its product with each B: one gather, then products."""
    if suits_the_library(a, bs, biases):
        first, rows = a.movedim(dim, 0), a
        if not lies_in_rows(first):
            count_copy("all_gather_matmul", "A is not row-major")
            rows = first.contiguous().movedim(0, dim)
        return products_by_the_library(rows, bs, group, dim, biases, keep)
    gathered = gather(a, group, dim)
    results = []
    for b, bias in zip(bs, biases, strict=True):
        product = torch.matmul(gathered.movedim(dim, 0), b).movedim(0, dim)
        results.append(product if bias is None else product + bias)
    return gathered, results
