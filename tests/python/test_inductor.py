"""torch.compile of a model that torch's own plans split: Inductor's micro-pipeline pass fuses, and Imbrex runs it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
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
    from torch.distributed._symmetric_memory import _test_mode
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    group = group_of(0, 1)
    rank = dist.get_rank()
    mesh = None
    if rank < 2:
        mesh = DeviceMesh.from_group(group, "cpu")
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
    before = extension.calls()
    with inductor.patch(_micro_pipeline_tp=True, force_disable_caches=True), _test_mode({group.group_name}):
        with it.drop_in():
            model = torch.compile(split)
            got = model(x.chunk(2)[rank])
            got.pow(2).sum().backward()
    after = extension.calls()
    assert torch.allclose(got, want.chunk(2)[rank], atol=1e-4)
    for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(mine.grad.full_tensor(), theirs.grad, rtol=1e-3, atol=1e-3)
    return {op: after[op] - before[op] for op in after}


def test_a_compiled_model(ranks):
    """Each layer's gather and scatter, and in the backward pass at least the gathers, are Imbrex'."""
    for calls in ranks.run(compiled_model)[:2]:
        print(calls)
        assert calls["all_gather_matmul"] >= 2 * LAYERS - 1, calls
        assert calls["matmul_reduce_scatter"] >= LAYERS, calls
