#!/usr/bin/env python3
"""What plans that take turns in one memory cost, beside plans that have memory of their own.

usage: torchrun --nproc-per-node R bench/python/any_m.py --out OUT.json [options]; --help lists them

A model of one size has, for its first M, the best plan there is, which may have memory of its own (copy engines, tiles beside
library collectives). An operator that has grown has plans that take turns alone. Both are called with the same M, in turn, on
random data, each M and kind in a group of its own; and with a new M, of which the host's time is told. Medians of the slowest rank.
"""

import argparse
import datetime
import math
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from device import device_of, gpus_of  # noqa: E402
from report import write_rows  # noqa: E402

import imbrex.torch  # noqa: E402

SHAPES = ((8192, 5120), (8192, 1024), (7168, 4096), (14336, 4096))  # N and K of a rank, or of all where they are split
OPERATORS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096], help="values of M: powers of two")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of ten calls each (default 15)")
    return parser.parse_args(argv)


def slowest(values):
    medians = torch.tensor([statistics.median(one) for one in values], dtype=torch.float64)
    dist.all_reduce(medians, dist.ReduceOp.MAX, group=MEETING)
    return medians.tolist()


def timed(call, calls=10):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls * 1e3


def rows_of(name, m, ranks):
    return m // ranks if name == "all_gather_matmul" else m


def compare(name, m, n, k, own, grown, rounds, device):
    """Microseconds of a call with either, and host microseconds of a new M."""
    ranks = own.size()
    function = getattr(imbrex.torch, name)
    b = torch.randn(k, n // ranks if name == "all_gather_matmul" else n, device=device).bfloat16() / math.sqrt(k)
    a = torch.randn(rows_of(name, m, ranks), k, device=device).bfloat16()
    function(a, b, own)
    function(a[: max(rows_of(name, m // 2, ranks), ranks)], b, grown)
    samples = ([], [])
    for i in range(-3, rounds):
        for which, group in enumerate((own, grown)):
            taken = timed(lambda group=group: function(a, b, group))
            if i >= 0:
                samples[which].append(taken)
    host = []
    for i in range(1, 33):
        fewer = a[: max(1, rows_of(name, m, ranks) // ranks - i) * ranks]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function(fewer, b, grown)
        host.append((time.perf_counter() - begin) * 1e6)
    return slowest((*samples, host))


def main(argv):
    global MEETING
    options = parse(argv)
    if not torch.cuda.is_available():
        sys.exit("any_m.py: no GPU was found; it is about GPUs")
    device = device_of(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl", device_id=device)
    MEETING = dist.new_group(backend="gloo")
    everyone = list(range(dist.get_world_size()))
    own, grown = {m: dist.new_group(everyone) for m in options.rows}, {m: dist.new_group(everyone) for m in options.rows}
    rows = []
    for name in OPERATORS:
        for n, k in SHAPES:
            for m in options.rows:
                own_us, grown_us, new_us = compare(name, m, n, k, own[m], grown[m], options.rounds, device)
                rows.append({"operator": name, "m": m, "n": n, "k": k, "own_us": round(own_us, 1), "in_turns_us": round(grown_us, 1),
                             "ratio": round(grown_us / own_us, 3), "new_m_host_us": round(new_us, 1)})
                if dist.get_rank() == 0:
                    print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if dist.get_rank() == 0:
        mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
        print(f"geometric mean of in turns over own memory: {mean:.3f}")
        write_rows(options.out, {"machine": f"{dist.get_world_size()} ranks on {gpus_of(dist.get_world_size())}; torch {torch.__version__}",
                                 "date": datetime.date.today().isoformat(), "geometric_mean": round(mean, 3), "rows": rows})
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
