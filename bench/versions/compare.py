#!/usr/bin/env python3
"""Times two versions of the library in turn on one GPU: products of one rank, fused plans of four ranks that share the
GPU as threads, and what the host pays for a call and for a new shape.

usage: compare.py OLD NEW [--out FILE] [--parts NAME ...]     OLD and NEW: the program `versions`, built against each library
"""

import argparse
import datetime
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 7
RANKS = 4


def knobs_of(name):
    """Those that "fused 64x32x1 store owner_major group 8" names."""
    tile, transport, order, group = re.fullmatch(r"fused (\d+x\d+x\d+) (\w+) (\w+) group (\d+).*", name).groups()
    tile_m, tile_n, cluster = map(int, tile.split("x"))
    return {"tile_m": tile_m, "tile_n": tile_n, "cluster": cluster, "transport": transport, "order": order, "group": int(group)}


def product_jobs():
    rows = json.loads((ROOT / "bench/results/product-h200.json").read_text())["rows"]
    jobs = []
    for row in rows:
        plan = next((p for p in row["plans"] if p["chosen"] and p["name"].startswith("fused")), None)
        plan = plan or next(p for p in row["plans"] if p["name"].startswith("fused"))
        jobs.append({"problem": row["problem"], "knobs": plan.get("knobs") or knobs_of(plan["name"])})
    return jobs


def fused_jobs(most):
    """The first recorded plans that four ranks on one GPU run: stored, by clusters of one."""
    jobs = []
    for record in json.loads((ROOT / "machines/tuned/4xh200.json").read_text())["records"]:
        text = json.dumps(record)
        if record.get("strategy") != "fused" or '"transport": "store"' not in text:
            continue
        if record["type"] != "bf16":
            continue
        problem = {"operator": record["op"], **{size: record[size] for size in "mnk"}}
        knobs = dict(record["knobs"], cluster=1, cluster_k=1)
        jobs.append({"problem": problem, "strategy": "fused", "knobs": knobs})
    return jobs[:most]


def library_jobs():
    sizes = [(512, 4096, 4096), (2048, 8192, 8192)]
    return [{"problem": {"operator": "gemm_reduce_scatter", "m": m, "n": n, "k": k}, "strategy": "sequential"} for m, n, k in sizes]


class Side:
    def __init__(self, program, jobs, ranks, mode):
        # A kernel that is loaded at its first call waits for kernels that run, which may wait for it.
        self.process = subprocess.Popen([program, jobs, str(ranks), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"})

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended at '{command}'")
        return float(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def in_turn(sides, command, rounds):
    taken = [[], []]
    for turn in range(rounds):
        for side in ((0, 1) if turn % 2 == 0 else (1, 0)):
            taken[side].append(sides[side].ask(command))
    return [statistics.median(t) for t in taken]


def compare(programs, jobs, ranks, mode, commands, folder):
    path = str(Path(folder) / "jobs.json")
    Path(path).write_text(json.dumps(jobs))
    sides = [Side(program, path, ranks, mode) for program in programs]
    rows = []
    for number, job in enumerate(jobs):
        problem = job["problem"]
        row = {"operator": problem["operator"], "m": problem["m"], "n": problem["n"], "k": problem["k"], "ranks": ranks,
               "strategy": job.get("strategy", "fused")}
        for side in sides:
            side.ask(f"job {number}")
        for command in commands:
            order = f"job {number}" if command == "make" else command
            for side in sides:
                side.ask(order)  # warm
            old, new = in_turn(sides, order, ROUNDS)
            again = []
            if command == "time" and new / old > 1.03:
                again = [round(n / o, 4) for o, n in (in_turn(sides, order, ROUNDS) for _ in range(3))]
            ratio = statistics.median(again) if again else new / old
            row[command] = {"old_us": old, "new_us": new, "ratio": round(ratio, 4), **({"again": again} if again else {})}
        rows.append(row)
        print(" ".join(str(row[k]) for k in ("operator", "m", "n", "k", "ranks", "strategy")),
              *(f"{c} {row[c]['old_us']} -> {row[c]['new_us']} us, {row[c]['ratio']}" for c in commands), flush=True)
    for side in sides:
        side.end()
    return rows


def mean(rows, command):
    return math.exp(statistics.fmean(math.log(row[command]["ratio"]) for row in rows))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--out")
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--parts", nargs="+", help="of products, fused, host_fused and host_library; default: all")
    parser.add_argument("--machine", default="")
    parser.add_argument("--what", default="")
    arguments = parser.parse_args()
    programs = [arguments.old, arguments.new]
    result = {"what": arguments.what, "machine": arguments.machine, "date": datetime.date.today().isoformat(), "rounds": ROUNDS}
    parts = {"products": (product_jobs(), 1, "time", ["time"]), "fused": (fused_jobs(arguments.plans), RANKS, "time", ["time"]),
             "host_fused": (fused_jobs(6), RANKS, "host", ["make", "call"]), "host_library": (library_jobs(), 1, "host", ["make", "call"])}
    with tempfile.TemporaryDirectory() as folder:
        for name, (jobs, ranks, mode, commands) in parts.items():
            if arguments.parts and name not in arguments.parts:
                continue
            try:
                rows = compare(programs, jobs, ranks, mode, commands, folder)
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            result[name] = {"rows": rows, **{f"{c}_mean_ratio": round(mean(rows, c), 4) for c in commands}}
            print(name, {c: result[name][f"{c}_mean_ratio"] for c in commands}, flush=True)
            if arguments.out:
                Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
