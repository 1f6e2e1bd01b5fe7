"""What torch's autograd knows of calls that write: outputs count a version, and none is part of what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from groups_for_tests import group_of
from problems import integers
from torch import Tensor

import imbrex
import imbrex.torch as it

Call = Callable[[Any], Any]


def a_and_b(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    return integers((8, 16), rank, dtype), integers((16, 8), 50 + rank, dtype)


def writers(group: Any) -> Iterator[tuple[str, tuple[tuple[int, ...], ...], Callable[..., Any]]]:
    """Every call that writes, with the shapes of what it writes to; float32."""
    a, b = a_and_b()
    bias, x, weight = torch.ones(8), integers((8, 16), 90 + dist.get_rank(), torch.float32), torch.ones(16)
    rows = {"all_gather_matmul": 32, "matmul_reduce_scatter": 2, "matmul_all_reduce": 8, "matmul_all_to_all": 8}
    for name, count in rows.items():
        function = getattr(it, name)
        yield name, ((count, 8),), lambda out, function=function: function(a, b, group, out=out)
        yield (
            f"{name} with bias",
            ((count, 8),),
            lambda out, function=function: function(a, b, group, bias=bias, out=out),
        )
    for name in ("matmul_reduce_scatter", "matmul_all_reduce"):
        function, shape = getattr(it, name), ((rows[name], 8),)
        for more in ({"codec": "int8"}, {"codec": "int8", "tolerance": 9.0}):
            call = lambda out, function=function, more=more: function(a, b, group, out=out, **more)  # noqa: E731
            yield f"{name} with {more}", shape, call
    gather = it.all_gather_matmul
    yield "two b", ((32, 8), (32, 8)), lambda one, other: gather(a, [b, b], group, out=[one, other])
    yield "gathered", ((32, 8),), lambda out: gather(a, b, group, return_gathered=True, out=out)
    yield "all_reduce", ((8, 16),), lambda out: it.all_reduce(x, group, out=out)
    yield "all_reduce with codec", ((8, 16),), lambda out: it.all_reduce(x, group, codec="int8", report=True, out=out)
    yield (
        "all_reduce_rms_norm",
        ((8, 16), (8, 16)),
        lambda out, total: it.all_reduce_rms_norm(x, None, weight, 1e-5, group, out=out, residual_out=total),
    )
    packed, layout = it.matmul_all_reduce_packed(a, b, group)
    yield "packed", (tuple(packed.shape),), lambda out: it.matmul_all_reduce_packed(a, b, group, out=out)
    yield "put_back", ((8, 8),), lambda out: it.put_back("copy", packed, layout, out=out)
    yield (
        "put_back with residual",
        ((8, 8), (8, 8)),
        lambda out, total: it.put_back(
            "rms_norm", packed, layout, weight=bias, residual=torch.ones(8, 8), out=out, residual_out=total
        ),
    )


def told_of_writes() -> int:
    """A product that kept the output for its gradient raises, whichever call wrote to it, as after torch.mm(out=)."""
    group, count = group_of(0, 1, 2, 3), 0
    for name, shapes, call in writers(group):
        for written in range(len(shapes)):
            outputs = [torch.ones(shape) for shape in shapes]
            versions = [out._version for out in outputs]
            factor = torch.full(shapes[written], 2.0, requires_grad=True)
            kept = (factor * outputs[written]).sum()
            call(*outputs)
            assert all(out._version > before for out, before in zip(outputs, versions, strict=True)), name
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                kept.backward()
            count += 1
    return count


def test_autograd_is_told_of_writes(ranks):
    assert min(ranks.run(told_of_writes)) >= 20


def in_place() -> None:
    """The operand itself as the output; rows of a wider tensor; and what is kept of another tensor stays right."""
    group = group_of(0, 1)
    if dist.get_rank() > 1:
        return
    weight, buffer = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    kept = (weight * buffer).sum()
    it.all_reduce(buffer, group, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    wide = torch.ones(4, 8)
    kept = (torch.ones(4, 8, requires_grad=True) * wide).sum()
    it.matmul_all_reduce(torch.ones(4, 4), torch.ones(4, 4), group, out=wide[:, :4])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    other = torch.ones(4, 4)
    kept = (weight * other).sum()
    it.all_reduce(torch.ones(4, 4), group, out=torch.empty(4, 4))
    kept.backward()
    assert torch.equal(weight.grad, other)


def test_outputs_in_place(ranks):
    ranks.run(in_place)


def refused_outputs() -> None:
    """An output that requires a gradient is refused where torch.mm refuses it, before anything runs, and only there."""
    group = group_of(0, 1, 2, 3)
    for name, shapes, call in writers(group):
        for guilty in range(len(shapes)):
            outputs = [torch.full(shape, -7.0) for shape in shapes]
            outputs[guilty].requires_grad_()
            with pytest.raises(imbrex.InvalidInput, match="requires a gradient") as told:
                call(*outputs)
            assert all((out == -7).all() for out in outputs), (name, told.value)
            with torch.no_grad():
                torch.mm(torch.ones(4, 4), torch.ones(4, 4), out=torch.empty(4, 4, requires_grad=True))
                call(*outputs)
            assert all((out != -7).any() for out in outputs), name
            assert outputs[guilty].grad_fn is None
        # What is computed from such a tensor is part of the recorded graph as well.
        computed = [torch.ones(shape, requires_grad=True) * -7 for shape in shapes]
        with pytest.raises(imbrex.InvalidInput, match="requires a gradient"):
            call(*computed)
    with pytest.raises(RuntimeError):
        torch.mm(torch.ones(4, 4), torch.ones(4, 4), out=torch.empty(4, 4, requires_grad=True))
    with pytest.raises(imbrex.InvalidInput, match="out is of type str"):
        it.matmul_all_reduce(torch.ones(4, 4), torch.ones(4, 4), group, out="here")


def test_outputs_that_require_gradients(ranks):
    ranks.run(refused_outputs)


def inferred() -> None:
    """Tensors of the inference mode have no version, and are written to as before."""
    group = group_of(0, 1, 2, 3)
    with torch.inference_mode():
        for name, shapes, call in writers(group):
            outputs = [torch.full(shape, -7.0) for shape in shapes]
            call(*outputs)
            assert all((out != -7).any() for out in outputs), name
        x = torch.ones(4)
    it.all_reduce(torch.ones(4), group, out=x)  # outside of that mode, too
    assert torch.equal(x, torch.full((4,), 4.0))


def test_inference_mode(ranks):
    ranks.run(inferred)
