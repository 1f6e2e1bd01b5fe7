#!/usr/bin/env python3
"""What calls take of a GPU's memory, and whether it grows.

usage: torchrun --nproc-per-node R bench/python/memory.py --out OUT.json [options]; --help lists them

A process makes its world, calls NCCL and cuBLAS once, and counts from there: memory that is used, less what torch's allocator
holds. Then come calls of four operators in three layers with M drawn at random, the same in twenty layers, and all-reduces of ten
types and codecs. After the largest call of each, nothing may grow by more than 8 MiB. The GPUs must be this program's own. Ranks share
too few of them: then each has its part of what is used, of the growth, too.
"""

import argparse
import datetime
import os
import random
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from device import device_of, gpus_of  # noqa: E402
from report import write_rows  # noqa: E402

import imbrex.torch  # noqa: E402

MIB = 2**20
GROWTH = 8 * MIB
LAYERS = ((4096, 2048), (2048, 4096), (4096, 4096))  # N and K of a whole layer
CODECS = (("bfloat16", None), ("float16", None), ("float32", None), ("bfloat16", "int8"), ("bfloat16", "int6"), ("bfloat16", "int5"),
          ("bfloat16", "int4+int8"), ("bfloat16", "flash4"), ("float16", "int8"), ("bfloat16", "fp8"))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--largest", choices=("first", "last", "anywhere"), default="anywhere", help="when the largest M comes (default anywhere)")
    parser.add_argument("--calls", type=int, default=3000, help="calls with random M (default 3000)")
    parser.add_argument("--rows", type=int, default=4096, help="the largest M (default 4096)")
    parser.add_argument("--mesh", action="store_true", help="two groups of a 2-D mesh at once: four ranks or more")
    parser.add_argument("--compile", action="store_true", help="through torch.compile(dynamic=True)")
    return parser.parse_args(argv)


class Memory:
    """Bytes a rank that are used of the GPU beside torch's allocator, since the beginning: on the rank with the most."""

    def __init__(self):
        self.begin = 0
        self.begin = self.grown()

    def grown(self):
        """On all ranks at once."""
        torch.cuda.synchronize()
        dist.barrier(group=MEETING)
        free, of = torch.cuda.mem_get_info()
        mine = torch.tensor([torch.cuda.current_device(), of - free, torch.cuda.memory_reserved()], dtype=torch.int64)
        all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_ranks, mine, group=MEETING)
        used, reserved, ranks = Counter(), Counter(), Counter()
        for gpu, taken, held in (rank.tolist() for rank in all_ranks):
            used[gpu] = max(used[gpu], taken)
            reserved[gpu] += held
            ranks[gpu] += 1
        return max((used[gpu] - reserved[gpu]) // ranks[gpu] for gpu in used) - self.begin


def operators(group, compiled):
    """Functions of A, of B and of the group, with what of M, N and K a rank has."""
    ranks = group.size()
    it = imbrex.torch
    found = {"all_gather_matmul": (it.all_gather_matmul, (ranks, ranks, 1)), "matmul_reduce_scatter": (it.matmul_reduce_scatter, (1, 1, ranks)),
             "matmul_all_reduce": (it.matmul_all_reduce, (1, 1, ranks)), "matmul_all_to_all": (it.matmul_all_to_all, (1, 1, 1))}
    if compiled:
        found = {name: (torch.compile(lambda a, b, f=f: f(a, b, group), dynamic=True), parts) for name, (f, parts) in found.items()}
        return {name: (lambda a, b, _, f=f: f(a, b), parts) for name, (f, parts) in found.items()}
    return found


def calls_of(groups, layers, compiled, device):
    """A call of M rows for each group, layer and operator."""
    made = []
    for group in groups:
        for name, (function, (of_m, of_n, of_k)) in operators(group, compiled).items():
            for n, k in layers:
                b = torch.randn(k // of_k, n // of_n, device=device).bfloat16()

                def call(m, function=function, b=b, of_m=of_m, group=group):
                    a = torch.zeros(m // of_m, b.shape[0], device=device, dtype=torch.bfloat16)
                    function(a, b, group)

                made.append((name, call))
    return made


def random_calls(memory, calls, count, options, unit):
    """Growth in all, and after each call has had its largest M, and the first call that grew then."""
    draw = random.Random(7)
    largest = options.rows // unit * unit
    grew = ""
    if options.largest == "first":
        for _, call in calls:
            call(largest)
        settled = memory.grown()
    for i in range(count):
        name, call = calls[i % len(calls)]
        m = unit * draw.randint(1, largest // unit)
        call(m)
        if options.largest == "first" and not grew and memory.grown() > settled + GROWTH:
            grew = f"{name}, M = {m}, call {i}"
    if options.largest != "first":
        for _, call in calls:
            call(largest)
        settled = memory.grown()
    after = settled
    for i in range(max(100, count // 4)):
        calls[draw.randrange(len(calls))][1](unit * draw.randint(1, largest // unit))
        if i % 50 == 0:
            after = max(after, memory.grown())
    return memory.grown(), max(after, memory.grown()) - settled, grew


def reductions(memory, groups, options, device):
    """The same of all-reduces: each type and codec makes its object, the largest vector first or last."""
    sizes = [2**20, 2**23, 2**16]
    if options.largest == "first":
        sizes.sort(reverse=True)

    def call(size):
        for group in groups:
            for name, codec in CODECS:
                imbrex.torch.all_reduce(torch.ones(size, device=device, dtype=getattr(torch, name)), group, codec=codec)

    for size in sizes:
        call(size)
    settled = memory.grown()
    for size in sizes * 3:
        call(size)
    return memory.grown(), memory.grown() - settled


def main(argv):
    global MEETING
    options = parse(argv)
    if not torch.cuda.is_available():
        sys.exit("memory.py: no GPU was found; it is about GPUs")
    device = device_of(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl", device_id=device)
    MEETING = dist.new_group(backend="gloo")
    groups = [dist.group.WORLD]
    if options.mesh:
        mesh = dist.device_mesh.init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
        groups = [mesh.get_group("data"), mesh.get_group("tensor")]
    unit = 2 * dist.get_world_size()
    for group in groups:
        imbrex.torch.connect(group)
        dist.all_reduce(torch.ones(1, device=device), group=group)
    square = torch.ones(1024, 1024, device=device, dtype=torch.bfloat16)
    torch.mm(square, square)
    torch.cuda.synchronize()
    memory = Memory()
    rows = []

    def note(what, in_all, growth, grew=""):
        rows.append({"what": what, "in_all_mib": round(in_all / MIB, 1), "grown_after_the_largest_mib": round(growth / MIB, 1),
                     "as_wanted": growth <= GROWTH, "operators_made": imbrex.torch.stats().made, **({"grew_at": grew} if grew else {})})
        if dist.get_rank() == 0:
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)

    note("three layers", *random_calls(memory, calls_of(groups, LAYERS, options.compile, device), options.calls, options, unit))
    note("twenty layers", *random_calls(memory, calls_of(groups, [LAYERS[i % 3] for i in range(20)], options.compile, device), options.calls // 3, options, unit))
    note("all-reduces", *reductions(memory, groups, options, device))
    if dist.get_rank() == 0:
        settings = {key: getattr(options, key) for key in ("largest", "calls", "rows", "mesh", "compile")}
        write_rows(options.out, {"machine": f"{dist.get_world_size()} ranks on {gpus_of(dist.get_world_size())}; torch {torch.__version__}",
                                 "date": datetime.date.today().isoformat(), "settings": settings, "rows": rows})
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
