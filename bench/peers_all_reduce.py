#!/usr/bin/env python3
"""PyTorch's all-reduces, and NCCL's through PyTorch, in turns with Imbrex's on the same GPUs in one run.

usage: torchrun --nproc-per-node R bench/peers_all_reduce.py --out OUT.json [options]; --help lists them

Rank 0 keeps one `all_reduce_bench --serve` alive beside the torch processes. For each size torch's candidates and Imbrex's
are measured alternately, neither while the other works; medians count. On both sides calls are replayed from CUDA graphs
(eagerly where one cannot be captured; the output says which), behind calls that let the ranks begin together, and the
slowest rank counts. NVLink multicast is off. bench/all_reduce_tables.py --merge joins OUT.json with what all_reduce_bench
wrote.
"""

import argparse
import datetime
import json
import statistics
import sys

from peers_torch import ONE_SHOT_BYTES, Imbrex, Timer, by_turns, join, without_multicast
from report import ROOT

# No answer within these seconds: something hangs.
PATIENCE = 60
LEAST, MOST = 1 << 10, 1 << 30
# Calls in a graph, as all_reduce_bench has them, and what leads them in, in microseconds of work.
CALLS, LARGE_CALLS, LARGE_BYTES, LEAD_US = 20, 2, 8 << 20, 300


def sizes(least, most):
    found = [least]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file, replaced after each size")
    parser.add_argument("--bench", default=str(ROOT / "build/bin/all_reduce_bench"), help="the program (default: build/bin/all_reduce_bench)")
    parser.add_argument("--least", type=int, default=LEAST, help=f"bytes of the smallest vector (default {LEAST})")
    parser.add_argument("--most", type=int, default=MOST, help=f"bytes of the largest vector; sizes double (default {MOST})")
    parser.add_argument("--turns", type=int, default=3, help="times that each side is measured (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="samples in a turn (default 3)")
    options = parser.parse_args(argv)
    if options.turns < 1 or options.rounds < 1:
        parser.error(f"--turns {options.turns} --rounds {options.rounds}: both must be at least 1")
    if options.least < 512 or options.least % 512:
        parser.error(f"--least {options.least}: it must be a positive multiple of 512")
    if options.most < options.least:
        parser.error(f"--most {options.most}: it must be at least --least, {options.least}")
    return options


class Bench(Imbrex):
    """`all_reduce_bench --serve`, asked for numbers of bytes."""

    def __init__(self, program, ranks, rounds, most):
        super().__init__(program, ranks, rounds, PATIENCE,
                         ["--serve", "--ranks", str(ranks), "--rounds", str(rounds), "--most", str(most), "--only", "auto", "nccl",
                          "--wait-limit", str(PATIENCE)])


class AllReduceTimer(Timer):
    """Calls of the same number in a graph as all_reduce_bench's, for the vectors of `num_bytes`."""

    num_bytes = 0

    def first_turns(self, samples):
        return 1  # the links' rate does not hang on the clock

    def counts(self, microseconds):
        calls = CALLS if self.num_bytes <= LARGE_BYTES else LARGE_CALLS
        return max(1, round(LEAD_US / max(microseconds, 1))), calls


def torch_candidates(num_bytes, group, torch, dist, symmetric):
    """Name -> a call as torch's users have it, on a vector of bf16 in symmetric memory."""
    fused = torch.ops.symm_mem
    vector = symmetric.empty(num_bytes // 2, device="cuda", dtype=torch.bfloat16)
    symmetric.rendezvous(vector, group)
    vector.zero_()  # sums in place stay what they are
    calls = {"nccl": lambda: dist.all_reduce(vector), "two_shot": lambda: fused.two_shot_all_reduce_(vector, "sum", group)}
    if num_bytes <= ONE_SHOT_BYTES:
        calls["one_shot"] = lambda: fused.one_shot_all_reduce(vector, "sum", group)
    return calls


def median_row(turns):
    """One row of several turns at a size: the median of each time; what failed in a turn is left out."""
    names = [name for name in turns[0]["microseconds"] if all(name in turn["microseconds"] for turn in turns)]
    times = {name: round(statistics.median(turn["microseconds"][name] for turn in turns), 2) for name in names}
    return {"bytes": turns[0]["bytes"], "microseconds": times}


def write(path, machine, torch_version, turns, rounds, rows):
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    head = {"machine": machine, "date": datetime.date.today().isoformat(), "versions": {"torch": torch_version}, "turns": turns, "rounds": rounds}
    with open(path, "w") as file:
        file.write(json.dumps(head)[:-1] + f', "rows": [\n{body}\n]}}\n')


def main(argv):
    options = parse(argv)
    without_multicast()
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    rank, ranks, meeting, group = join(torch, dist, PATIENCE)
    timer = AllReduceTimer(torch, dist, meeting)
    bench = Bench(options.bench, ranks, options.rounds, options.most) if rank == 0 else None
    rows = []
    for num_bytes in sizes(options.least, options.most):
        timer.num_bytes = num_bytes
        calls = torch_candidates(num_bytes, group, torch, dist, symmetric)
        medians, replayed, turns = by_turns(calls, timer, options, bench and (lambda: bench.measure((num_bytes,))))
        if bench:
            row = median_row(turns)
            row["torch"], row["torch_by"] = medians, replayed
            rows.append(row)
            print(f"{num_bytes:>10}  " + "  ".join(f"{name} {us:.2f}" for name, us in row["microseconds"].items()) + "  torch: "
                  + "  ".join(f"{name} {us:.2f} ({row['torch_by'][name]})" for name, us in row["torch"].items()), flush=True)
            write(options.out, f"{ranks} {torch.cuda.get_device_name()}", torch.__version__, options.turns, options.rounds, rows)
        del calls
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    if bench:
        bench.close()
    dist.barrier(group=meeting)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
