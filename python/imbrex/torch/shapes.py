"""What results look like and which arguments are refused: what the operators say, for tracing without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from .. import _c
from .._arrays import NAMES
from .._errors import InvalidInput
from .._infer import infer, out_type_of, rules_of
from .refusals import lying
from .stats import count_copy

_TYPES = {torch.bfloat16: _c.BF16, torch.float16: _c.FP16, torch.float32: _c.FP32, torch.float8_e4m3fn: _c.E4M3}
_DTYPES = {kind: dtype for dtype, kind in _TYPES.items()}
_NAMES = {dtype: NAMES[kind] for dtype, kind in _TYPES.items()}
# The library is asked once, for graphs have no calls of it: dtypes of products, by those of matrices.
_OUT_DTYPES = {dtype: _DTYPES[out_type_of(kind)] for dtype, kind in _TYPES.items()}


def shape_text(tensor: Tensor) -> str:
    """A shape in an error, as the library writes it."""
    return " x ".join(map(str, tensor.shape)) or "one element"


def out_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the product of matrices of that one."""
    return _OUT_DTYPES.get(dtype, dtype)


def expect_out_dtype(dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Raises InvalidInput where the product of matrices of that dtype is to have another than it has."""
    if out_dtype is not None and out_dtype != out_dtype_of(dtype):
        raise InvalidInput(
            f"out_dtype: of a and b of type {_NAMES.get(dtype, dtype)} the result is "
            f"{_NAMES.get(out_dtype_of(dtype), dtype)}"
        )


def _seen(size: Any, otherwise: int) -> int:
    """A size as the library takes it; of a symbol, that which it was traced with. It stays a symbol, and no guard."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint
    return otherwise if hint is None else int(hint)


def _view_of(name: str, tensor: Tensor, a: Tensor, first: int, ranks: int) -> _c.View:
    """
    The tensor without gaps, its dimension `first` in front: how tensors lie is known when the operator runs.

    A symbol that nothing is known of counts as the ranks.
    """
    if tensor.dtype not in _TYPES:
        raise InvalidInput(
            f"{name} is of {tensor.dtype}: its dtype must be torch.bfloat16, torch.float16, torch.float32 or "
            "torch.float8_e4m3fn"
        )
    if tensor.device != a.device:
        raise InvalidInput(f"{name} is on {tensor.device}, a on {a.device}: all must be on one device")
    if tensor.dim() > _c.MOST_DIMS:
        raise InvalidInput(f"{name} has {tensor.dim()} dimensions: at most {_c.MOST_DIMS}")
    extents = [_seen(size, ranks) for size in tensor.shape]
    strides, step = [0] * len(extents), 1
    for i in sorted(range(len(extents)), key=lambda place: (place != first, place), reverse=True):
        strides[i], step = step, step * extents[i]
    return _c.View(type=_TYPES[tensor.dtype], dims=len(extents), extents=(*extents,), strides=(*strides,))


def infer_product(
    operator: str,
    ranks: int,
    dim: int,
    tensors: dict[str, Tensor | None],
    out_dtype: torch.dtype | None = None,
    gathered_a: bool = False,
) -> list[Tensor | None]:
    """
    What the operator would give: out, further outputs, the gathered A; None where it gives none.

    `tensors` have the operands' names. Raises InvalidInput with the text that the operator would raise.
    """
    a, b = tensors["a"], tensors["b"]
    assert a is not None and b is not None
    given = [(name, one) for name, one in tensors.items() if one is not None]
    views = [(name.encode(), _view_of(name, one, a, dim if name == "a" else 0, ranks)) for name, one in given]
    results = infer(operator, ranks, dim, views, gathered_a).results
    expect_out_dtype(a.dtype, out_dtype)
    rules = rules_of(operator, ranks)
    # What was found right of the sizes that were seen is to hold for others that the graph is run with.
    torch._check(a.shape[-1] == b.shape[0])  # type: ignore[no-untyped-call]
    torch._check(a.shape[dim] % rules.rows_over == 0)  # type: ignore[no-untyped-call]

    def made(view: _c.View, cols: Any) -> Tensor | None:
        if view.dims == 0:
            return None
        # Sizes that are no symbols are the library's, too: its rules give them for symbols.
        sizes = [*a.shape[:-1], cols]
        sizes[dim] = sizes[dim] * rules.rows_times // rules.rows_over
        return empty_with_first(a, sizes, dim, _DTYPES[view.type])

    bs = [tensors.get(f"b{i}") for i in range(1, _c.MOST_PRODUCTS)]
    more = [made(view, None if one is None else one.shape[1]) for view, one in zip(results.more_out, bs, strict=True)]
    return [made(results.out, b.shape[1]), *more, made(results.gathered, a.shape[-1])]


def expect_product(
    a: Tensor, b: Tensor, dim: int, bias: Tensor | None, scale_a: Tensor | None, scale_b: Tensor | None
) -> None:
    """Raises InvalidInput with the text that operators would raise, whatever the ranks make of the rows."""
    tensors = {"a": a, "b": b, "bias": bias, "a_scale": scale_a, "b_scale": scale_b}
    infer_product("all_gather_matmul", 1, dim, tensors)


def expect_factor(a: Tensor, b: Tensor, dim: int) -> None:
    """As expect_product of these two alone; where they make a product, it takes no call of the library to see."""
    if b.dim() != 2 or b.shape[0] != a.shape[-1] or b.dtype != a.dtype or b.device != a.device:
        expect_product(a, b, dim, None, None, None)


def expect_out(out: Tensor, a: Tensor, b: Tensor, dim: int, rows: int, dtype: torch.dtype | None) -> None:
    """Raises InvalidInput where an output is not of this many rows of the product, or not of a dtype that is given."""
    shape = [*a.shape[:-1], b.shape[-1]]
    shape[dim] = rows
    if list(out.shape) != shape:
        raise InvalidInput(f"out is {shape_text(out)}: it must be {' x '.join(map(str, shape))}")
    if dtype is not None and out.dtype != dtype:
        raise InvalidInput(f"operand out is of type {_NAMES.get(out.dtype, out.dtype)}; it must be {_NAMES[dtype]}")


def padded(a: Tensor, scale: Tensor | None, dim: int, ranks: int, operator: str) -> tuple[Tensor, Tensor | None]:
    """A as it must lie, with zeros added along `dim` until that divides by the ranks, and so a scale of each row."""
    missing = -a.shape[dim] % ranks
    if missing == 0:
        return lying(a, dim, operator), scale
    if scale is not None and scale.numel() != 1:
        if a.dim() != 2:
            raise InvalidInput(f"pad with a scale for each row: a is {shape_text(a)}, and must have 2 dimensions")
        scale = in_blocks(scale, 0, [a.shape[0]], a.shape[0] + missing)
    count_copy(operator, "rows are padded")
    return in_blocks(a, dim, [a.shape[dim]], a.shape[dim] + missing), scale


def counts_of(name: str, given: Any, ranks: int) -> list[int]:
    """A list with a number for each rank, of rows. A tensor's numbers would be waited for."""
    if not isinstance(given, (list, tuple)) and (not isinstance(given, Sequence) or isinstance(given, str)):
        raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be a list of each rank's number of rows")
    if len(given) != ranks:
        raise InvalidInput(f"{name} has {len(given)} numbers: it must have one for each of the {ranks} ranks")
    for i, one in enumerate(given):
        if type(one) is int:  # the others take a call tens of microseconds to tell apart
            continue
        if isinstance(one, (bool, Tensor)) or not isinstance(one, SupportsIndex):
            raise InvalidInput(f"{name}[{i}] is of type {type(one).__name__}: it must be an integer")
    # A symbol of torch.compile stays one; an integer of NumPy's would be printed otherwise than the other ranks'.
    counts: list[Any] = [one if isinstance(one, (int, torch.SymInt)) else int(one) for one in given]
    for i, count in enumerate(counts):
        if count < 0:
            raise InvalidInput(f"{name}[{i}] = {count}: it must be 0 or more")
    return counts


def in_blocks(x: Tensor, dim: int, counts: list[int], length: int) -> Tensor:
    """A copy of x in which zeros fill each run of rows up to `length`; `dim` comes first in memory."""
    first = x.movedim(dim, 0)
    zeros = torch.zeros((length - min(counts), *first.shape[1:]), dtype=x.dtype, device=x.device)
    parts = [part for run in torch.split(first, counts) for part in (run, zeros[: length - run.shape[0]])]
    return torch.cat(parts).contiguous().movedim(0, dim)


def out_of_blocks(x: Tensor, dim: int, counts: list[int]) -> Tensor:
    """What was put in blocks, whose length follows from x; no copy where nothing lies between the runs."""
    first = x.movedim(dim, 0)
    length = first.shape[0] // len(counts)
    if all([count == length for count in counts[:-1]]):
        return x.narrow(dim, 0, sum(counts))
    runs = [first.narrow(0, i * length, count) for i, count in enumerate(counts)]
    return torch.cat(runs).movedim(0, dim)


def empty_with_first(like: Tensor, shape: list[int], first: int, dtype: torch.dtype) -> Tensor:
    """A tensor whose dimension `first` comes before the others in memory, without gaps."""
    order = [first, *[i for i in range(len(shape)) if i != first]]
    return like.new_empty([shape[i] for i in order], dtype=dtype).movedim(0, first)


def stream_of(x: Tensor) -> int | None:
    """The current stream where x lies, as ctypes takes it; None on the CPU."""
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None
