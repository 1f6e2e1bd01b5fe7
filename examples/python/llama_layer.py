"""
A Llama layer split over the ranks of a group, by tensor and sequence, and trained for 50 steps.

torchrun --nproc-per-node 4 examples/python/llama_layer.py        # on GPUs where each rank has one, else on the CPU
"""

import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import imbrex.torch

HIDDEN, HEADS, KV_HEADS, WIDE, VOCABULARY = 128, 8, 4, 256, 64
SEQUENCE, BATCH, STEPS = 64, 8, 50


def rotated(x: Tensor) -> Tensor:
    """RoPE of [sequence, batch, heads, size]."""
    half = x.shape[-1] // 2
    rates = 10000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(x.shape[0], device=x.device), rates)[:, None, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class LlamaLayer(nn.Module):
    """Each rank holds some heads and some of the MLP's columns, and between them its part of the sequence."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        ranks = group.size()
        self.group, self.size = group, HIDDEN // HEADS
        self.heads, self.kv_heads = HEADS // ranks, KV_HEADS // ranks
        self.q = self.weight(self.heads * self.size, HIDDEN)
        self.k, self.v = (self.weight(self.kv_heads * self.size, HIDDEN) for _ in range(2))
        self.o = self.weight(HIDDEN, self.heads * self.size, HIDDEN)
        self.gate, self.up = (self.weight(WIDE // ranks, HIDDEN) for _ in range(2))
        self.down = self.weight(HIDDEN, WIDE // ranks, WIDE)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))

    @staticmethod
    def weight(rows: int, columns: int, inputs: int = HIDDEN) -> nn.Parameter:
        return nn.Parameter(torch.randn(rows, columns) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:  # [sequence / ranks, batch, hidden]
        weights = [self.q.t(), self.k.t(), self.v.t()]
        q, k, v = imbrex.torch.all_gather_matmul(self.norms[0](x), weights, self.group)
        q, k, v = (one.unflatten(-1, (-1, self.size)) for one in (q, k, v))
        q, k, v = (one.permute(1, 2, 0, 3) for one in (rotated(q), rotated(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = y.permute(2, 0, 1, 3).flatten(2).contiguous()
        x = x + imbrex.torch.matmul_reduce_scatter(y, self.o.t(), self.group)
        gate, up = imbrex.torch.all_gather_matmul(self.norms[1](x), [self.gate.t(), self.up.t()], self.group)
        return x + imbrex.torch.matmul_reduce_scatter(F.silu(gate) * up, self.down.t(), self.group)


def main() -> None:
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    torch.manual_seed(1)  # what every rank has a copy of begins alike
    embedding, head = nn.Embedding(VOCABULARY, HIDDEN).to(device), nn.Linear(HIDDEN, VOCABULARY, bias=False).to(device)
    torch.manual_seed(2 + rank)  # the parts do not
    layer = LlamaLayer(group).to(device)
    copies = [*embedding.parameters(), *head.parameters(), *layer.norms.parameters()]
    optimiser = torch.optim.AdamW([*embedding.parameters(), *head.parameters(), *layer.parameters()], lr=3e-3)
    part = slice(rank * SEQUENCE // group.size(), (rank + 1) * SEQUENCE // group.size())
    for step in range(STEPS):
        # Each sequence counts up by a step of its own: the layer has to look back to tell the next number.
        generator = torch.Generator().manual_seed(step)
        begin, rise = (torch.randint(1, VOCABULARY, (BATCH,), generator=generator) for _ in range(2))
        numbers = ((begin + rise * torch.arange(SEQUENCE + 1)[:, None]) % VOCABULARY).to(device)
        logits = head(layer(embedding(numbers[:-1][part])))
        loss = F.cross_entropy(logits.flatten(0, 1), numbers[1:][part].flatten()) / group.size()
        loss.backward()
        for copy in copies:  # each rank has seen its part of the sequence only
            imbrex.torch.all_reduce(copy.grad, group, out=copy.grad)
        optimiser.step()
        optimiser.zero_grad()
        total = imbrex.torch.all_reduce(loss.detach().reshape(1), group).item()
        if rank == 0 and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step}: loss {total:.4f}", flush=True)
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
