"""A call whose result one rank does not use stays in that rank's compiled graph: the others wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from groups_for_tests import group_of
from problems import integers
from torch import Tensor

import imbrex.torch as it
from imbrex.torch import extension

Call = Callable[[Tensor, Tensor, Any], Any]


def into(function: Callable[..., Any], shape: tuple[int, ...]) -> Call:
    """The call with an output that is made for it, and used as little as the result."""
    return lambda a, b, group: function(a, b, group, out=torch.empty(shape))


def norm_into(a: Tensor, b: Tensor, group: Any) -> Tensor:
    outputs = {"out": torch.empty(8, 16), "residual_out": torch.empty(8, 16)}
    return it.all_reduce_rms_norm(a, None, b[:, 0].contiguous(), 1e-5, group, **outputs)[0]


CALLS: dict[str, Call] = {
    "all_gather_matmul": lambda a, b, group: it.all_gather_matmul(a, b, group),
    "matmul_reduce_scatter": lambda a, b, group: it.matmul_reduce_scatter(a, b, group),
    "matmul_all_reduce": lambda a, b, group: it.matmul_all_reduce(a, b, group),
    "matmul_all_to_all": lambda a, b, group: it.matmul_all_to_all(a, b, group),
    "with bias": lambda a, b, group: it.matmul_all_reduce(a, b, group, bias=b[0].contiguous()),
    "with codec": lambda a, b, group: it.matmul_all_reduce(a, b, group, codec="int8", tolerance=9.0),
    "a list": lambda a, b, group: it.all_gather_matmul(a, [b + 1, b - 1], group, return_gathered=True)[1][1],
    "all_reduce": lambda a, b, group: it.all_reduce(a, group),
    "all_reduce_rms_norm": lambda a, b, group: it.all_reduce_rms_norm(a, None, b[:, 0].contiguous(), 1e-5, group)[0],
    "out of a product": into(it.matmul_all_reduce, (8, 8)),
    "out of a gather": into(it.all_gather_matmul, (16, 8)),
    "out of an all-reduce": lambda a, b, group: it.all_reduce(a, group, out=torch.empty(8, 16)),
    "out of a norm": norm_into,
}


def made() -> dict[str, int]:
    """How often each operator was called."""
    return {name: count for name, count in extension.calls().items() if name != "made"}


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in made().items()}


def dead_calls(backend: str, trained: bool, only: str = "") -> None:
    """Rank 1 makes nothing of any result, rank 0 their sum; the next call of both is right."""
    group, rank = group_of(0, 1), dist.get_rank()
    if rank > 1:
        return
    calls = [call for name, call in CALLS.items() if not (trained and name.startswith("out of")) and only in ("", name)]
    a = integers((8, 16), rank, torch.float32).requires_grad_(trained)
    b = integers((16, 8), 50 + rank, torch.float32).requires_grad_(trained)

    def program(a: Tensor, b: Tensor) -> Tensor:
        results = [call(a, b, group) for call in calls]
        if rank == 0:
            return a.sum() + sum(result.sum() for result in results).detach()
        return a.sum() * 2

    torch._dynamo.reset()
    with torch.set_grad_enabled(trained):
        before = made()
        want = program(a, b)
        called = since(before)
        assert only or min(called.values()) > 0, called
        before = made()
        got = torch.compile(program, backend=backend, fullgraph=True)(a, b)
    assert since(before) == called, f"{since(before)} calls on rank {rank}, {called} without compilation"
    assert torch.allclose(got, want)
    if trained:
        got.backward()
        assert since(before) == called, f"{since(before)} calls with the backward pass on rank {rank}"
        assert torch.equal(a.grad, torch.full_like(a, rank + 1.0))
    assert torch.equal(it.all_reduce(torch.full((4,), rank + 1.0), group), torch.full((4,), 3.0))


@pytest.mark.parametrize(("backend", "trained"), (("eager", False), ("aot_eager", False), ("aot_eager", True)))
def test_calls_whose_results_are_not_used(ranks, backend, trained):
    ranks.run(dead_calls, backend=backend, trained=trained)


@pytest.mark.parametrize(
    ("only", "trained"), (("matmul_all_reduce", False), ("out of an all-reduce", False), ("all_reduce_rms_norm", True))
)
def test_inductor(ranks, only, trained):
    """One call each: which of several independent ones comes first is Inductor's choice."""
    ranks.run(dead_calls, backend="inductor", trained=trained, only=only)


def torchs_own() -> int:
    """A program of torch's own products and collectives under the drop-in, of which rank 1 logs nothing."""
    import torch._inductor.config as inductor
    import torch.distributed._functional_collectives as functional

    group, rank = group_of(0, 1), dist.get_rank()
    if rank > 1:
        return 0
    a, b = integers((32, 4), rank, torch.float32), integers((4, 32), 50 + rank, torch.float32)

    def program(a: Tensor, b: Tensor) -> Tensor:
        total = functional.all_reduce(a @ b, "sum", group)
        return total.sum() if rank == 0 else a.sum() * 2

    want = program(a, b)
    torch._dynamo.reset()
    with inductor.patch(force_disable_caches=True), it.drop_in():
        graph = torch.compile(program, fullgraph=True)
        graph(a, b)  # torch's own collective, by which the ranks agree
        before = made()
        got = graph(a, b)
    calls = sum(since(before).values())
    assert torch.equal(got, want)
    assert torch.equal(it.all_reduce(torch.full((4,), rank + 1.0), group), torch.full((4,), 3.0))
    return calls


def test_the_drop_in(ranks):
    assert ranks.run(torchs_own)[:2] == [1, 1]


def norms_behind() -> int:
    """The pass takes a norm in: the product's own call is left out, for it is another one's part, on both ranks."""
    import torch._inductor.config as inductor
    import torch.distributed._functional_collectives as functional

    group, rank = group_of(0, 1), dist.get_rank()
    if rank > 1:
        return 0
    a, b = integers((8, 16), rank, torch.float32), integers((16, 8), 50 + rank, torch.float32)

    def program(a: Tensor, b: Tensor) -> Tensor:
        total = functional.all_reduce(a @ b, "sum", group)
        return torch.nn.functional.rms_norm(total, (8,), torch.ones(8), 1e-5)

    want = program(a, b)
    torch._dynamo.reset()
    with inductor.patch(force_disable_caches=True), it.drop_in():
        graph = torch.compile(program, fullgraph=True)
        graph(a, b)  # torch's own collective, by which the ranks agree
        before = made()
        got = graph(a, b)
    assert torch.allclose(got, want, atol=1e-4)
    return sum(since(before).values())


def test_norms_behind_products(ranks):
    assert ranks.run(norms_behind)[:2] == [1, 1]


def checkpointed() -> None:
    """A layer that is computed again in the backward pass calls as often compiled as it does without."""
    from torch.utils.checkpoint import checkpoint

    group, rank = group_of(0, 1), dist.get_rank()
    if rank > 1:
        return
    x, w = integers((8, 16), rank, torch.float32), integers((16, 16), 50 + rank, torch.float32)

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return it.matmul_all_reduce(x.sin(), w, group).sin()

    def program(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(layer, x, w, use_reentrant=False).sum()

    counts, gradients = [], []
    for one in (program, torch.compile(program, backend="aot_eager"), torch.compile(program)):
        torch._dynamo.reset()
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        before = made()
        one(a, b).backward()
        counts.append(sum(since(before).values()))
        gradients.append((a.grad, b.grad))
    assert all(
        torch.allclose(one, want, atol=1e-5)
        for other in gradients
        for one, want in zip(other, gradients[0], strict=True)
    )
    assert all(1 <= count <= 2 for count in counts), counts


def test_checkpoints(ranks):
    ranks.run(checkpointed)
