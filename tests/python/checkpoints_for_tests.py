"""A model of split layers, its training, and its checkpoints by torch's own calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from device_for_tests import DEVICE, generator_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

import imbrex.torch as it

HIDDEN, WIDE, ROWS = 8, 16, 4
FULL = StateDictOptions(full_state_dict=True)


class Model(nn.Module):
    """Split layers beside one that every rank has whole."""

    def __init__(self, group: Any, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up = it.nn.ColumnParallelLinear(HIDDEN, WIDE, group, bias=True, device=DEVICE)
        self.down = it.nn.RowParallelLinear(WIDE, HIDDEN, group, bias=True, device=DEVICE)
        self.norm = nn.LayerNorm(HIDDEN, device=DEVICE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


class Whole(nn.Module):
    """The same with torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(HIDDEN, WIDE, device=DEVICE), nn.Linear(WIDE, HIDDEN, device=DEVICE)
        self.norm = nn.LayerNorm(HIDDEN, device=DEVICE)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x = torch.randn(ROWS, HIDDEN, generator=generator_of(number), device=DEVICE)
    (model(x) * torch.arange(1, HIDDEN + 1, device=DEVICE)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def trained(group: Any, seed: int = 0, steps: int = 2, **options: Any) -> tuple[Any, Any]:
    model = Model(group, seed)
    optimizer = adam(model, **options)
    for number in range(steps):
        step(model, optimizer, number)
    return model, optimizer


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """This rank's numbers: of parameters, and of what Adam keeps of them."""
    found = {name: one.detach().clone() for name, one in model.named_parameters()}
    for name, one in model.named_parameters():
        for key, value in optimizer.state[one].items():
            found[f"{name}.{key}"] = value.clone()
    return found


def expect_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Tensors that come from another rank may lie on its GPU."""
    assert got.keys() == want.keys()
    for name in want:
        assert type(got[name]) is type(want[name]), name
        assert torch.equal(got[name], want[name].to(got[name].device)), name


def saved(model: Any, optimizer: Any, folder: str, group: Any) -> None:
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=folder, process_group=group)


def loaded(folder: str, group: Any, seed: int = 9, **options: Any) -> tuple[Any, Any]:
    model = Model(group, seed)
    optimizer = adam(model, **options)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder, process_group=group)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    return model, optimizer


def whole_of(model: Any, optimizer: Any) -> dict[str, Tensor]:
    """All numbers, as one rank alone would have them."""
    names = [name for name, _ in model.named_parameters()]
    found = dict(get_model_state_dict(model, options=FULL))
    for name, state in get_optimizer_state_dict(model, optimizer, options=FULL)["state"].items():
        assert name in names
        found |= {f"{name}.{key}": value for key, value in state.items()}
    return {name: value.clone() for name, value in found.items()}
