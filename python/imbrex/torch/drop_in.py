"""
torch.ops.symm_mem's four fused operators, run by Imbrex: what calls them needs no change.

Inductor's micro-pipeline pass, vLLM's AsyncTP and torchtitan's linear layers call these operators. While the drop-in is
in force the dispatcher hands their calls to the functions here. What Imbrex does not take goes back to torch's own
kernels: by shapes, dtypes and arguments alone, which are the same on every rank, so that all ranks decide alike.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed._symmetric_memory
from torch import Tensor

from .collect import gather, gather_products
from .graph import passes
from .groups import process_group, size_of
from .refusals import DTYPES as _DTYPES
from .refusals import Refusal
from .refusals import b_lying as _b
from .refusals import expect as _expect
from .refusals import expect_group as _expect_group
from .refusals import expect_product as _expect_product
from .refusals import lying as _lying
from .stats import count_copy, count_fallback

_ops = torch.ops.imbrex


def _all_gather_matmul(
    a: Tensor, bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    name = "fused_all_gather_matmul"
    _expect(len(bs) > 0, "no B")
    for b in bs:
        dim = _expect_product(a, b, gather_dim, _DTYPES)
    _expect_group(group_name)
    a, bs = _lying(a, dim, name), [_b(b, name) for b in bs]
    if not return_A and len(bs) == 1:
        return None, [_ops.all_gather_matmul(a, bs[0], group_name, dim)]
    gathered, products = gather_products(a, bs, group_name, dim, [None] * len(bs), keep=return_A)
    return gathered if return_A else None, products


def _matmul_reduce_scatter(a: Tensor, b: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    name = "fused_matmul_reduce_scatter"
    _expect(reduce_op == "sum", f"reduce_op {reduce_op}")
    dim = _expect_product(a, b, scatter_dim, _DTYPES)
    _expect(a.shape[dim] % size_of(group_name) == 0, "dimension that does not divide by the ranks")
    _expect_group(group_name)
    result: Tensor = _ops.matmul_reduce_scatter(_lying(a, dim, name), _b(b, name), group_name, dim)
    if not result.is_contiguous():
        count_copy(name, "result along another dimension than the first")
    return result.contiguous()


_FP8 = (torch.float8_e4m3fn,)
_NUMBERED = {15: torch.bfloat16, 5: torch.float16, 6: torch.float32}


def _expect_scaled(b: Tensor, b_scale: Tensor, result_scale: Tensor | None, out_dtype: Any) -> None:
    _expect(result_scale is None, "result_scale")
    _expect(_dtype(out_dtype) == torch.bfloat16, "out_dtype")
    _expect(b.t().is_contiguous(), "B by rows")
    _expect(b_scale.dtype == torch.float32 and b_scale.numel() in (1, b.shape[1]), "shape of B_scale")


def _dtype(value: Any) -> Any:
    """Torch's dtype of what the dispatcher hands over, which may be a number."""
    return _NUMBERED.get(value) if isinstance(value, int) else value


def _all_gather_scaled_matmul(
    a: Tensor,
    bs: list[Tensor],
    a_scale: Tensor,
    b_scales: list[Tensor],
    gather_dim: int,
    group_name: str,
    biases: list[Tensor | None],
    result_scales: list[Tensor | None],
    out_dtypes: list[Any],
    use_fast_accum: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    name = "fused_all_gather_scaled_matmul"
    _expect(len(bs) > 0, "no B")
    for b, b_scale, result_scale, out_dtype in zip(bs, b_scales, result_scales, out_dtypes, strict=True):
        dim = _expect_product(a, b, gather_dim, _FP8)
        _expect_scaled(b, b_scale, result_scale, out_dtype)
    _expect(all(bias is None or bias.dtype == torch.bfloat16 for bias in biases), "dtype of a bias")
    _expect(a_scale.dtype == torch.float32, "dtype of A_scale")
    ranks = size_of(group_name)
    whole = [*a.shape[:-1], 1]
    whole[dim] *= ranks
    if a_scale.numel() == 1 and list(a_scale.shape) != [*a.shape[:-1], 1]:
        _expect(all(scale.numel() == 1 for scale in b_scales), "scale of all A with scales of B's columns")
        own = a_scale
    elif list(a_scale.shape) == [*a.shape[:-1], 1]:
        own = a_scale
    else:
        _expect(list(a_scale.shape) == whole, "shape of A_scale")
        own = a_scale.narrow(dim, process_group(group_name).rank() * a.shape[dim], a.shape[dim])
    if own.numel() > 1:
        _expect(all(scale.numel() == b.shape[1] for scale, b in zip(b_scales, bs, strict=True)), "one scale of all B")
        own = own.movedim(dim, 0).reshape(-1, 1)
    _expect_group(group_name)
    a = _lying(a, dim, name)
    results = [
        _ops.all_gather_matmul(a, b, group_name, dim, bias, own, b_scale)
        for b, bias, b_scale in zip(bs, biases, b_scales, strict=True)
    ]
    return gather(a, group_name, dim), results


def _scaled_matmul_reduce_scatter(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int] | None,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    name = "fused_scaled_matmul_reduce_scatter"
    _expect(reduce_op == "sum", f"reduce_op {reduce_op}")
    # torch adds it once a rank.
    _expect(bias is None, "bias")
    _expect(orig_scatter_dim == 0 and scatter_dim_after_maybe_reshape == 0, "another dimension than the first")
    _expect_product(a, b, 0, _FP8)
    _expect_scaled(b, b_scale, result_scale, out_dtype)
    _expect(a_scale.dtype == torch.float32, "dtype of A_scale")
    rows = a.numel() // a.shape[-1]
    if a_scale.numel() == 1 and rows > 1:
        _expect(b_scale.numel() == 1, "scale of all A with scales of B's columns")
    else:
        _expect(list(a_scale.shape) == [*a.shape[:-1], 1], "shape of A_scale")
        _expect(b_scale.numel() == b.shape[1], "one scale of all B")
    ranks = size_of(group_name)
    shape = [*(output_shape[:-1] if output_shape is not None else a.shape[:-1]), b.shape[1]]
    _expect(shape[0] % ranks == 0, "dimension that does not divide by the ranks")
    _expect_group(group_name)
    shape[0] //= ranks
    result = _ops.matmul_reduce_scatter(
        _lying(a, 0, name).flatten(0, -2),
        b,
        group_name,
        0,
        None,
        a_scale.reshape(-1, 1) if a_scale.numel() > 1 else a_scale,
        b_scale,
    )
    return result.view(shape)


_TAKEN: dict[str, Callable[..., Any]] = {
    "fused_all_gather_matmul": _all_gather_matmul,
    "fused_matmul_reduce_scatter": _matmul_reduce_scatter,
    "fused_all_gather_scaled_matmul": _all_gather_scaled_matmul,
    "fused_scaled_matmul_reduce_scatter": _scaled_matmul_reduce_scatter,
}


def _kernel(name: str, key: str) -> Callable[..., Any]:
    """Imbrex' kernel of an operator, which hands back what it refuses."""
    # torch has none for the CPU; what it has for tensors without data is made of its plain collectives and products.
    own = torch.library.get_kernel(f"symm_mem::{name}", "CUDA" if key == "CUDA" else "Meta")
    taken = _TAKEN[name]

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return taken(*args, **kwargs)
        except Refusal as refusal:
            count_fallback(name, str(refusal))
        return own.call_boxed(keyset, *args, **kwargs)

    return kernel


class DropIn:
    """The drop-in in force; as a context manager, until the end of the block."""

    def __enter__(self) -> DropIn:
        """The drop-in itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives torch's operators back."""
        drop_in(False)


_library: Any = None
_depth = 0


def drop_in(enable: bool = True) -> DropIn:
    """
    Lets Imbrex run torch.ops.symm_mem's four fused operators, for tensors on GPUs and, with gloo, on the CPU.

    They are fused_all_gather_matmul, fused_matmul_reduce_scatter and both with scales. It takes effect at once, also in
    graphs that are compiled already. In graphs that torch.compile makes from then on, these become operators too:
    gathers before products, all-reduces of products (also with a residual and RMSNorm), and reduce-scatters of
    products. The first call is torch's own, by which the ranks agree; the second and later ones are operators. Calls
    that Imbrex does not take run as before. `imbrex.torch.stats()` counts them, with the reason, and collectives that
    stayed torch's in a graph, and the copies that a caller's layout makes necessary.

    Args:
        enable: False gives torch's own operators back, exactly as they were. Where it was called several times, the
            last of as many calls with False does.

    Returns:
        A context manager that gives them back at the end of its block; it need not be used.

    Example:
        >>> with imbrex.torch.drop_in():
        ...     y = torch.ops.symm_mem.fused_matmul_reduce_scatter(h, weight.t(), "sum", 0, group.group_name)
    """
    global _library, _depth
    if enable:
        _depth += 1
        if _library is None:
            made = torch.library.Library("symm_mem", "IMPL")
            with warnings.catch_warnings():
                # What it warns of, that a kernel is replaced, is what was asked for.
                warnings.simplefilter("ignore", UserWarning)
                for name in _TAKEN:
                    for key in ("CPU", "CUDA"):
                        made.impl(name, _kernel(name, key), key, with_keyset=True, allow_override=True)
            _library = made
            passes.install()
    elif _depth > 0:
        _depth -= 1
        if _depth == 0 and _library is not None:
            library, _library = _library, None
            library._destroy()
            passes.remove()
    return DropIn()
