"""torch.compile of a model that torch's own plans split: the drop-in finds its collectives, and Imbrex runs them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of

import imbrex.torch as it
from imbrex.torch import extension

TOKENS, HIDDEN, WIDE, LAYERS = 32, 16, 32, 2


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, WIDE, bias=False)
        self.down = torch.nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def compiled_model() -> dict[str, int] | None:
    """Loss and gradients under the drop-in, against the same model on one rank; how often each operator was called."""
    import torch._inductor.config as inductor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    group = group_of(0, 1)
    rank = dist.get_rank()
    mesh = None
    if rank < 2:
        mesh = DeviceMesh.from_group(group, DEVICE)
    if mesh is None:
        return None
    torch.manual_seed(3)
    whole = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    split = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    split.load_state_dict(whole.state_dict())
    x = torch.randn(TOKENS, HIDDEN)
    want = whole(x)
    want.pow(2).sum().backward()
    for layer in split:
        parallelize_module(
            layer,
            mesh,
            {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))},
        )
    with inductor.patch(force_disable_caches=True), it.drop_in():
        model = torch.compile(split)
        model(x.chunk(2)[rank]).pow(2).sum().backward()  # by torch's own collectives the ranks agree
        split.zero_grad()
        before = extension.calls()
        got = model(x.chunk(2)[rank])
        got.pow(2).sum().backward()
    after = extension.calls()
    assert torch.allclose(got, want.chunk(2)[rank], atol=1e-4)
    for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(mine.grad.full_tensor(), theirs.grad, rtol=1e-3, atol=1e-3)
    return {op: after[op] - before[op] for op in after}


class Decoder(torch.nn.Module):
    """A layer of Llama's kind, without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(HIDDEN, eps=1e-5) for _ in range(2))
        self.q, self.k, self.v, self.o = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = (torch.nn.Linear(HIDDEN, WIDE, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        parts = (one(h) for one in (self.q, self.k, self.v))
        # With a default device that was set, Dynamo does not trace unflatten.
        q, k, v = (part.view(*part.shape[:-1], -1, 8).transpose(1, 2) for part in parts)
        y = torch.softmax(q @ k.transpose(2, 3), -1) @ v
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


def decoders(scattered: bool, trained: bool) -> dict[str, int] | None:
    """
    Two such layers as torch's plans split them, by sequence too or not, trained or not, against the whole.

    Returns how often each operator was called, and at how many places the pass put each.
    """
    import torch._inductor.config as inductor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    group, rank = group_of(0, 1), dist.get_rank()
    if rank >= 2:
        return None
    mesh = DeviceMesh.from_group(group, DEVICE)
    torch.manual_seed(4)
    whole, split = (torch.nn.Sequential(*(Decoder() for _ in range(LAYERS))) for _ in range(2))
    split.load_state_dict(whole.state_dict())
    x = torch.randn(2, TOKENS, HIDDEN)
    lies = Shard(1) if scattered else Replicate()
    plan: dict[str, object] = {name: ColwiseParallel(input_layouts=lies) for name in ("q", "k", "v", "gate", "up")}
    plan.update({name: RowwiseParallel(output_layouts=lies) for name in ("o", "down")})
    if scattered:
        plan.update({f"norms.{i}": SequenceParallel(use_local_output=True) for i in range(2)})
    for layer in split:
        parallelize_module(layer, mesh, plan)
    part = x.chunk(2, 1)[rank].contiguous() if scattered else x
    torch._dynamo.reset()
    if not trained:
        torch._dynamo.mark_dynamic(part, 1)
    places = dict(it.stats().rewritten)
    with inductor.patch(force_disable_caches=True), it.drop_in(), torch.set_grad_enabled(trained):
        model = torch.compile(split, fullgraph=True)
        for _ in range(2):  # by torch's own collectives the ranks agree first
            split.zero_grad()
            before = extension.calls()
            got = model(part)
            if trained:
                got.pow(2).sum().backward()
    after, now = extension.calls(), it.stats().rewritten
    want = whole(x)
    assert torch.allclose(got, want.chunk(2, 1)[rank] if scattered else want, atol=1e-4)
    if trained:
        want.pow(2).sum().backward()
        for (name, mine), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
            grad = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
            assert torch.allclose(grad, theirs.grad, rtol=1e-3, atol=1e-3), name
    told = {op: after[op] - before[op] for op in after}
    return told | {f"{op} placed": now[op] - places.get(op, 0) for op in now}


def test_decoders_that_are_served(ranks):
    """Each product with its all-reduce and norm is one operator, except the last, which has no norm."""
    for told in ranks.run(decoders, scattered=False, trained=False)[:2]:
        print(told)
        assert told["matmul_all_reduce_rms_norm placed"] == told["all_reduce_rms_norm"] == 2 * LAYERS - 1, told
        assert told["matmul_all_reduce placed"] == told["matmul_all_reduce"] == 1, told


def test_decoders_that_are_trained(ranks):
    """The gradients of what q, k, v and what gate and up take are sums of products, which are scattered once each."""
    for told in ranks.run(decoders, scattered=True, trained=True)[:2]:
        print(told)
        for op in ("all_gather_matmul", "matmul_reduce_scatter"):
            assert told[f"{op} placed"] == told[op] == 4 * LAYERS, told


def test_a_compiled_model(ranks):
    """Each layer's gather and scatter, and in the backward pass at least the gathers, are Imbrex'."""
    for calls in ranks.run(compiled_model)[:2]:
        print(calls)
        assert calls["all_gather_matmul"] >= 2 * LAYERS - 1, calls
        assert calls["matmul_reduce_scatter"] >= LAYERS, calls
