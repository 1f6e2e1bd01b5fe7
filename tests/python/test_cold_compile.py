"""torch.compile of a program whose first call of a group is in the graph, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import generator_of
from groups_for_tests import group_of
from torch._subclasses.fake_tensor import FakeTensorMode

import imbrex.torch as it
from imbrex.torch import groups

FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "all_gather_matmul": lambda x, w, g: it.all_gather_matmul(x, w.t(), g),
    "a list": lambda x, w, g: sum(it.all_gather_matmul(x, [w.t(), (2 * w).t()], g)),
    "with the gathered": lambda x, w, g: it.all_gather_matmul(x, w.t(), g, return_gathered=True)[1],
    "matmul_reduce_scatter": lambda x, w, g: it.matmul_reduce_scatter(x, w.t(), g),
    "matmul_all_reduce": lambda x, w, g: it.matmul_all_reduce(x, w.t(), g),
    "matmul_all_to_all": lambda x, w, g: it.matmul_all_to_all(x, w.t(), g),
    "all_reduce": lambda x, w, g: it.all_reduce(x, g) * w.sum(),
    "all_reduce_rms_norm": lambda x, w, g: it.all_reduce_rms_norm(x, None, w[0], 1e-6, g)[0],
}


class Layers(torch.nn.Module):
    """An MLP with sequence parallelism."""

    def __init__(self, group: Any, **options: Any) -> None:
        super().__init__()
        self.up = it.nn.ColumnParallelLinear(16, 32, group=group, sequence_parallel=True, **options)
        self.down = it.nn.RowParallelLinear(32, 16, group=group, sequence_parallel=True, **options)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
        return self.down(torch.relu(self.up(x))) * w.sum()


def compiled_cold(name: str) -> None:
    """Result and gradients of a graph of a group without a world, beside those of the function."""
    group = dist.new_group([0, 1, 2, 3])
    assert group.group_name not in groups._worlds
    torch._dynamo.reset()
    function = Layers(group) if name == "layers" else lambda x, w: FUNCTIONS[name](x, w, group)
    generator = generator_of(dist.get_rank())
    x, w = (torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 16), (8, 16)))
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x, w)
    of_graph = torch.autograd.grad(got.sum(), (x, w), allow_unused=True)
    assert group.group_name in groups._worlds
    want = function(x, w)
    of_function = torch.autograd.grad(want.sum(), (x, w), allow_unused=True)
    torch.testing.assert_close(got, want)
    for mine, theirs in zip(of_graph, of_function, strict=True):
        torch.testing.assert_close(mine, theirs)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("name", [*FUNCTIONS, "layers"])
def test_the_first_call_may_be_in_the_graph(ranks, name):
    ranks.run(compiled_cold, name=name)


def traced_on_gpus(name: str) -> None:
    """Tensors of GPUs are asked more where they are traced, and in a backward pass. No GPU is needed for that."""
    group = group_of(0, 1, 2, 3)
    torch._dynamo.reset()
    for dtype in (torch.float32, torch.bfloat16):
        options: Any = {"device": "cuda", "dtype": dtype}
        with FakeTensorMode():
            function = Layers(group, **options) if name == "layers" else lambda x, w: FUNCTIONS[name](x, w, group)
            x, w = (torch.empty(shape, requires_grad=True, **options) for shape in ((4, 16), (8, 16)))
            got = torch.compile(function, fullgraph=True, backend="eager")(x, w)
            want = function(x, w)
            assert (got.shape, got.dtype, got.device.type) == (want.shape, want.dtype, "cuda")


@pytest.mark.parametrize("name", [*FUNCTIONS, "layers"])
def test_graphs_of_tensors_on_gpus(ranks, name):
    ranks.run(traced_on_gpus, name=name)
