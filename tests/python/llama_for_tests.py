"""A small Llama of plain layers, and the plan by which torch's tutorial on tensor parallelism splits it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from device_for_tests import DEVICE
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

WORDS, HIDDEN, HEADS, INNER, LAYERS = 48, 32, 4, 64, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, HEADS, -1) for w in (self.wq, self.wk, self.wv))
        q, k = q * turns, k * turns
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        # By elements: torch's DTensors have no product of batches whose second dimension is split.
        scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / (HIDDEN // HEADS) ** 0.5
        mixed = (scores.softmax(-1).unsqueeze(4) * v.unsqueeze(2)).sum(3)
        return self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        places = torch.arange(tokens.shape[1], dtype=self.norm.weight.dtype, device=tokens.device)
        turns = torch.cos(places[:, None] / torch.arange(1, 1 + HIDDEN // HEADS, device=tokens.device))
        for layer in self.layers:
            h = layer(h, turns[None, :, None, :])
        return self.output(self.norm(h))


def llama(dtype: torch.dtype = torch.float32) -> Llama:
    """The same model on every rank."""
    torch.manual_seed(7)
    return Llama().to(device=DEVICE, dtype=dtype)


def split(model: Llama, mesh: Any, of: ModuleType, loss_parallel: bool = False, **row: Any) -> Llama:
    """The model as the tutorial splits it, by the names that the module `of` has."""
    top = {
        "tok_embeddings": of.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": of.SequenceParallel(),
        "output": of.ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if loss_parallel else Replicate(),
            use_local_output=not loss_parallel,
        ),
    }
    layer = {
        "attention_norm": of.SequenceParallel(),
        "attention": of.PrepareModuleInput(
            input_layouts=(Shard(1), Replicate()), desired_input_layouts=(Replicate(), Replicate())
        ),
        "attention.wq": of.ColwiseParallel(use_local_output=False),
        "attention.wk": of.ColwiseParallel(use_local_output=False),
        "attention.wv": of.ColwiseParallel(use_local_output=False),
        "attention.wo": of.RowwiseParallel(output_layouts=Shard(1), **row),
        "ffn_norm": of.SequenceParallel(),
        "feed_forward": of.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": of.ColwiseParallel(),
        "feed_forward.w2": of.RowwiseParallel(output_layouts=Shard(1), **row),
        "feed_forward.w3": of.ColwiseParallel(),
    }
    of.parallelize_module(model, mesh, top)
    for block in model.layers:
        of.parallelize_module(block, mesh, layer)
    return model
