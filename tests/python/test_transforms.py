"""torch.func, forward mode in graphs, checkpoints of activations, exported graphs: right, or refused on every rank."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE, generator_of
from groups_for_tests import group_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import imbrex.torch as it

RANKS, ROWS, DEPTH, COLUMNS = 4, 8, 16, 8
REFUSED = "torch.func: grad, vjp, jacrev and vmap take no call of Imbrex that has a gradient"


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    """Integers: sums of them are exact."""
    return torch.randint(-4, 5, shape, generator=generator_of(seed), device=DEVICE).float()


def operators(group: Any) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Every operator as a function of its first argument."""
    b, norm = drawn((DEPTH, COLUMNS), 50 + dist.get_rank()), torch.ones(DEPTH, device=DEVICE)
    for name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"):
        function = getattr(it, name)
        yield name, lambda a, function=function: function(a, b, group)
    yield "list", lambda a: it.all_gather_matmul(a, [b, b], group)[1]
    yield "all_reduce", lambda a: it.all_reduce(a, group)
    yield "all_reduce_rms_norm", lambda a: it.all_reduce_rms_norm(a, None, norm, 1e-5, group)[0]


def reverse_mode() -> None:
    """Refused with the reason, eagerly and in a graph, where torch's own zeros came back; the next call is right."""
    group = group_of(*range(RANKS))
    a, b = drawn((ROWS, DEPTH), dist.get_rank()), drawn((DEPTH, COLUMNS), 9)
    wanted = it.matmul_all_reduce(a, b, group)
    for name, function in operators(group):
        total = lambda a, function=function: function(a).square().sum()  # noqa: E731
        gradient = torch.func.grad(total)
        calls: dict[str, Callable[[], Any]] = {
            "grad": lambda gradient=gradient: gradient(a),
            "vjp": lambda function=function: torch.func.vjp(function, a),
            "jacrev": lambda function=function: torch.func.jacrev(function)(a),
        }
        for full in (False, True):
            graph = torch.compile(gradient, backend="eager", fullgraph=full)
            calls[f"grad in a graph, fullgraph={full}"] = lambda graph=graph: graph(a)
        for kind, call in calls.items():
            # NotImplementedError is one, and what torch makes of it in a graph.
            with pytest.raises(RuntimeError, match=REFUSED):
                print(name, kind, call())
            torch._dynamo.reset()
    column = it.nn.ColumnParallelLinear(DEPTH, 32, group, device=DEVICE)
    for layer in (column, it.nn.ColumnParallelLinear(DEPTH, 32, group, gather_output=True, device=DEVICE)):
        with pytest.raises(NotImplementedError, match=REFUSED):
            torch.func.grad(lambda x, layer=layer: layer(x).sum())(a)
    weight = b.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=REFUSED):
        torch.func.vmap(lambda x: it.matmul_all_reduce(x, weight, group))(torch.stack([a, a]))
    assert torch.equal(it.matmul_all_reduce(a, b, group), wanted)


@pytest.mark.skipif(DEVICE == "cuda", reason="a graph of torch.func's is the same there")
def test_reverse_mode_is_refused(ranks):
    ranks.run(reverse_mode)


def without_gradients() -> None:
    """What records nothing is right: vmap, functional_call."""
    group = group_of(*range(RANKS))
    a, other = drawn((ROWS, DEPTH), dist.get_rank()), drawn((ROWS, DEPTH), 60 + dist.get_rank())
    for name, function in operators(group):
        got = torch.func.vmap(function)(torch.stack([a, other]))
        assert torch.equal(got, torch.stack([function(a), function(other)])), name
    layer = it.nn.RowParallelLinear(DEPTH * RANKS, COLUMNS, group, device=DEVICE)
    weights = {"weight": drawn((COLUMNS, DEPTH), 3)}
    with torch.no_grad():
        got = torch.func.functional_call(layer, weights, (a,))
    assert torch.equal(got, it.matmul_all_reduce(a, weights["weight"].t(), group))


def test_calls_without_gradients(ranks):
    ranks.run(without_gradients)


def dual_tensors() -> None:
    """Around dual tensors a graph ends, and the tangents are those of the call itself: in a graph they were lost."""
    group = group_of(*range(RANKS))
    a, slope = drawn((ROWS, DEPTH), dist.get_rank()), drawn((ROWS, DEPTH), 30 + dist.get_rank())
    for name, function in operators(group):

        def tangent(a: Tensor, slope: Tensor, function: Callable[[Tensor], Tensor] = function) -> Any:
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(function(forward_ad.make_dual(a, slope))).tangent

        wanted = tangent(a, slope)
        got = torch.compile(tangent, backend="eager")(a, slope)
        assert got is not None, name
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}: {text}")
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="a graph takes no dual tensors into Imbrex' operators"):
            torch.compile(tangent, backend="eager", fullgraph=True)(a, slope)
        torch._dynamo.reset()
        # Only a part of the program is a graph, and the level is one that it does not open.
        part = torch.compile(function, backend="eager")
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(part(forward_ad.make_dual(a, slope))).tangent
        assert got is not None, name
        torch.testing.assert_close(got, wanted, msg=lambda text, name=name: f"{name}, a part: {text}")
        torch._dynamo.reset()


def test_dual_tensors_in_graphs(ranks):
    ranks.run(dual_tensors)


def mlp(group: Any, sequence_parallel: bool) -> torch.nn.Module:
    make = {"sequence_parallel": sequence_parallel, "bias": True, "device": DEVICE}
    return torch.nn.Sequential(
        it.nn.ColumnParallelLinear(DEPTH, 32, group, **make),
        torch.nn.GELU(),
        it.nn.RowParallelLinear(32, DEPTH, group, **make),
    )


def gradients(model: torch.nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    call(x).square().sum().backward()
    return [x.grad, *(one.grad.clone() for one in model.parameters())]  # type: ignore[list-item,union-attr]


def activation_checkpoints() -> None:
    """Computed again in the backward pass, eagerly and in graphs: the same gradients, bit by bit where it is eager."""
    group = group_of(*range(RANKS))
    for sequence_parallel in (False, True):
        model = mlp(group, sequence_parallel)
        x = drawn((ROWS, DEPTH), dist.get_rank() if sequence_parallel else 1) / 8
        wanted = gradients(model, model, x)
        for reentrant in (False, True):
            got = gradients(model, lambda x, m=model, r=reentrant: checkpoint(m, x, use_reentrant=r), x)
            assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True)), reentrant
        graph = torch.compile(
            lambda x, m=model: checkpoint(m, x, use_reentrant=False), backend="aot_eager", fullgraph=True, dynamic=True
        )
        for rows in (ROWS, 2 * ROWS, 3 * ROWS):
            x = drawn((rows, DEPTH), rows + (dist.get_rank() if sequence_parallel else 1)) / 8
            for one, other in zip(gradients(model, graph, x), gradients(model, model, x), strict=True):
                torch.testing.assert_close(one, other)
        torch._dynamo.reset()


def test_activation_checkpoints(ranks):
    ranks.run(activation_checkpoints)


def exported() -> None:
    """A model for inference as torch.export writes and reads it, with M fixed and open."""
    group = group_of(*range(RANKS))
    model = mlp(group, True).eval()
    x, longer = drawn((ROWS, DEPTH), dist.get_rank()), drawn((3 * ROWS, DEPTH), 70 + dist.get_rank())
    rows = torch.export.Dim("rows", min=2, max=1024)
    with torch.no_grad():
        for shapes, given in ((None, x), (({0: 2 * rows},), longer)):
            for strict in (False, True):
                file = io.BytesIO()
                torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes, strict=strict), file)
                file.seek(0)
                torch.testing.assert_close(torch.export.load(file).module()(given), model(given))


def test_exported_graphs(ranks):
    ranks.run(exported)
