"""What torch.compile and torch.export need to know of the operators: shapes, strides and dtypes, without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from . import extension
from .groups import size_of
from .shapes import infer_product, out_dtype_of

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
        tensors = {"a": a, "b": b, "bias": bias, "a_scale": scale_a, "b_scale": scale_b}
        return _wanted(infer_product(name, size_of(group), dim, tensors, out_dtype)[0])

    return fake


def _wanted(result: Tensor | None) -> Tensor:
    assert result is not None
    return result


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
    tensors = {"a": a, "b": b, "bias": bias, "b1": b1, "bias1": bias1, "b2": b2, "bias2": bias2}
    y, y1, y2, gathered = (
        a.new_empty(0, dtype=out_dtype_of(a.dtype)) if one is None else one
        for one in infer_product("all_gather_matmul", size_of(group), dim, tensors, gathered_a=return_gathered)
    )
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
