"""
What Inductor has no operator for, found in the graphs that torch.compile makes while the drop-in is in force.

A pass over each graph, forward or backward, before Inductor's own, looks for sums of products that an all-reduce or a
reduce-scatter takes, and for the norm behind an all-reduce. It replaces them by
one operator of the namespace `imbrex_graph`. These operators decide at each call, as the drop-in's do: what Imbrex does
not take, by shapes, dtypes and arguments
alone, runs as torch's products and collectives, and so does everything once the drop-in has ended.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _c
from .._library import package_folder
from . import norms, sums
from .collect import reduce_scatter
from .fake import keep_in_graphs
from .refusals import DTYPES, Refusal, b_lying, expect, expect_group, expect_product, lying
from .stats import count_copy, count_fallback, count_rewritten

_ops = torch.ops.imbrex
_c10d = torch.ops._c10d_functional

# Up to so many rows the all-reduce is fastest after the product on 4xH200 (bench/results/gpu-4xh200.json), so nothing
# is lost by a norm within it; above, the two overlap, and the norm comes behind.
_ROWS_WITH_NORM = 256

_installed = False


# An H200 moves so many bytes in its memory while one goes over its links.
_MEMORY_TO_LINK = 10


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor | None:
    """The parts one after another along `dim`, where they lie so in one tensor."""
    first = parts[0]
    end = first.storage_offset()
    for one in parts:
        same = one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or one.stride() != first.stride() or one.storage_offset() != end:
            return None
        end += one.shape[dim] * one.stride(dim)
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in parts)
    return first.as_strided(shape, first.stride(), first.storage_offset())


def _joined(a: list[Tensor], b: list[Tensor], dim: int, ranks: int, name: str) -> tuple[Tensor, Tensor] | None:
    """
    A sum of products is one product, of the As beside each other and the Bs below each other.

    None where it costs more to copy them there than it saves: to add up products of their own, and to wait for what
    the ranks send each other, which one product hides. By shapes and strides, so that all ranks decide alike.
    """
    if len(a) == 1:
        return a[0], b[0]
    wide, tall = _side_by_side(a, a[0].dim() - 1), _side_by_side(b, 0)
    m, n, k = a[0].numel() // a[0].shape[-1], b[0].shape[1], sum(one.shape[0] for one in b)
    copied = 2 * k * ((m if wide is None else 0) + (n if tall is None else 0))
    if copied * ranks > m * n * (3 * (len(a) - 1) * ranks + _MEMORY_TO_LINK * (ranks - 1)):
        return None
    if copied:
        count_copy(name, "parts of a sum are laid side by side")
    if wide is None:
        wide = torch.cat([one.movedim(dim, 0) for one in a], -1).movedim(0, dim)
    return wide, torch.cat(b) if tall is None else tall


def _expect_products(a: list[Tensor], b: list[Tensor], dim: int, group: str) -> int:
    """How many ranks there are."""
    expect(_installed, "the drop-in has ended")
    for one, other in zip(a, b, strict=True):
        expect_product(one, other, dim, DTYPES)
    return expect_group(group)


def _local_sum(a: list[Tensor], b: list[Tensor]) -> Tensor:
    result = torch.matmul(a[0], b[0])
    for one, other in zip(a[1:], b[1:], strict=True):
        result = result + torch.matmul(one, other)
    return result


def _torchs_all_reduce(a: list[Tensor], b: list[Tensor], group: str) -> Tensor:
    return _c10d.wait_tensor(_c10d.all_reduce(_local_sum(a, b), "sum", group))


def _all_reduce(a: list[Tensor], b: list[Tensor], group: str) -> Tensor:
    name = "matmul_all_reduce"
    try:
        ranks = _expect_products(a, b, 0, group)
    except Refusal as refusal:
        count_fallback(name, str(refusal))
        return _torchs_all_reduce(a, b, group)
    joined = _joined(a, b, 0, ranks, name)
    if joined is None:
        return _ops.all_reduce(_local_sum(a, b), group)
    one, other = joined
    return _ops.matmul_all_reduce(lying(one, 0, name), b_lying(other, name), group, 0)


def _reduce_scatter(a: list[Tensor], b: list[Tensor], lead: list[int], dim: int, group: str) -> Tensor:
    """The rank's part along `dim` of the sum, seen as `lead` x N; -1 in `lead` is what follows from the others."""
    name = "matmul_reduce_scatter"
    try:
        shaped = [one.reshape(*lead, one.shape[-1]) for one in a]
        ranks = _expect_products(shaped, b, dim, group)
        joined = _joined(shaped, b, dim, ranks, name)
        if joined is None:
            raise Refusal("parts of a sum that are not worth laying side by side")
        one, other = joined
        result: Tensor = _ops.matmul_reduce_scatter(lying(one, dim, name), b_lying(other, name), group, dim)
    except Refusal as refusal:
        count_fallback(name, str(refusal))
        rows = _local_sum(a, b).reshape(*lead, b[0].shape[1]).movedim(dim, 0)
        result = reduce_scatter(rows, group).movedim(0, dim)
    else:
        if not result.is_contiguous():
            count_copy(name, "result along another dimension than the first")
    return result.contiguous()


def _all_reduce_rms_norm(
    a: list[Tensor], b: list[Tensor], residual: Tensor | None, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    """The normalised rows, and the sum with the residual."""
    name = "matmul_all_reduce_rms_norm"
    try:
        _expect_products(a, b, 0, group)
    except Refusal as refusal:
        count_fallback(name, str(refusal))
        total = _torchs_all_reduce(a, b, group)
    else:
        if a[0].shape[0] <= _ROWS_WITH_NORM:
            own = None if residual is None else residual.contiguous()
            return _ops.all_reduce_rms_norm(_local_sum(a, b), own, weight.contiguous(), eps, group)
        total = _all_reduce(a, b, group)
    if residual is not None:
        total = total + residual
    return torch.nn.functional.rms_norm(total, (total.shape[-1],), weight, eps), total


def _fake_reduce_scatter(a: list[Tensor], b: list[Tensor], lead: list[int], dim: int, group: str) -> Tensor:
    from .groups import size_of

    shape = [*a[0].reshape(*lead, a[0].shape[-1]).shape[:-1], b[0].shape[1]]
    shape[dim] = shape[dim] // size_of(group)
    return a[0].new_empty(shape)


def _fake_rms_norm(
    a: list[Tensor], b: list[Tensor], residual: Tensor | None, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    shape = (a[0].shape[0], b[0].shape[1])
    return a[0].new_empty(shape), a[0].new_empty(shape)


def _placed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, place=0: function(*args)


def _counted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, place: int = 0) -> Any:
        if place:
            count_rewritten(name, place)
        return kernel(*args)

    return call


_library: Any = torch.library.Library("imbrex_graph", "DEF")
for _name, _arguments, _results, _kernel, _fake in (
    (
        "matmul_all_reduce",
        "(Tensor[] a, Tensor[] b, str group",
        "Tensor",
        _all_reduce,
        lambda a, b, group: a[0].new_empty((a[0].shape[0], b[0].shape[1])),
    ),
    (
        "matmul_reduce_scatter",
        "(Tensor[] a, Tensor[] b, SymInt[] lead, int dim, str group",
        "Tensor",
        _reduce_scatter,
        _fake_reduce_scatter,
    ),
    (
        "matmul_all_reduce_rms_norm",
        "(Tensor[] a, Tensor[] b, Tensor? residual, Tensor weight, float eps, str group",
        "(Tensor, Tensor)",
        _all_reduce_rms_norm,
        _fake_rms_norm,
    ),
):
    _library.define(f"{_name}{_arguments}, *, int place=0) -> {_results}")
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _counted(_name, _kernel), _key)
    torch.library.register_fake(f"imbrex_graph::{_name}", _placed(_fake), lib=_library)
    keep_in_graphs(getattr(torch.ops.imbrex_graph, _name))


def _make_pass(before: Any) -> Any:
    """The pass, which first runs the pass that was installed before."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Pass(CustomGraphPass):
        def __init__(self) -> None:
            self.before = before

        def __call__(self, graph: torch.fx.Graph) -> None:
            if self.before is not None:
                self.before(graph)
            if _installed:
                sums.rewrite(graph)
                norms.rewrite(graph)
                for node in graph.nodes:
                    if node.op == "call_function" and getattr(node.target, "namespace", "") == "imbrex_graph":
                        # A graph that comes from a cache never passes here: its places are counted where it runs.
                        place = 1 + secrets.randbits(62)
                        node.kwargs = {"place": place}
                        count_rewritten(node.target.name().split("::")[1], place)

        def uuid(self) -> Any:
            """What a cached graph hangs on; None, nothing is cached, where the pass before has no name."""
            theirs = None if self.before is None else getattr(self.before, "uuid", lambda: None)()
            if self.before is not None and theirs is None:
                return None
            # Graphs hold operators by name: those of another version or build of the package are other ones.
            files = (*sorted(Path(__file__).parent.glob("*.py")), package_folder() / "lib" / "libimbrex_torch.so")
            ours = get_hash_for_files(tuple(map(str, files)), extra=_c.function("version")().decode())
            return ours, theirs, _installed

    return Pass()


_pass: Any = None


def install() -> None:
    """Puts the pass before Inductor's own."""
    global _installed, _pass
    from torch._inductor import config

    _installed = True
    _pass = _make_pass(config.post_grad_custom_pre_pass)
    config.post_grad_custom_pre_pass = _pass


def remove() -> None:
    """Takes the pass away: where another one replaced it meanwhile, ours does nothing from here on."""
    global _installed, _pass
    from torch._inductor import config

    _installed = False
    ours, _pass = _pass, None
    now: Any = config.post_grad_custom_pre_pass
    if ours is not None and now is ours:
        config.post_grad_custom_pre_pass = ours.before
