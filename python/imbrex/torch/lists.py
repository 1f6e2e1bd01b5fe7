"""all_gather_matmul of several B, or with the gathered A."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidInput
from . import autograd
from .collect import gather, gather_products
from .frames import no_graph_of_its_own
from .groups import size_of
from .recording import expect_no_gradient_of_8_bits, expect_writable, needs_gradient, refuse_out
from .rows import products_of_rows
from .shapes import expect_factor, expect_out, expect_out_dtype, out_dtype_of


@no_graph_of_its_own
def list_of_products(
    a: Tensor,
    bs: list[Tensor],
    name: str,
    dim: int,
    biases: Any,
    return_gathered: bool,
    scale_a: Tensor | None,
    scales_b: Any,
    out_dtype: torch.dtype | None,
    out: Any,
    rows: list[int] | None = None,
) -> Any:
    """The products of one gathered A, and that A where it is asked for; `rows` of each rank, if not as many on all."""
    count = len(bs)
    if count == 0:
        raise InvalidInput("b is an empty list: it must hold one tensor or more")
    given = {"bias": biases, "scale_b": scales_b, "out": out}
    lists: dict[str, list[Any]] = {key: [None] * count if one is None else list(one) for key, one in given.items()}
    for key, one in lists.items():
        if len(one) != count:
            raise InvalidInput(f"{key} has {len(one)} elements, b {count}: it must have as many")
    expect_out_dtype(a.dtype, out_dtype)
    is_recorded = any([needs_gradient(a, b, bias) for b, bias in zip(bs, lists["bias"], strict=True)])
    if is_recorded:
        refuse_out(out)
    for target, b in zip(lists["out"], bs, strict=True):
        if target is not None:
            expect_writable(target)
            if rows is None:
                expect_out(target, a, b, dim, a.shape[dim] * size_of(name), None)
            else:
                expect_out(target, a, b, dim, sum(rows), out_dtype_of(a.dtype))
    is_scaled = scale_a is not None or any([one is not None for one in lists["scale_b"]])
    if is_scaled or a.dtype == torch.float8_e4m3fn:
        for b in bs:
            expect_no_gradient_of_8_bits(a, b, scale_a, lists["scale_b"])
    gathered: Tensor | None
    if rows is not None:
        gathered, results = products_of_rows(
            a, bs, name, rows, dim, lists["bias"], scale_a, lists["scale_b"], return_gathered, is_recorded
        )
    elif is_scaled or a.dtype == torch.float8_e4m3fn:
        # Products of 8-bit floats with scales are the library's own: one operator each.
        results = [
            autograd.AllGatherMatmul.apply(a, b, bias, name, dim, scale_a, scale_b)
            if needs_gradient(a, b, bias)
            else torch.ops.imbrex.all_gather_matmul(a, b, name, dim, bias, scale_a, scale_b)
            for b, bias, scale_b in zip(bs, lists["bias"], lists["scale_b"], strict=True)
        ]
        gathered = gather(a, name, dim) if return_gathered else None
    elif is_recorded:
        pairs = [
            autograd.GatherProducts.apply(a, b, bias, name, dim)
            if return_gathered and i == 0
            else (None, autograd.AllGatherMatmul.apply(a, b, bias, name, dim))
            for i, (b, bias) in enumerate(zip(bs, lists["bias"], strict=True))
        ]
        gathered, results = pairs[0][0], [product for _, product in pairs]
    else:
        for b in bs:
            expect_factor(a, b, dim)
        gathered, results = gather_products(a, bs, name, dim, lists["bias"], keep=return_gathered)
    if out is not None:
        for target, result in zip(out, results, strict=True):
            target.copy_(result)
        results = list(out)
    return (gathered, results) if return_gathered else results
