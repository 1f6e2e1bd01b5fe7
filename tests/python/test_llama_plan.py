"""torch's plan of a Llama model runs by Imbrex where the import alone is another."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.tensor.parallel as torchs
from device_for_tests import DEVICE, generator_of
from groups_for_tests import first
from llama_for_tests import HIDDEN, INNER, LAYERS, WORDS, llama, split
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import imbrex.torch as it

RANKS, LENGTH = 2, 8
# Roundings on the longest way through the model and back: a norm's sum, a product's sums, attention's, the loss.
PATH = 2 * (LAYERS * (3 * HIDDEN + INNER + 2 * HIDDEN + LENGTH) + 2 * HIDDEN + WORDS)


def step(model: nn.Module, batch: int, loss_parallel: bool, compiled: bool) -> dict[str, torch.Tensor]:
    """The loss of one step, what the model says, and all gradients, whole."""
    generator = generator_of(3)
    tokens = torch.randint(WORDS, (batch, LENGTH), generator=generator, device=DEVICE)
    labels = torch.randint(WORDS, (batch, LENGTH), generator=generator, device=DEVICE)
    run = torch.compile(model, backend="aot_eager") if compiled else model
    with torchs.loss_parallel() if loss_parallel else contextlib.nullcontext():
        said = run(tokens)
        loss = nn.functional.cross_entropy(said.flatten(0, 1), labels.flatten(0, 1))
        loss.backward()
    found = {"loss": loss, "said": said, **{name: one.grad for name, one in model.named_parameters()}}
    return {
        name: (one.full_tensor() if isinstance(one, DTensor) else one).detach().double() for name, one in found.items()
    }


def compare(batch: int, loss_parallel: bool, compiled: bool, dtype: str) -> dict[str, Any] | None:
    """Torch's styles against Imbrex': how often the latter ran each operator, handed back and copied."""
    group = first(RANKS)
    if group is None:
        return None
    mesh = DeviceMesh.from_group(group, DEVICE)
    kind = getattr(torch, dtype)
    torch._dynamo.reset()
    wanted = step(split(llama(kind), mesh, torchs, loss_parallel), batch, loss_parallel, False)
    before = it.stats()
    model = split(llama(kind), mesh, it.parallel, loss_parallel)
    got = step(model, batch, loss_parallel, compiled)
    after = it.stats()
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        bound = PATH * torch.finfo(kind).eps * value.abs().max()
        assert (got[name] - value).abs().max() <= bound, (name, (got[name] - value).abs().max(), bound)
        assert dtype != "float64" or compiled or torch.equal(got[name], value), name
    return {
        "calls": {op: after.calls[op] - before.calls.get(op, 0) for op in after.calls},
        "fallbacks": {why: n - before.fallbacks.get(why, 0) for why, n in after.fallbacks.items()},
        "copies": {why: n - before.copies.get(why, 0) for why, n in after.copies.items()},
    }


@pytest.mark.parametrize("compiled", (False, True))
@pytest.mark.parametrize("loss_parallel", (False, True))
@pytest.mark.parametrize("batch", (1, 3))
def test_the_tutorial_s_plan(ranks, batch, loss_parallel, compiled):
    """
    Outputs, loss and gradients are torch's; products with a collective ran by Imbrex, forward and backward.

    Forward the last layer gathers, and each block scatters twice; backward it is the other way round.
    """
    for told in ranks.run(compare, batch=batch, loss_parallel=loss_parallel, compiled=compiled, dtype="float32"):
        if told is None:
            continue
        print(told)
        calls, fallbacks = told["calls"], {why: n for why, n in told["fallbacks"].items() if n}
        assert calls["matmul_reduce_scatter"] == 2 * LAYERS + 1, told
        assert calls["all_gather_matmul"] == 1 + 2 * LAYERS, told
        assert fallbacks == {"RowwiseParallel: layer of type Embedding": 1}, told
        copied = {why: n for why, n in told["copies"].items() if n and "Parallel: " in why}
        assert bool(copied) == (batch > 1), told


def test_what_torch_runs(ranks):
    """Torch runs float64 in place of Imbrex, with its own bits, and that is counted."""
    for told in ranks.run(compare, batch=2, loss_parallel=False, compiled=False, dtype="float64"):
        if told is not None:
            assert told["fallbacks"]["ColwiseParallel: dtype"] == 1, told
            assert told["fallbacks"]["RowwiseParallel: dtype"] == 2 * LAYERS, told
