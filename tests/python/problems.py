"""Random problems, and what the operators must come to: torch's own products and collectives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from device_for_tests import generator_of
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Problem:
    """One call. Sizes are of the whole product; `batch` is 0 where A has two dimensions."""

    op: str
    ranks: int
    rows: int
    n: int
    k: int
    dtype: str
    bias: bool
    batch: int
    dim: int
    b_by_columns: bool
    use_out: bool
    seed: int


def draw(seed: int, ops: tuple[str, ...]) -> Problem:
    """A problem that fits its operator, from a seed."""
    r = random.Random(seed)
    ranks = r.choice((2, 3, 4))
    batch = r.choice((0, 0, 1, 2, 3))
    return Problem(
        op=r.choice(ops),
        ranks=ranks,
        rows=ranks * r.randint(1, 9),
        n=ranks * r.randint(1, 12),
        k=ranks * r.randint(1, 16),
        dtype=r.choice(tuple(DTYPES)),
        bias=r.random() < 0.4,
        batch=batch,
        dim=r.randint(0, 1) if batch else 0,
        b_by_columns=r.random() < 0.5,
        use_out=r.random() < 0.3,
        seed=seed,
    )


def integers(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Small integers, so that every sum is exact in every type."""
    generator = generator_of(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def local_shapes(p: Problem) -> tuple[tuple[int, ...], tuple[int, int], int]:
    """Shapes of this rank's A and B, and the length of its bias."""
    rows, n, k = p.rows, p.n, p.k
    if p.op == "all_gather_matmul":
        rows, n = rows // p.ranks, n // p.ranks
    elif p.op in ("matmul_reduce_scatter", "matmul_all_reduce"):
        k //= p.ranks
    if not p.batch:
        return (rows, k), (k, n), n
    # The collective's dimension holds what the ranks share; the other is the batch.
    lead = (rows, p.batch) if p.dim == 0 else (p.batch, rows)
    return (*lead, k), (k, n), n


def inputs(p: Problem, rank: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """This rank's A, as the collective's dimension comes first in memory, its B and its bias."""
    a_shape, b_shape, width = local_shapes(p)
    dtype = DTYPES[p.dtype]
    order = [p.dim, *(i for i in range(len(a_shape)) if i != p.dim)]
    a = integers(tuple(a_shape[i] for i in order), p.seed * 31 + rank, dtype).movedim(0, p.dim)
    b = integers(b_shape, p.seed * 37 + rank + 1000, dtype)
    if p.b_by_columns:
        b = b.t().contiguous().t()
    own = rank if p.op in ("all_gather_matmul", "matmul_all_to_all") else 0
    return a, b, integers((width,), p.seed * 41 + own + 2000, dtype) if p.bias else None


def reference(p: Problem, a: Tensor, b: Tensor, bias: Tensor | None, group: Any) -> Tensor:
    """The result by torch's product in fp32 and its collectives."""
    rank = dist.get_rank(group)
    wide = a.float().movedim(p.dim, 0).contiguous()
    if p.op == "all_gather_matmul":
        parts = [torch.empty_like(wide) for _ in range(p.ranks)]
        dist.all_gather(parts, wide, group=group)
        product = torch.cat(parts) @ b.float()
    else:
        product = wide @ b.float()
        if p.op == "matmul_all_to_all":
            product = product if bias is None else product + bias.float()
            parts = [torch.empty_like(product) for _ in range(p.ranks)]
            dist.all_gather(parts, product, group=group)
            block = product.shape[0] // p.ranks
            return torch.cat([part[rank * block : (rank + 1) * block] for part in parts]).movedim(0, p.dim).to(a.dtype)
        dist.all_reduce(product, group=group)
        if p.op == "matmul_reduce_scatter":
            part = product.shape[0] // p.ranks
            product = product[rank * part : (rank + 1) * part]
    return (product if bias is None else product + bias.float()).movedim(0, p.dim).to(a.dtype)


def arguments(p: Problem) -> dict[str, Any]:
    """The keyword arguments of the operator's function."""
    if p.op == "all_gather_matmul":
        return {"gather_dim": p.dim}
    return {"scatter_dim": p.dim} if p.op == "matmul_reduce_scatter" else {}
