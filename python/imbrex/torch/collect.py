"""torch's own collectives, where the library has no operator for a part yet, and in backward passes."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import torch
from torch import Tensor

from .groups import size_of

_c10d = torch.ops._c10d_functional


def gather(x: Tensor, group: str, dim: int) -> Tensor:
    """Every rank's x, one behind another along `dim`; that dimension comes first in memory."""
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


def gather_products(
    a: Tensor, bs: list[Tensor], group: str, dim: int, biases: list[Tensor | None]
) -> tuple[Tensor, list[Tensor]]:
    """
    The gathered A, and its product with each B: one gather, then products.

    The library is to do both in one plan; then this is the one place that changes.
    """
    gathered = gather(a, group, dim)
    results = []
    for b, bias in zip(bs, biases, strict=True):
        product = torch.matmul(gathered.movedim(dim, 0), b).movedim(0, dim)
        results.append(product if bias is None else product + bias)
    return gathered, results
