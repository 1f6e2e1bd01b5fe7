"""
A small DLRM over the ranks, each with a part of the batch and some of the tables, beside the same model in one piece.

torchrun --nproc-per-node 4 examples/dlrm/train.py [clicks.npz]   # on GPUs where each rank has one, else on the CPU

Without a click log, that of click_log.py is made. Prints both losses and the largest relative difference, and ends with
status 1 where that is more than --tolerance.
"""

import argparse
import os
import sys
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from click_log import NUMBERS, TABLES, click_log
from torch import Tensor, nn

import imbrex.torch

DIM, BATCH, STEPS = 64, 512, 50
RATE, TABLE_RATE = 0.5, 20.0  # a row of a table is in few bags of a batch, and its gradient small


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class WholeTables(nn.Module):
    """All tables on one rank: what ShardedEmbeddingBag stands for."""

    def __init__(self, tables: list[Tensor]) -> None:
        super().__init__()
        self.tables = nn.ParameterList(tables)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        batch, columns = (len(offsets) - 1) // len(self.tables), []
        for t, table in enumerate(self.tables):
            own = offsets[t * batch : (t + 1) * batch + 1]
            bags = (indices[own[0] : own[-1]], table, own - own[0])
            columns.append(F.embedding_bag(*bags, mode="sum", include_last_offset=True))
        return torch.cat(columns, 1)


class DLRM(nn.Module):
    """The numbers by an MLP, the bags by their tables, the dot products of all pairs of these, and another MLP."""

    def __init__(self, tables: nn.Module, device: torch.device) -> None:
        super().__init__()
        torch.manual_seed(1)  # what every rank has a copy of begins alike
        many = len(TABLES) + 1
        self.bottom = mlp(NUMBERS, 128, DIM).to(device)
        self.top = mlp(DIM + many * (many - 1) // 2, 128, 64, 1).to(device)
        self.tables = tables
        self.register_buffer("pairs", torch.tril_indices(many, many, -1).to(device))

    def forward(self, numbers: Tensor, bags: tuple) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.cat((dense, self.tables(*bags)), 1).view(len(dense), -1, DIM)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((dense, products), 1)).squeeze(1)

    def copies(self) -> list[nn.Parameter]:
        """What every rank has alike."""
        return [*self.bottom.parameters(), *self.top.parameters()]


class Log:
    """Rows of the click log as the model takes them."""

    def __init__(self, log: dict[str, np.ndarray], device: torch.device) -> None:
        self.numbers, self.clicked, self.lengths = (log[name] for name in ("numbers", "clicked", "lengths"))
        bags = np.split(log["indices"], self.lengths.ravel().cumsum()[:-1])
        self.bags = [bags[t :: len(TABLES)] for t in range(len(TABLES))]
        self.device = device

    def rows(self, rows: slice) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Numbers, (indices, offsets) of all tables, one behind another, and clicks."""
        indices = np.concatenate([bag for bags in self.bags for bag in bags[rows]])
        offsets = np.concatenate(([0], self.lengths[rows].T.ravel().cumsum()))
        numbers, indices, offsets, clicked = (
            torch.from_numpy(one).to(self.device) for one in (self.numbers[rows], indices, offsets, self.clicked[rows])
        )
        return numbers, (indices, offsets), clicked


def drawn_tables(device: torch.device) -> list[Tensor]:
    torch.manual_seed(2)
    return [((2 * torch.rand(rows, DIM) - 1) / DIM**0.5).to(device) for rows, _ in TABLES]


def train_over_ranks(log: Log, device: torch.device) -> list[float]:
    """The losses of the steps. Each rank sees its part of the batch, and the tables step in the backward pass."""
    group, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    sizes = [imbrex.EmbeddingTable(rows, DIM, hotness) for rows, hotness in TABLES]
    tables = imbrex.torch.nn.ShardedEmbeddingBag(
        sizes, batch_size=BATCH, group=group, learning_rate=TABLE_RATE, device=device
    )
    tables.copy_tables(drawn_tables(device))
    model = DLRM(tables, device)
    optimizer = torch.optim.SGD(model.copies(), lr=RATE)
    if rank == 0:
        print("shards:", *(f"table {s.table} [{s.begin}, {s.end}) on {s.rank}" for s in tables.shards), sep="\n  ")
    losses = []
    for step in range(STEPS):
        begin = step * BATCH + rank * BATCH // ranks
        numbers, bags, clicked = log.rows(slice(begin, begin + BATCH // ranks))
        logits = model(numbers, tables.exchange(*bags))
        loss = F.binary_cross_entropy_with_logits(logits, clicked) / ranks  # the ranks' parts add up to the mean
        optimizer.zero_grad()
        loss.backward()
        for copy in model.copies():
            imbrex.torch.all_reduce(copy.grad, group, out=copy.grad)
        optimizer.step()
        losses.append(imbrex.torch.all_reduce(loss.detach().reshape(1), group).item())
    tables.report()
    return losses


def train_whole(log: Log, device: torch.device) -> list[float]:
    """Trains the whole model on one rank, by torch alone."""
    tables = WholeTables(drawn_tables(device))
    model = DLRM(tables, device)
    optimizer = torch.optim.SGD(
        [{"params": model.copies()}, {"params": tables.parameters(), "lr": TABLE_RATE}], lr=RATE
    )
    losses = []
    for step in range(STEPS):
        numbers, bags, clicked = log.rows(slice(step * BATCH, (step + 1) * BATCH))
        loss = F.binary_cross_entropy_with_logits(model(numbers, bags), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", help="what click_log.py wrote")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="how far the losses may be apart, relatively")
    options = parser.parse_args()
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank = dist.get_rank()
    log = Log(click_log(STEPS * BATCH, 0) if options.log is None else dict(np.load(options.log)), device)
    sharded = train_over_ranks(log, device)
    imbrex.torch.destroy()
    dist.destroy_process_group()
    if rank:
        return 0
    whole = train_whole(log, device)
    apart = [abs(one - other) / abs(other) for one, other in zip(sharded, whole, strict=True)]
    for step in [*range(0, STEPS, 10), STEPS - 1]:
        print(f"step {step}: loss {sharded[step]:.7f} over the ranks, {whole[step]:.7f} whole")
    print(f"largest relative difference: {max(apart):.2e}; at most {options.tolerance:g} is allowed")
    return int(not max(apart) <= options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
