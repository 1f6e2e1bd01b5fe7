"""Marks of functions for torch.compile: as torch's own decorators leave them, without loading its compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

import imbrex
from imbrex.torch.frames import constant_in_graphs, no_graph_of_its_own, outside_graphs


def test_the_compiler_is_not_loaded():
    """A process that compiles nothing does not wait for it."""
    program = "import sys, imbrex.torch; print([name for name in sys.modules if name.startswith('torch._dynamo')])"
    environment = {**os.environ, "PYTHONPATH": str(Path(imbrex.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_marks_are_torchs():
    def one() -> None: ...

    def other() -> None: ...

    assert vars(constant_in_graphs(one)) == vars(torch.compiler.assume_constant_result(other))

    def third() -> None: ...

    theirs = vars(torch.compiler.disable(lambda: None))
    for name, value in vars(outside_graphs(third)).items():
        assert theirs[name] == value, name


graphs: list[list[str]] = []


def counted(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
    """A backend that keeps what is in each graph."""
    graphs.append([str(node.target.__name__) for node in graph.graph.nodes if node.op == "call_function"])
    return graph


def within(x: Tensor) -> Tensor:
    """No graph is made of what the function below calls, either."""
    return torch.sin(x)


@outside_graphs
def apart(x: Tensor) -> Tensor:
    return within(torch.cos(x))


class Layer(torch.nn.Module):
    """As the embedding's."""

    @outside_graphs
    def forward(self, x: Tensor) -> Tensor:
        return within(torch.cos(x))


@pytest.mark.parametrize("call", [apart, Layer()])
def test_what_stays_outside(call):
    """The graph ends before it and begins anew after it; alone it has none; one graph of all is refused."""
    torch._dynamo.reset()
    graphs.clear()
    x = torch.rand(4)
    got = torch.compile(lambda x: torch.exp(call(torch.tanh(x))), backend=counted)(x)
    assert torch.equal(got, torch.exp(torch.sin(torch.cos(torch.tanh(x))))) and graphs == [["tanh"], ["exp"]]
    graphs.clear()
    assert torch.equal(torch.compile(call, backend=counted)(x), torch.sin(torch.cos(x))) and graphs == []
    with pytest.raises(Exception, match="disable"):
        torch.compile(lambda x: torch.exp(call(x)), backend=counted, fullgraph=True)(x)


calls = 0


@constant_in_graphs
def number() -> int:
    global calls
    calls += 1
    return 3


@no_graph_of_its_own
def tripled(x: Tensor) -> Tensor:
    return x * number()


def test_what_is_constant():
    """It is asked while the graph is traced, and is in the graph as a number."""
    torch._dynamo.reset()
    graphs.clear()
    compiled = torch.compile(lambda x: tripled(torch.tanh(x)), backend=counted, fullgraph=True)
    x = torch.rand(4)
    for _ in range(3):
        assert torch.equal(compiled(x), torch.tanh(x) * 3)
    assert graphs == [["tanh", "mul"]] and calls == 1
    graphs.clear()
    assert torch.equal(torch.compile(tripled, backend=counted)(x), x * 3) and graphs == []
