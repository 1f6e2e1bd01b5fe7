"""
What the pass puts into graphs: one operator of the namespace `imbrex_graph` for a collective and its products.

At each call it is Imbrex' where all ranks agreed, and torch's products and collectives otherwise, in the order and with
the layouts of those that it stands for, so that ranks may differ.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..collect import gather_products, suits_the_library
from ..fake import keep_in_graphs
from ..groups import size_of
from ..refusals import DTYPES, Refusal, b_lying, expect, expect_group, expect_product, lying
from ..stats import count_copy, count_fallback, count_rewritten
from .agreement import agree, agreement, is_capturing

T = TypeVar("T")
_ops = torch.ops.imbrex
_c10d = torch.ops._c10d_functional

# Up to so many rows the all-reduce is fastest after the product on 4xH200 (bench/results/gpu-4xh200.json), so nothing
# is lost by a norm within it; above, the two overlap, and the norm comes behind.
_ROWS_WITH_NORM = 256

# An H200 moves so many bytes in its memory while one goes over its links.
_MEMORY_TO_LINK = 10

_in_force = False


def put_in_force(value: bool) -> None:
    """Says whether the operators are Imbrex' or torch's."""
    global _in_force
    _in_force = value


def is_in_force() -> bool:
    """Whether the operators are Imbrex'."""
    return _in_force


def _decide(
    name: str,
    group: str,
    site: int,
    given: tuple[list[Tensor], list[Tensor], Any],
    dim: int,
    says_yes: Callable[[], bool],
    ours: Callable[[bool], T],
    torchs: Callable[[], T],
) -> T:
    """Ours where all ranks agreed; `ours` is told whether all say yes."""
    a, b, rest = given
    try:
        expect(_in_force, "the drop-in has ended")
        for one, other in zip(a, b, strict=True):
            expect_product(one, other, dim, DTYPES)
        expect(size_of(group) > 1, "one rank")
        shapes = tuple((tuple(one.shape), one.dtype) for one in (*a, *b))
        signature = (shapes, dim, rest, a[0].device.type)
        found = agreement(group, site, signature)
        if found is None:
            expect(not is_capturing(a[0]), "first call while a graph is captured")
            return agree(name, group, site, signature, says_yes(), a[0], torchs)
        expect(found.is_taken, "other ranks run something else there")
        expect_group(group)
        return ours(found.all_say_yes)
    except Refusal as refusal:
        count_fallback(name, str(refusal))
    return torchs()


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


def _is_worth_joining(a: list[Tensor], b: list[Tensor], ranks: int) -> bool:
    """
    Whether this rank would have a sum of products as one product, of the As side by side and the Bs one below another.

    It would not where it costs more to copy them there than it saves: to add up products of their own, and to wait for
    what the ranks send each other, which one product hides. How they lie may differ between ranks: all must say so.
    """
    if len(a) == 1:
        return True
    wide, tall = _side_by_side(a, a[0].dim() - 1), _side_by_side(b, 0)
    m, n, k = a[0].numel() // a[0].shape[-1], b[0].shape[1], sum(one.shape[0] for one in b)
    copied = 2 * k * ((m if wide is None else 0) + (n if tall is None else 0))
    return copied * ranks <= m * n * (3 * (len(a) - 1) * ranks + _MEMORY_TO_LINK * (ranks - 1))


def _joined(a: list[Tensor], b: list[Tensor], dim: int, name: str) -> tuple[Tensor, Tensor]:
    """The factors of the one product, as the library takes them."""
    if len(a) == 1:
        return lying(a[0], dim, name), b_lying(b[0], name)
    wide, tall = _side_by_side(a, a[0].dim() - 1), _side_by_side(b, 0)
    if wide is None or tall is None:
        count_copy(name, "parts of a sum are laid side by side")
    if wide is None:
        wide = torch.cat([one.movedim(dim, 0) for one in a], -1).movedim(0, dim)
    return lying(wide, dim, name), b_lying(torch.cat(b) if tall is None else tall, name)


def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _local_sum(a: list[Tensor], b: list[Tensor], bias: list[Tensor | None]) -> Tensor:
    products = [_product(*one) for one in zip(a, b, bias, strict=True)]
    return sum(products[1:], products[0])


def _added_rows(bias: list[Tensor | None], group: str) -> Tensor | None:
    """What is added to every row of the sum over the ranks, each of which may add something else."""
    rows = [one for one in bias if one is not None]
    if not rows:
        return None
    return _ops.all_reduce(sum(rows[1:], rows[0]).reshape(1, -1), group).flatten()


def _summed_by_torch(
    a: list[Tensor], b: list[Tensor], bias: list[Tensor | None], counts: list[int], reduce: Callable[[Tensor], Tensor]
) -> Tensor:
    """With as many collectives as there were."""
    results, begin = [], 0
    for count in counts:
        part = slice(begin, begin + count)
        results.append(_c10d.wait_tensor(reduce(_local_sum(a[part], b[part], bias[part]))))
        begin += count
    return sum(results[1:], results[0])


def _signature(bias: list[Tensor | None], *rest: Any) -> Any:
    return (*(None if one is None else tuple(one.shape) for one in bias), *rest)


def _all_reduced(
    a: list[Tensor], b: list[Tensor], bias: list[Tensor | None], group: str, is_joined: bool, name: str
) -> Tensor:
    if not is_joined:
        return _ops.all_reduce(_local_sum(a, b, bias), group)
    return _ops.matmul_all_reduce(*_joined(a, b, 0, name), group, 0, _added_rows(bias, group))


def _torchs_all_reduce(
    a: list[Tensor], b: list[Tensor], bias: list[Tensor | None], counts: list[int], group: str
) -> Tensor:
    return _summed_by_torch(a, b, bias, counts, lambda x: _c10d.all_reduce(x, "sum", group))


def _all_reduce(
    a: list[Tensor], b: list[Tensor], bias: list[Tensor | None], counts: list[int], group: str, site: int
) -> Tensor:
    name = "matmul_all_reduce"
    return _decide(
        name,
        group,
        site,
        (a, b, _signature(bias, *counts)),
        0,
        lambda: _is_worth_joining(a, b, size_of(group)),
        lambda is_joined: _all_reduced(a, b, bias, group, is_joined, name),
        lambda: _torchs_all_reduce(a, b, bias, counts, group),
    )


def _reduce_scatter(
    a: list[Tensor],
    b: list[Tensor],
    bias: list[Tensor | None],
    counts: list[int],
    lead: list[int],
    dim: int,
    group: str,
    site: int,
) -> Tensor:
    """The rank's part along `dim` of the sum, seen as `lead` x N; -1 in `lead` is what follows from the others."""
    name = "matmul_reduce_scatter"
    ranks, n = size_of(group), b[0].shape[1]

    def scatter(x: Tensor) -> Tensor:
        x = x.reshape(*lead, n)
        # As torch cuts it up: a rank that has torch's own collective there sends the same.
        rows = torch.cat(x.chunk(ranks, dim)) if dim else x
        return _c10d.reduce_scatter_tensor(rows.contiguous(), "sum", ranks, group)

    def ours(is_joined: bool) -> Tensor:
        if not is_joined:
            raise Refusal("parts of a sum that are not worth laying side by side")
        result: Tensor = _ops.matmul_reduce_scatter(
            *_joined(shaped, b, dim, name), group, dim, _added_rows(bias, group)
        )
        if not result.is_contiguous():
            count_copy(name, "result along another dimension than the first")
        return result.contiguous()

    shaped = [one.reshape(*lead, one.shape[-1]) for one in a]
    return _decide(
        name,
        group,
        site,
        (shaped, b, _signature(bias, *counts)),
        dim,
        lambda: _is_worth_joining(shaped, b, ranks),
        ours,
        lambda: _summed_by_torch(a, b, bias, counts, scatter),
    )


def _all_reduce_rms_norm(
    a: list[Tensor],
    b: list[Tensor],
    bias: list[Tensor | None],
    counts: list[int],
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    group: str,
    site: int,
) -> tuple[Tensor, Tensor]:
    """The normalised rows, and the sum with the residual."""
    name = "matmul_all_reduce_rms_norm"

    def normalised(total: Tensor) -> tuple[Tensor, Tensor]:
        if residual is not None:
            total = total + residual
        # In the weight's dtype, which may be fp32 beside rows of fewer bits: torch (2.15) warns where they differ.
        normal = torch.nn.functional.rms_norm(total.to(weight.dtype), (total.shape[-1],), weight, eps)
        return normal.to(total.dtype), total

    def ours(is_joined: bool) -> tuple[Tensor, Tensor]:
        if a[0].shape[0] > _ROWS_WITH_NORM:
            return normalised(_all_reduced(a, b, bias, group, is_joined, name))
        own = None if residual is None else residual.contiguous()
        return _ops.all_reduce_rms_norm(_local_sum(a, b, bias), own, weight.contiguous(), eps, group)

    return _decide(
        name,
        group,
        site,
        (a, b, _signature(bias, *counts, residual is None, weight.dtype, eps)),
        0,
        lambda: _is_worth_joining(a, b, size_of(group)),
        ours,
        lambda: normalised(_torchs_all_reduce(a, b, bias, counts, group)),
    )


def _all_gather(
    a: Tensor, b: list[Tensor], bias: list[Tensor | None], batch: int, keep: bool, group: str, site: int
) -> list[Tensor]:
    """
    The gathered rows, if they are kept, and their product with each B.

    Where `batch` is not 1, `a` holds that many blocks, each of which is gathered by itself.
    """
    name, ranks = "all_gather_matmul", size_of(group)
    flat = a.reshape(-1, a.shape[-1])
    shaped = flat if batch == 1 else flat.reshape(batch, -1, flat.shape[1])
    dim = shaped.dim() - 2

    def ours(all_suit: bool) -> list[Tensor]:
        if not all_suit:
            raise Refusal("Bs that do not share a gather")
        bs = [b_lying(one, name) for one in b]
        if len(bs) == 1 and not keep:
            whole, products = None, [_ops.all_gather_matmul(lying(shaped, dim, name), bs[0], group, dim, bias[0])]
        else:
            whole, products = gather_products(shaped, bs, group, dim, within, keep=keep)
        results = [whole, *products] if whole is not None and keep else products
        if not results[0].is_contiguous():
            count_copy(name, "result along another dimension than the first")
        rows = [one.reshape(-1, one.shape[-1]) for one in results]
        if within is not bias:
            begin = len(rows) - len(b)
            rows[begin:] = [one if row is None else one + row for one, row in zip(rows[begin:], bias, strict=True)]
        return rows

    def torchs() -> list[Tensor]:
        parts = _c10d.wait_tensor(_c10d.all_gather_into_tensor(shaped.contiguous(), ranks, group))
        whole = (parts if batch == 1 else torch.cat(parts.split(batch), 1)).reshape(-1, a.shape[-1])
        return [*([whole] if keep else []), *(_product(whole, *one) for one in zip(b, bias, strict=True))]

    # The library adds a row to each of several products, or to none.
    within: list[Tensor | None] = bias if len({one is None for one in bias}) == 1 else [None] * len(b)

    def suit() -> bool:
        return (len(b) == 1 and not keep) or suits_the_library(shaped, [b_lying(one, name) for one in b], within)

    return _decide(name, group, site, ([shaped] * len(b), b, _signature(bias, keep)), dim, suit, ours, torchs)


def _fake_reduce_scatter(a: list[Tensor], b: list[Tensor], lead: list[int], dim: int, group: str) -> Tensor:
    shape = [*a[0].reshape(*lead, a[0].shape[-1]).shape[:-1], b[0].shape[1]]
    shape[dim] = shape[dim] // size_of(group)
    return a[0].new_empty(shape)


def _fake_all_gather(a: Tensor, b: list[Tensor], keep: bool, group: str) -> list[Tensor]:
    rows = a.numel() // a.shape[-1] * size_of(group)
    return [a.new_empty((rows, one)) for one in [*([a.shape[-1]] if keep else []), *(each.shape[1] for each in b)]]


def _fake_all_reduce(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return a[0].new_empty((a[0].shape[0], b[0].shape[1]))


def _counted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, place: int = 0, site: int = 0) -> Any:
        if place:
            count_rewritten(name, place)
        return kernel(*args, site)

    return call


def _placed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, place=0, site=0: function(*args)


_SUM = "Tensor[] a, Tensor[] b, Tensor?[] bias, int[] counts"
_library: Any = torch.library.Library("imbrex_graph", "DEF")
for _name, _arguments, _results, _kernel, _fake in (
    (
        "matmul_all_reduce",
        f"({_SUM}, str group",
        "Tensor",
        _all_reduce,
        lambda a, b, bias, counts, group: _fake_all_reduce(a, b),
    ),
    (
        "matmul_reduce_scatter",
        f"({_SUM}, SymInt[] lead, int dim, str group",
        "Tensor",
        _reduce_scatter,
        lambda a, b, bias, counts, lead, dim, group: _fake_reduce_scatter(a, b, lead, dim, group),
    ),
    (
        "matmul_all_reduce_rms_norm",
        f"({_SUM}, Tensor? residual, Tensor weight, float eps, str group",
        "(Tensor, Tensor)",
        _all_reduce_rms_norm,
        lambda a, b, *rest: (_fake_all_reduce(a, b), _fake_all_reduce(a, b)),
    ),
    (
        "all_gather_matmul",
        "(Tensor a, Tensor[] b, Tensor?[] bias, int batch, bool keep, str group",
        "Tensor[]",
        _all_gather,
        lambda a, b, bias, batch, keep, group: _fake_all_gather(a, b, keep, group),
    ),
):
    _library.define(f"{_name}{_arguments}, *, int place=0, int site=0) -> {_results}")
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _counted(_name, _kernel), _key)
    torch.library.register_fake(f"imbrex_graph::{_name}", _placed(_fake), lib=_library)
    keep_in_graphs(getattr(torch.ops.imbrex_graph, _name))
