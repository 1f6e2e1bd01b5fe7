#!/usr/bin/env python3
"""Random sizes: Imbrex as PyTorch calls it, in turns with the best that PyTorch's users have.

usage: torchrun --nproc-per-node R bench/python/random_cells.py --out OUT.json [options]; --help lists them

A cell is an operator, M, N, K and how B lies, drawn from a seed: M from 16 to 16384, N and K from 1024 to 65536, log-uniform multiples
of 8, with products that a GPU multiplies within 20 ms at 600 TFLOP/s. Each candidate is replayed from a CUDA graph in which B changes
from call to call, so that no cache holds it; candidates take turns, the slowest rank counts, and medians. Each row has its ceiling:
the product alone by cuBLAS, or the bytes on the wire at the rate of a large copy in the same run, whichever takes longer. The result of
Imbrex is verified on operands that are small integers, whose products are exact in fp32. Cells below 0.98 are measured once more.
"""

import argparse
import datetime
import itertools
import json
import math
import random
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]

from peers_torch import ONE_SHOT_BYTES, OPERATORS, PATIENCE, SAMPLE, Timer, by_turns, join, without_multicast  # noqa: E402
from report import geometric_mean, write_rows  # noqa: E402

FUNCTIONS = dict(zip(OPERATORS, ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "matmul_all_to_all"), strict=True))
LONGEST, RATE = 20e-3, 600e12  # seconds of a rank's product, and flop/s
CACHE = 3 * 60 << 20  # bytes of B's that no GPU's cache holds
AGAIN = 0.98
LARGE = 2048  # rows, above which each operator has a mean of its own


def is_taken(operator, m, n, k, ranks):
    """Whether a rank's product is short enough. An exchange multiplies all of it on every rank."""
    return 2 * m * n * k / (1 if operator == "gemm_all_to_all" else ranks) <= LONGEST * RATE


def draw(seed, count, ranks):
    """Cells as (operator, M, N, K, whether B lies by columns)."""
    chance = random.Random(seed)

    def size(least, most):
        return 8 * round(math.exp(chance.uniform(math.log(least / 8), math.log(most / 8))))

    cells = []
    while len(cells) < count:
        cell = chance.choice(OPERATORS), size(16, 16384), size(1024, 65536), size(1024, 65536), chance.random() < 0.5
        if is_taken(*cell[:4], ranks):
            cells.append(cell)
    return cells


def gain(times):
    """How many times as fast Imbrex is as the best of all others."""
    return min(us for name, us in times.items() if name not in ("Imbrex", "product")) / times["Imbrex"]


def percentile(values, share):
    """The value that so large a share of the others lies below."""
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summary(rows):
    """What all cells come to. The first measurement of a cell counts in means; where there are two, the better one says how much slower
    it is."""
    gains = [row["gain"] for row in rows]
    told = {"cells": len(rows), "geometric_mean": round(geometric_mean(gains), 3), "percentile_5": round(percentile(gains, 0.05), 3),
            "least": min(gains), "least_of_both": min(max(row["gain"], row.get("gain_again", 0)) for row in rows),
            "of_ceiling": round(geometric_mean(row["ceiling_us"] / row["us"]["Imbrex"] for row in rows), 3)}
    for operator in OPERATORS:
        for name, own in (("", [r["gain"] for r in rows if r["operator"] == operator]),
                          (f" above {LARGE} rows", [r["gain"] for r in rows if r["operator"] == operator and r["m"] > LARGE])):
            if own:
                told[f"{operator}{name}"] = round(geometric_mean(own), 3)
    ran = [row["ran"] for row in rows]
    told["ran"] = {name: ran.count(name) for name in sorted(set(ran))}
    told["wrong"] = sum(not row["right"] for row in rows)
    return told


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file, replaced after each cell")
    parser.add_argument("--cells", type=int, default=120, help="how many are drawn (default 120)")
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")), help="default: the date, as 20301231")
    parser.add_argument("--first", type=int, default=0, help="leave out so many of them: another run measured these (default 0)")
    parser.add_argument("--turns", type=int, default=5, help="times that each candidate is measured (default 5)")
    options = parser.parse_args(argv)
    if options.cells < 1 or options.turns < 1 or not 0 <= options.first < options.cells:
        parser.error(f"--cells {options.cells} --turns {options.turns} --first {options.first}: at least 1, 1 and 0, and first below cells")
    options.rounds = 1
    return options


class Cell:
    """One problem's operands, and what computes it."""

    def __init__(self, cell, ranks, group, torch, dist, symmetric):
        self.operator, self.m, self.n, self.k, self.by_columns = cell
        self.ranks, self.group, self.torch, self.dist, self.symmetric = ranks, group, torch, dist, symmetric
        self.rows = self.m // ranks if self.operator == "all_gather_gemm" else self.m
        self.columns = self.n // ranks if self.operator == "all_gather_gemm" else self.n
        self.depth = self.k // ranks if self.operator in ("gemm_reduce_scatter", "gemm_all_reduce") else self.k
        copies = max(2, min(128, math.ceil(CACHE / (2 * self.columns * self.depth))))
        self.a = self.uniform(self.rows, self.depth)
        self.bs = [self.b_of(self.uniform) for _ in range(copies)]
        self.next_b = itertools.cycle(self.bs).__next__

    def uniform(self, *shape):
        return self.torch.empty(shape, device="cuda", dtype=self.torch.bfloat16).uniform_(-1, 1)

    def integers(self, *shape):
        return self.torch.randint(-2, 3, shape, device="cuda", dtype=self.torch.int8).to(self.torch.bfloat16)

    def b_of(self, make):
        return make(self.columns, self.depth).t() if self.by_columns else make(self.depth, self.columns)

    def wire_bytes(self):
        """That each GPU receives at least."""
        share = (self.ranks - 1) / self.ranks
        sums = 2 * self.m * self.n * share
        return {"all_gather_gemm": 2 * self.m * self.k * share, "gemm_reduce_scatter": sums, "gemm_all_reduce": 2 * sums,
                "gemm_all_to_all": sums}[self.operator]

    def imbrex(self, a, b):
        import imbrex.torch

        return getattr(imbrex.torch, FUNCTIONS[self.operator])(a, b, self.group)

    def candidates(self):
        """Name -> a call, as torch's users have it. "product" is cuBLAS alone."""
        torch, dist, a, b = self.torch, self.dist, self.a, self.next_b
        fused, like = torch.ops.symm_mem, {"device": "cuda", "dtype": torch.bfloat16}
        calls = {"Imbrex": lambda: self.imbrex(a, b())}
        if self.operator == "all_gather_gemm":
            gathered, out = torch.empty(self.m, self.k, **like).uniform_(-1, 1), torch.empty(self.m, self.columns, **like)

            def gather():
                dist.all_gather_into_tensor(gathered, a)
                torch.mm(gathered, b(), out=out)

            return calls | {"product": lambda: torch.mm(gathered, b(), out=out), "cuBLAS+NCCL": gather,
                            "fused": lambda: fused.fused_all_gather_matmul(a, [b()], 0, self.group)}
        summed = self.operator == "gemm_all_reduce"
        product = self.symmetric.empty(self.m, self.n, **like) if summed else torch.empty(self.m, self.n, **like)
        calls["product"] = lambda: torch.mm(a, b(), out=product)

        def then(collective):
            def call():
                torch.mm(a, b(), out=product)
                collective()
            return call

        if self.operator == "gemm_all_to_all":
            out = torch.empty(self.m, self.n, **like)
            return calls | {"cuBLAS+NCCL": then(lambda: dist.all_to_all_single(out, product))}
        if self.operator == "gemm_reduce_scatter":
            out = torch.empty(self.m // self.ranks, self.n, **like)
            return calls | {"cuBLAS+NCCL": then(lambda: dist.reduce_scatter_tensor(out, product)),
                            "fused": lambda: fused.fused_matmul_reduce_scatter(a, b(), "sum", 0, self.group)}
        self.symmetric.rendezvous(product, self.group)
        calls["cuBLAS+NCCL"] = then(lambda: dist.all_reduce(product))
        calls["cuBLAS+two-shot"] = then(lambda: fused.two_shot_all_reduce_(product, "sum", self.group))
        if 2 * self.m * self.n <= ONE_SHOT_BYTES:
            calls["cuBLAS+one-shot"] = then(lambda: fused.one_shot_all_reduce(product, "sum", self.group))
        return calls

    def is_right(self):
        """Whether every element of this rank's result is. Sums of integers are exact in fp32, so a result without a sum over ranks is the
        product rounded once. A sum over ranks may round every rank's part and the sum: by 2^-8 of each."""
        torch, dist = self.torch, self.dist
        a, b = self.integers(self.rows, self.depth), self.b_of(self.integers)
        result = self.imbrex(a, b)
        if self.operator == "all_gather_gemm":
            gathered = torch.empty(self.m, self.k, device="cuda", dtype=a.dtype)
            dist.all_gather_into_tensor(gathered, a)
            return torch.equal(result, torch.mm(gathered, b, out_dtype=torch.float32).bfloat16())
        exact = torch.mm(a, b, out_dtype=torch.float32)
        if self.operator == "gemm_all_to_all":
            wanted = torch.empty_like(result)
            dist.all_to_all_single(wanted, exact.bfloat16())
            return torch.equal(result, wanted)
        bound = exact.abs()
        for whole in (exact, bound):
            dist.all_reduce(whole)
        if self.operator == "gemm_reduce_scatter":
            exact, bound = (whole.chunk(self.ranks)[dist.get_rank()] for whole in (exact, bound))
        bound = bound.add_(exact.abs()).mul_(2.0**-8 * 1.01)
        return bool(((result.float() - exact).abs_() <= bound).all())

    def ran(self):
        """What Imbrex runs: "own product", "library product, own collective", or "cuBLAS+NCCL", by the plan of an operator like the call's."""
        import ctypes

        from imbrex import _c
        from imbrex._library import library
        from imbrex.torch.groups import world_of

        gemm = _c.new(_c.Gemm, m=self.m, n=self.n, k=self.k, type=_c.BF16, b_layout=int(self.by_columns))
        kind = OPERATORS.index(self.operator)
        options = _c.new(_c.OperatorOptions, device=_c.CUDA)
        made = _c.make("operator_make", world_of(self.group).handle, kind, ctypes.byref(gemm), ctypes.byref(options))
        text = ctypes.c_char_p()
        tell = library().imbrex_operator_plan
        tell.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p))
        failed = tell(made, ctypes.byref(text))
        plan = {} if failed else json.loads(text.value)
        _c.call("operator_destroy", made)
        tasks = [task for queue in plan["ranks"][0]["queues"] for task in queue["tasks"]]
        strategy = plan["strategy"]
        if any("tile" in task for task in tasks):
            return f"own product, {strategy}"
        own = any(task.get("collective", {}).get("backend") == "imbrex" for task in tasks)
        return f"library product, {'own collective' if own else 'NCCL'}, {strategy}"


class Long(Timer):
    """Samples of 10 ms, in which every B comes once at least."""

    copies = 2

    def counts(self, microseconds):
        return 2, max(2 * math.ceil(self.copies / 2), min(256, 2 * math.ceil(SAMPLE / microseconds / 2)))


def wire_rate(torch, dist, symmetric, group, timer):
    """Bytes a second that a GPU pushes to the next rank while all others do so too."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    here = symmetric.empty(256 << 20, device="cuda", dtype=torch.uint8)
    there = symmetric.rendezvous(here, group).get_buffer((rank + 1) % ranks, here.shape, here.dtype)
    source = torch.zeros_like(here)
    return here.numel() / (statistics.median(timer.time_of(lambda: there.copy_(source), 1) for _ in range(9)) * 1e-6)


def main(argv):
    options = parse(argv)
    without_multicast()
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    import imbrex.torch

    rank, ranks, meeting, group = join(torch, dist, PATIENCE)
    torch.manual_seed(options.seed + rank)
    timer = Long(torch, dist, meeting)
    rate = wire_rate(torch, dist, symmetric, group, timer)
    told = {"machine": f"{ranks} {torch.cuda.get_device_name()}; torch {torch.__version__}, NVLink multicast off",
            "date": datetime.date.today().isoformat(), "seed": options.seed, "wire_gb_s": round(rate / 1e9, 1)}
    rows = []
    for cell in draw(options.seed, options.cells, ranks)[options.first:]:
        one = Cell(cell, ranks, group, torch, dist, symmetric)
        timer.copies = len(one.bs)
        calls = one.candidates()

        def measure(calls=calls):
            times, how, _ = by_turns(calls, timer, options, None)
            eager = [name for name, by in how.items() if by != "graph"]
            return times, eager

        times, eager = measure()
        row = dict(zip(("operator", "m", "n", "k"), cell[:4], strict=True)) | {"b": "columns" if cell[4] else "rows"}
        row |= {"us": times, "gain": round(gain(times), 3)}
        row["ceiling_us"] = round(max(times["product"], one.wire_bytes() / rate * 1e6), 2)
        if eager:
            row["eager"] = eager
        if row["gain"] < AGAIN:
            again, _ = measure()
            row["us_again"], row["gain_again"] = again, round(gain(again), 3)
        row["right"], row["ran"] = timer.all_good(one.is_right()), one.ran()
        rows.append(row)
        del one, calls, measure
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        if rank == 0:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            write_rows(options.out, told | summary(rows) | {"rows": rows})
    if rank == 0:
        print("\n".join(f"{name}: {value}" for name, value in summary(rows).items()))
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
