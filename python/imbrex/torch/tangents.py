"""
Forward-mode derivatives: torch.func.jvp, jacfwd and torch.autograd.forward_ad.

A product is linear in both matrices, so the tangent of A B is A'B + A B', which is one product of twice as long a K:
[A' A] times B over B'. It takes the same collective as the value, on every rank, whichever of them have tangents.
As gradients, tangents are those of exact sums where the values travel through a codec.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .frames import no_graph_of_its_own
from .recording import has_tangent


@no_graph_of_its_own
def _parts(given: Tensor) -> tuple[Tensor, Tensor]:
    """The value and its tangent, which is zero where it has none."""
    value, tangent = forward_ad.unpack_dual(given)
    return value, torch.zeros_like(value) if tangent is None else tangent


@no_graph_of_its_own
def _stacked(a: Tensor, b: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    (value_a, tangent_a), (value_b, tangent_b) = _parts(a), _parts(b)
    wide = torch.cat([tangent_a.movedim(dim, 0), value_a.movedim(dim, 0)], -1).movedim(0, dim)
    return wide, torch.cat([value_b, tangent_b])


@no_graph_of_its_own
def product(
    function: Callable[..., Any],
    a: Tensor,
    b: Any,
    group: str,
    bias: Any,
    scales: tuple[Any, ...],
    along: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """A product as a dual tensor; of several `b`, or with `return_gathered`, as all_gather_matmul returns them."""
    flat = scales[1] if isinstance(scales[1], (list, tuple)) else [scales[1]]
    if a.dtype == torch.float8_e4m3fn or has_tangent(scales[0], *flat):
        raise NotImplementedError(f"{function.__name__}: products of 8-bit floats have no forward-mode derivative")
    several = not isinstance(b, Tensor)
    bs = list(b) if several else [b]
    biases = ([None] * len(bs) if bias is None else list(bias)) if several else [bias]
    dim = next(iter(along.values()), 0)
    stacked = [_stacked(a, one, dim) for one in bs]
    values = [None if one is None else _parts(one)[0] for one in biases]
    slopes = [None if one is None else _parts(one)[1] for one in biases]
    own, (a_value, *b_values) = options.get("return_gathered", False), (_parts(one)[0] for one in (a, *bs))
    value = function(
        a_value,
        b_values if several else b_values[0],
        group,
        bias=values if several else values[0],
        scale_a=scales[0],
        scale_b=scales[1],
        **along,
        **options,
    )
    keep = {"return_gathered": True} if own else {}
    tangent = function(
        stacked[0][0],
        [tall for _, tall in stacked] if several else stacked[0][1],
        group,
        bias=slopes if several else slopes[0],
        **along,
        **keep,
    )
    if not own:
        return [*map(forward_ad.make_dual, value, tangent)] if several else forward_ad.make_dual(value, tangent)
    gathered = forward_ad.make_dual(value[0], tangent[0][..., : a.shape[-1]])
    if several:
        return gathered, [*map(forward_ad.make_dual, value[1], tangent[1])]
    return gathered, forward_ad.make_dual(value[1], tangent[1])


@no_graph_of_its_own
def all_reduce(function: Callable[..., Any], x: Tensor, group: str, options: dict[str, Any]) -> Any:
    """The sum as a dual tensor, with the report of the sum itself where one is asked for."""
    value, tangent = _parts(x)
    told = function(value, group, **options)
    total = told[0] if options.get("report") else told
    dual = forward_ad.make_dual(total, function(tangent.contiguous(), group))
    return (dual, told[1]) if options.get("report") else dual


@no_graph_of_its_own
def all_reduce_rms_norm(
    function: Callable[..., Any], x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    """The normalised rows and the sum as dual tensors."""
    from .reductions import all_reduce as reduced

    (x_value, x_tangent), (weight_value, weight_tangent) = _parts(x), _parts(weight)
    rest, slope = (None, 0) if residual is None else _parts(residual)
    y, s = function(x_value, rest, weight_value, eps, group)
    s_tangent = reduced(x_tangent.contiguous(), group) + slope
    # torch's own rules give the tangent of what the operator computes: S / rms(S) * weight in fp32.
    rows = forward_ad.make_dual(s, s_tangent).float()
    normal = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)
    scaled = normal * forward_ad.make_dual(weight_value, weight_tangent).float()
    y_tangent = forward_ad.unpack_dual(scaled).tangent
    assert y_tangent is not None
    return forward_ad.make_dual(y, y_tangent.to(y.dtype)), forward_ad.make_dual(s, s_tangent)
