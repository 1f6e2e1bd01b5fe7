"""Packed sums, and the operations that put them back in rows, for tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .._calls import Preparing
from .._packed import PackedLayout, PackedProduct
from .._packed import put_back as _put_back
from .groups import Group, connect, world_of
from .recording import expect_writable, refuse_tangents, written
from .shapes import stream_of


def matmul_all_reduce_packed(
    a: Tensor, b: Tensor, group: Group = None, *, bias: Tensor | None = None, out: Tensor | None = None
) -> tuple[Tensor, PackedLayout]:
    """
    Multiplies and sums over the ranks, as `matmul_all_reduce`, and leaves the sums in tiles. Collective.

    Putting the result in rows is left to what comes next: `put_back`. There are no gradients.

    Args:
        a: M x K/R; float32, float16 or bfloat16.
        b: K/R x N, of a's dtype: `weight.t()` of a linear layer, too.
        group: the ranks, as for `all_gather_matmul`.
        bias: N elements, the same on every rank, added once.
        out: where the packed matrix goes, of `layout.packed_shape`.

    Returns:
        The packed matrix and its layout, which is valid as long as the group's world.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.
        Error: a rank was lost, or a wait passed its limit.

    Example:
        >>> y, layout = imbrex.torch.matmul_all_reduce_packed(h, weight.t(), group)
        >>> z, residual = imbrex.torch.put_back("rms_norm", y, layout, weight=norm.weight, residual=residual)
    """
    world = world_of(connect(group, device=a.device if a.is_cuda else None))
    with Preparing(world):
        refuse_tangents("matmul_all_reduce_packed", a, b, bias)
        if out is not None:
            expect_writable(out)
        stream = stream_of(a)
    product = PackedProduct(a.detach(), b.detach(), world, None if bias is None else bias.detach(), stream)
    if out is None:
        out = a.new_empty(product.layout.packed_shape)
    product.run(out.detach(), stream)
    written(out)
    return out, product.layout


def put_back(
    operation: str,
    packed: Tensor,
    layout: PackedLayout,
    *,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """
    Puts a packed matrix back in rows by the operation that comes next, on the current stream. There are no gradients.

    Args:
        operation: "copy"; "rms_norm", x / sqrt(mean(x^2) + eps) * weight of each row; "silu_multiply",
            silu(g) * u of each row's halves g and u; or "gelu".
        packed: what `matmul_all_reduce_packed` returned.
        layout: the layout that `matmul_all_reduce_packed` returned.
        weight: of rms_norm, a row.
        residual: of rms_norm: it is added before, and the sum, rounded, is also a result.
        bias: of the activations: a row that is added before.
        eps: of rms_norm.
        out: where the result goes.
        residual_out: where the sum with the residual goes, `residual` itself if it may.

    Returns:
        The result in rows; with a residual, the result and the sum.

    Raises:
        InvalidInput: an argument breaks a rule, which the text names.

    Example:
        >>> y, layout = imbrex.torch.matmul_all_reduce_packed(h, weight.t(), group)
        >>> z = imbrex.torch.put_back("gelu", y, layout)
    """
    rows, cols = layout.shape
    refuse_tangents("put_back", packed, weight, residual, bias)
    for name, one in (("out", out), ("residual_out", residual_out)):
        if one is not None:
            expect_writable(one, name)
    if out is None:
        out = packed.new_empty((rows, cols // 2 if operation == "silu_multiply" else cols))
    if residual is not None and residual_out is None:
        residual_out = torch.empty_like(residual)
    given = {"weight": weight, "residual": residual, "bias": bias, "residual_out": residual_out}
    tensors = {name: None if tensor is None else tensor.detach() for name, tensor in given.items()}
    _put_back(operation, packed.detach(), layout, eps=eps, out=out.detach(), stream=stream_of(packed), **tensors)
    written(out)
    if residual_out is None:
        return out
    written(residual_out)
    return out, residual_out
