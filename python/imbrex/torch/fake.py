"""What torch.compile and torch.export need to know of the operators: shapes, strides and dtypes, without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from .._errors import InvalidInput
from . import extension
from .groups import size_of
from .shapes import empty_with_first, expect_product, out_dtype_of

_registered = False


def _product(name: str) -> Callable[..., Tensor]:
    def fake(
        a: Tensor,
        b: Tensor,
        group: str,
        dim: int = 0,
        bias: Tensor | None = None,
        scale_a: Tensor | None = None,
        scale_b: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        codec: str | None = None,
    ) -> Tensor:
        expect_product(a, b, dim, bias, scale_a, scale_b, out_dtype)
        ranks = size_of(group)
        shape = [*a.shape[:-1], b.shape[1]]
        if name == "all_gather_matmul":
            shape[dim] *= ranks
        elif name == "matmul_reduce_scatter":
            if shape[dim] % ranks != 0:
                raise InvalidInput(
                    f"a is {' x '.join(map(str, a.shape))}: its dimension {dim} must divide by the {ranks} ranks"
                )
            shape[dim] = shape[dim] // ranks
        return empty_with_first(a, shape, dim, out_dtype_of(a.dtype))

    return fake


def _products(
    a: Tensor,
    b: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    group: str,
    dim: int = 0,
    bias: Tensor | None = None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    return_gathered: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = [*a.shape]
    shape[dim] *= size_of(group)

    def result(cols: int, dtype: torch.dtype) -> Tensor:
        return empty_with_first(a, [*shape[:-1], cols], dim, dtype)

    def product(one: Tensor | None, its_bias: Tensor | None) -> Tensor:
        if one is None:
            return a.new_empty(0, dtype=out_dtype_of(a.dtype))
        expect_product(a, one, dim, its_bias, None, None, None)
        return result(one.shape[1], out_dtype_of(a.dtype))

    y, y1, y2 = product(b, bias), product(b1, bias1), product(b2, bias2)
    gathered = result(a.shape[-1], a.dtype) if return_gathered else a.new_empty(0, dtype=out_dtype_of(a.dtype))
    return gathered, y, y1, y2


def _all_reduce(
    x: Tensor, group: str, codec: str | None = None, tolerance: float | None = None, report: bool = False
) -> Tensor:
    return x.new_empty(x.shape)


def _rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def keep_in_graphs(operator: Any) -> None:
    """
    Tells torch.compile that a call is there for the other ranks, too, and stays where its result is not used.

    Otherwise a rank that makes nothing of a sum would leave the call out, and the others would wait for it.
    """
    has_side_effect(operator)
    has_side_effect(operator.default)


def register() -> None:
    """Tells torch; once."""
    global _registered
    if _registered:
        return
    _registered = True
    for schema in extension.schemas():
        name = schema[: schema.index("(")]
        if name.endswith("_out"):
            fake: Callable[..., Any] = _nothing
        elif name == "all_reduce":
            fake = _all_reduce
        elif name == "all_gather_matmuls":
            fake = _products
        elif name == "all_reduce_rms_norm":
            fake = _rms_norm
        else:
            fake = _product(name.removesuffix("_plain"))
        torch.library.register_fake(f"imbrex::{name}", fake)
        keep_in_graphs(getattr(torch.ops.imbrex, name))
