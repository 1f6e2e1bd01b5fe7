"""The sets of tables, and the cells that are measured."""

from typing import NamedTuple

import torch

DLRM_ROWS = [
    40000000,
    39060,
    17295,
    7424,
    20265,
    3,
    7122,
    1543,
    63,
    40000000,
    3067956,
    405282,
    10,
    2209,
    11938,
    155,
    4,
    976,
    14,
    40000000,
    40000000,
    40000000,
    590152,
    12973,
    108,
    36,
]
DLRM_HOTNESS = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
SETS = {
    "7 x 2 M rows, dim 128, pooling 76": ([2_000_000] * 7, 128, [76] * 7),
    "8 x 8 M rows, dim 256, pooling 64": ([8_000_000] * 8, 256, [64] * 8),
    "DLRMv2, 26 tables, dim 128": (DLRM_ROWS, 128, DLRM_HOTNESS),
}
NAMES = list(SETS)
CELLS = [
    (NAMES[0], "fp16", 4096),
    (NAMES[0], "fp16", 16384),
    (NAMES[0], "fp16", 65536),
    (NAMES[0], "fp32", 16384),
    (NAMES[1], "fp16", 4096),
    (NAMES[1], "fp16", 16384),
    (NAMES[1], "fp16", 65536),
    (NAMES[1], "fp32", 16384),
    (NAMES[2], "fp16", 4096),
    (NAMES[2], "fp16", 16384),
    (NAMES[2], "fp16", 65536),
    (NAMES[2], "fp32", 4096),
    (NAMES[2], "fp32", 65536),
]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
ROW_TYPES, OUT_TYPES = {"fp32": 0, "fp16": 1}, {"fp16": 1, "fp32": 2}  # TableRows, imbrex::Type
INDEX_SETS = 3
RANKS = 4  # of --joint
BLOCK = 1 << 22  # elements that the tables repeat
READ_BYTES = 4 << 30


class Lookup(NamedTuple):
    """Indices of one call: all tables' one behind the other, and where bags begin."""

    indices: torch.Tensor
    offsets: torch.Tensor


class Tables:
    """The tables of a set, one behind the other in memory that all sets share."""

    def __init__(self, memory: torch.Tensor, name: str, kind: str) -> None:
        self.rows, self.dim, self.hotness = SETS[name]
        self.kind = kind
        elements = sum(self.rows) * self.dim
        flat = memory.view(DTYPES[kind])
        generator = torch.Generator("cuda").manual_seed(1)
        block = torch.empty(BLOCK, device="cuda", dtype=DTYPES[kind]).uniform_(-1, 1, generator=generator)
        whole = elements // BLOCK
        flat[: whole * BLOCK].view(whole, BLOCK).copy_(block)
        flat[whole * BLOCK : elements].copy_(block[: elements - whole * BLOCK])
        self.flat = flat[:elements]
        self.views, at = [], 0
        for count in self.rows:
            self.views.append(self.flat[at : at + count * self.dim].view(count, self.dim))
            at += count * self.dim
        self.columns = self.dim * len(self.rows)

    @staticmethod
    def bytes(name: str, kind: str) -> int:
        rows, dim, _ = SETS[name]
        return sum(rows) * dim * DTYPES[kind].itemsize

    def moved(self, batch: int) -> int:
        rows = batch * sum(self.hotness)
        return rows * (self.dim * DTYPES[self.kind].itemsize + 4) + batch * self.columns * DTYPES[self.kind].itemsize

    def lookup(self, batch: int, wide: bool, zipf: float, seed: int) -> Lookup:
        generator = torch.Generator("cuda").manual_seed(seed)
        indices, lengths = [], []
        for count, hotness in zip(self.rows, self.hotness):
            drawn = batch * hotness
            if zipf == 0:
                index = torch.randint(0, count, (drawn,), device="cuda", generator=generator)
            else:
                # Row k comes as often as the integral of x^-zipf from k + 1 to k + 2 says; ranks are strewn over the table.
                share = torch.rand(drawn, device="cuda", dtype=torch.float64, generator=generator)
                index = ((1 + share * ((count + 1.0) ** (1 - zipf) - 1)) ** (1 / (1 - zipf))).long() - 1
                index = index.clamp_(0, count - 1) * 2654435761 % count
            indices.append(index)
            lengths.append(torch.full((batch,), hotness, device="cuda", dtype=torch.int64))
        offsets = torch.zeros(batch * len(self.rows) + 1, device="cuda", dtype=torch.int64)
        torch.cumsum(torch.cat(lengths), 0, out=offsets[1:])
        dtype = torch.int64 if wide else torch.int32
        return Lookup(torch.cat(indices).to(dtype), offsets.to(dtype))
