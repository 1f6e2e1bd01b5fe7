"""
Products of rows that are not as many on every rank.

Rows are padded with zeros to the largest number, the operator of equal rows runs, and the rows that count are taken
from its result. The world compares the ranks' lists with the call.

What all this comes to is decided where the call runs, within an operator of its own: a graph has its sizes as symbols.
"""

# torch's Functions have signatures of their own.
# mypy: disable-error-code="override,no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidInput
from . import autograd, extension, front
from .collect import MOST_PRODUCTS, gather, products_by_the_library, reduce_scatter, suits_the_library
from .fake import keep_in_graphs
from .graph.order import keep_order
from .groups import rank_of
from .recording import expect_no_gradient_of_8_bits, expect_writable, needs_gradient
from .refusals import lying
from .shapes import empty_with_first, expect_factor, expect_out, expect_product, in_blocks, out_dtype_of, out_of_blocks
from .stats import count_copy

_ops = torch.ops.imbrex


def _expect_own(a: Tensor, dim: int, rows: list[int], own: int, what: str, bs: list[Tensor]) -> None:
    if a.dim() < 2 or a.shape[dim] != own:
        shape = " x ".join(map(str, a.shape))
        raise InvalidInput(f"rows = {rows} with a of {shape}: its dimension {dim} must have {what}, {own}")
    # Before the ranks' call: what follows it may be torch's own product.
    for b in bs:
        expect_factor(a, b, dim)


def _is_even(rows: list[int]) -> bool:
    return min(rows) == max(rows)


def _padded(
    a: Tensor, scale: Tensor | None, dim: int, counts: list[int], length: int, operator: str
) -> tuple[Tensor, Tensor | None]:
    """A in blocks of that length, which lie alike on every rank, and a scale of each row where there is one."""
    if scale is not None and a.dim() == 2:
        # Whether one element is a tensor's scale or that of a rank's only row, the ranks could take differently.
        scale = in_blocks(_spread("scale_a", scale.reshape(-1), a.shape[0])[:, None], 0, counts, length)
    elif scale is not None and scale.numel() != 1:
        raise InvalidInput(f"rows with a scale for each row: a has {a.dim()} dimensions, and must have 2")
    if counts != [length]:
        count_copy(operator, "rows are padded")
        return in_blocks(a, dim, counts, length), scale
    first = a.movedim(dim, 0)
    if first.is_contiguous():
        return a, scale
    count_copy(operator, "A is not row-major")
    return first.contiguous().movedim(0, dim), scale


def _of_columns(scale: Tensor | None, a: Tensor, b: Tensor) -> Tensor | None:
    """B's scale in the form that _padded gives A's."""
    if scale is None or a.dim() != 2:
        return scale
    return _spread("scale_b", scale.reshape(-1), b.shape[-1])[None].contiguous()


def _spread(name: str, scale: Tensor, count: int) -> Tensor:
    if scale.numel() not in (1, count):
        raise InvalidInput(f"{name} has {scale.numel()} elements: it must have 1 or {count}")
    return scale.expand(count)


def _ask(group: str, rows: list[int]) -> None:
    extension.ask(group, "rows", [int(one) for one in rows])


def gather_products(
    a: Tensor,
    bs: list[Tensor],
    group: str,
    rows: list[int],
    dim: int,
    biases: list[Tensor | None],
    scale_a: Tensor | None,
    scales_b: list[Tensor | None],
    keep: bool,
) -> list[Tensor]:
    """The gathered A, empty unless it is kept, and its products with all B; without B, the ranks have agreed before."""
    own = rows[rank_of(group)]
    _expect_own(a, dim, rows, own, "this rank's rows", bs)
    if _is_even(rows):
        a = lying(a, dim, "all_gather_matmul")
    else:
        a, scale_a = _padded(a, scale_a, dim, [own], max(rows), "all_gather_matmul")
        scales_b = [_of_columns(scale, a, b) for scale, b in zip(scales_b, bs, strict=True)]

    def taken(x: Tensor) -> Tensor:
        return out_of_blocks(x, dim, rows)

    has_scales = scale_a is not None or any([scale is not None for scale in scales_b])
    first = 0
    if not has_scales and (keep or len(bs) > 1):
        first = next((n for n in (MOST_PRODUCTS, 1) if suits_the_library(a, bs[:n], biases[:n])), 0)
    if first:
        rest = bs[first:]
        _ask(group, rows)
        everything, products = products_by_the_library(a, bs[:first], group, dim, biases[:first], keep or bool(rest))
        gathered = taken(everything) if keep or rest else everything
        products = [taken(product) for product in products]
        for b, bias in zip(rest, biases[first:], strict=True):
            product = torch.matmul(gathered.movedim(dim, 0), b).movedim(0, dim)
            products.append(product if bias is None else product + bias)
        return [gathered if keep else a.new_empty(0), *products]
    products = []
    for b, bias, scale_b in zip(bs, biases, scales_b, strict=True):
        _ask(group, rows)
        if not dim and bias is None and scale_a is None and scale_b is None:
            products.append(taken(front.all_gather.plain(a, b, group)))
        else:
            products.append(taken(front.all_gather.full(a, b, group, dim, bias, scale_a, scale_b)))
    return [taken(gather(a, group, dim)) if keep else a.new_empty(0), *products]


def scatter_product(
    a: Tensor,
    b: Tensor,
    group: str,
    rows: list[int],
    rank: int,
    dim: int,
    bias: Tensor | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    codec: str | None,
    tolerance: float | None,
) -> Tensor:
    """The rows of this rank, of the sum over the ranks. Caches of graphs, which ranks share, tell them by `rank`."""
    _expect_own(a, dim, rows, sum(rows), "all ranks' rows", [b])
    if _is_even(rows):
        a = lying(a, dim, "matmul_reduce_scatter")
    else:
        a, scale_a = _padded(a, scale_a, dim, rows, max(rows), "matmul_reduce_scatter")
        scale_b = _of_columns(scale_b, a, b)
    _ask(group, rows)
    if tolerance is not None:
        blocks = autograd.scattered(a, b, bias, group, dim, None, codec, tolerance)
    elif not dim and bias is None and scale_a is None and scale_b is None and codec is None:
        blocks = front.reduce_scatter.plain(a, b, group)
    else:
        blocks = front.reduce_scatter.full(a, b, group, dim, bias, scale_a, scale_b, None, codec)
    return blocks.narrow(dim, 0, rows[rank])


def _scatter_sum(x: Tensor, none: None, group: str, rows: list[int], rank: int, dim: int) -> Tensor:
    """As scatter_product, of what is there already; the ranks have agreed before."""
    blocks = in_blocks(x, dim, rows, max(rows)).movedim(dim, 0)
    return reduce_scatter(blocks, group).movedim(0, dim).narrow(dim, 0, rows[rank])


def _fake_scatter_sum(x: Tensor, none: None, group: str, rows: list[int], rank: int, dim: int) -> Tensor:
    shape = [*x.shape]
    shape[dim] = rows[rank]
    return empty_with_first(x, shape, dim, x.dtype)


def _fake_gather(
    a: Tensor,
    bs: list[Tensor],
    group: str,
    rows: list[int],
    dim: int,
    biases: list[Tensor | None],
    scale_a: Tensor | None,
    scales_b: list[Tensor | None],
    keep: bool,
) -> list[Tensor]:
    shape = [*a.shape]
    shape[dim] = sum(rows)
    for b, bias, scale_b in zip(bs, biases, scales_b, strict=True):
        expect_product(a, b, dim, bias, scale_a, scale_b)
    products = [empty_with_first(a, [*shape[:-1], b.shape[1]], dim, out_dtype_of(a.dtype)) for b in bs]
    return [empty_with_first(a, shape, dim, a.dtype) if keep else a.new_empty(0), *products]


def _fake_scatter(
    a: Tensor,
    b: Tensor,
    group: str,
    rows: list[int],
    rank: int,
    dim: int,
    bias: Tensor | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    codec: str | None,
    tolerance: float | None,
) -> Tensor:
    expect_product(a, b, dim, bias, scale_a, scale_b)
    shape = [*a.shape[:-1], b.shape[1]]
    shape[dim] = rows[rank]
    return empty_with_first(a, shape, dim, out_dtype_of(a.dtype))


def _in_graphs(run: Callable[..., Any]) -> Callable[..., Any]:
    """What a graph calls: the other ranks hear of what is refused here, as the fronts tell them elsewhere."""

    def called(a: Tensor, b: Any, group: str, *rest: Any) -> Any:
        try:
            return run(a, b, group, *rest)
        except Exception as error:
            extension.raise_for(error, group, a=a, b=b)

    return called


_library = torch.library.Library("imbrex", "FRAGMENT")
for _name, _schema, _run, _fake in (
    (
        "all_gather_matmul_rows",
        "(Tensor a, Tensor[] b, str group, SymInt[] rows, int dim, Tensor?[] bias, Tensor? scale_a, Tensor?[] scale_b, "
        "bool return_gathered) -> Tensor[]",
        gather_products,
        _fake_gather,
    ),
    (
        "matmul_reduce_scatter_rows",
        "(Tensor a, Tensor b, str group, SymInt[] rows, int rank, int dim, Tensor? bias, Tensor? scale_a, "
        "Tensor? scale_b, str? codec, float? tolerance) -> Tensor",
        scatter_product,
        _fake_scatter,
    ),
    (
        "reduce_scatter_rows",
        "(Tensor x, Tensor? none, str group, SymInt[] rows, int rank, int dim) -> Tensor",
        _scatter_sum,
        _fake_scatter_sum,
    ),
):
    _library.define(_name + _schema)
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _in_graphs(_run), _key)
    torch.library.register_fake(f"imbrex::{_name}", _fake, lib=_library)
    keep_in_graphs(getattr(_ops, _name))


# A graph with one of them differs between the ranks, and may hold others.
_NAMES = [schema[: schema.index("(")] for schema in extension.schemas()]
_ORDERED = (
    "all_gather_matmul_rows",
    "matmul_reduce_scatter_rows",
    "reduce_scatter_rows",
    *[name for name in _NAMES if not name.endswith(("_out", "_plain"))],
)


def _gather(*given: Any) -> list[Tensor]:
    if not front.is_traced():
        return gather_products(*given)
    keep_order(_ORDERED)
    return _ops.all_gather_matmul_rows(*given)


def _scatter(a: Tensor, b: Tensor, group: str, rows: list[int], *rest: Any) -> Tensor:
    given = (a, b, group, rows, rank_of(group), *rest)
    if not front.is_traced():
        return scatter_product(*given)
    keep_order(_ORDERED)
    return _ops.matmul_reduce_scatter_rows(*given)


class GatherRows(torch.autograd.Function):
    """As autograd.AllGatherMatmul and autograd.GatherProducts: the backward is the scatter of the same rows."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        dim: int,
        rows: list[int],
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        keep: bool,
    ) -> Any:
        """The product, or the gathered A and the product."""
        gathered, product = _gather(a, [b], group, rows, dim, [bias], scale_a, [scale_b], keep)
        ctx.save_for_backward(gathered if keep else a, b)
        ctx.group, ctx.dim, ctx.rows, ctx.keep = group, dim, rows, keep
        return (gathered, product) if keep else product

    @staticmethod
    @autograd.once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        group, dim, rows = ctx.group, ctx.dim, ctx.rows
        dy = autograd.lying(grads[-1], dim)
        da = db = None
        if need_a and ctx.keep:
            # What comes for the gathered A itself adds to what comes through the product.
            full = torch.matmul(dy, b.t()) + grads[0]
            da = _ops.reduce_scatter_rows(full, None, group, rows, rank_of(group), dim)
        elif need_a:
            da = _scatter(dy, b.t(), group, rows, dim, None, None, None, None, None)
        if need_b:
            gathered = a if ctx.keep else _gather(a, [], group, rows, dim, [], None, [], True)[0]
            db = autograd.weight_gradient(gathered.movedim(dim, 0), dy.movedim(dim, 0))
        return da, db, autograd.bias_gradient(dy) if need_bias else None, *[None] * 6


class ScatterRows(torch.autograd.Function):
    """As autograd.MatmulReduceScatter: the backward is the gather of the same rows."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        group: str,
        dim: int,
        rows: list[int],
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        codec: str | None,
        tolerance: float | None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(a, b)
        ctx.group, ctx.dim, ctx.rows = group, dim, rows
        return _scatter(a, b, group, rows, dim, bias, scale_a, scale_b, codec, tolerance)

    @staticmethod
    @autograd.once
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """Gradients of a, b and bias."""
        a, b = ctx.saved_tensors
        need_a, need_b, need_bias = ctx.needs_input_grad[:3]
        dy, bs = autograd.lying(dy, ctx.dim), [b.t()] if need_a else []
        none: list[Tensor | None] = [None] * len(bs)
        gathered, *products = _gather(dy, bs, ctx.group, ctx.rows, ctx.dim, none, None, none, bool(need_b or need_bias))
        whole = gathered.movedim(ctx.dim, 0) if need_b or need_bias else gathered
        db = autograd.weight_gradient(a.movedim(ctx.dim, 0), whole) if need_b else None
        return products[0] if need_a else None, db, autograd.bias_gradient(whole) if need_bias else None, *[None] * 7


def products_of_rows(
    a: Tensor,
    bs: list[Tensor],
    group: str,
    rows: list[int],
    dim: int,
    biases: list[Tensor | None],
    scale_a: Tensor | None,
    scales_b: list[Tensor | None],
    keep: bool,
    is_recorded: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """The gathered A, if it is kept, and its products."""
    if not is_recorded:
        gathered, *results = _gather(a, bs, group, rows, dim, biases, scale_a, scales_b, keep)
        return gathered if keep else None, results
    first, results = None, []
    for b, bias, scale_b in zip(bs, biases, scales_b, strict=True):
        own = keep and not results
        found = GatherRows.apply(a, b, bias, group, dim, rows, scale_a, scale_b, own)
        if own:
            first, found = found
        results.append(found)
    return first, results


def scatter_rows(
    a: Tensor,
    b: Tensor,
    group: str,
    rows: list[int],
    dim: int,
    bias: Tensor | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    codec: str | None,
    tolerance: float | None,
    out: Tensor | None,
) -> Tensor:
    """matmul_reduce_scatter of these rows, with its gradients and its output."""
    if needs_gradient(a, b, bias):
        front.expect_recorded(a, b, scale_a, scale_b, out)
        return ScatterRows.apply(a, b, bias, group, dim, rows, scale_a, scale_b, codec, tolerance)
    if scale_a is not None:
        expect_no_gradient_of_8_bits(a, b, scale_a, (scale_b,))
    if out is None:
        return _scatter(a, b, group, rows, dim, bias, scale_a, scale_b, codec, tolerance)
    expect_writable(out)
    expect_out(out, a, b, dim, rows[rank_of(group)], out_dtype_of(a.dtype))
    return out.copy_(_scatter(a, b, group, rows, dim, bias, scale_a, scale_b, codec, tolerance))
