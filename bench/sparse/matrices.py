#!/usr/bin/env python3
"""Four kinds of matrices in two sizes each, for the sparse triangular solve: their levels, and how long solves take.

The list was written before anything was tuned on it. On GPUs the ranks of one GPU are processes, which run at once under MPS.

usage: matrices.py PROGRAM [--device cpu|cuda] [--gpus 1] [--pes 1,2,4] [--small] [--most-rows N] [--kinds grid,banded] [--ring]
                   [--json FILE]
"""

import argparse
import json
import math
import os
import subprocess
import sys

MATRICES = [
    ("grid", 1_000_000), ("grid", 10_000_000),
    ("banded", 20_000), ("banded", 200_000),
    ("power_law", 1_000_000), ("power_law", 10_000_000),
    ("block", 200_000), ("block", 2_000_000),
]
# A kernel a level: more levels than these only take long.
MOST_LEVELS_BY_BOUNDARIES = 50_000


def run(options, kind, rows, pes, way, repeat, compare):
    device, per_gpu = options.device, -(-pes // options.gpus)
    command = [options.program, "run", "sparse_triangular_solve", "--generate", kind, "--unknowns", rows, "--seed", 1, "--ranks", pes,
               "--solve-way", way, "--device", device, "--repeat", repeat, "--verify", "--wait-limit", 60, "--json", "-"]
    command += ["--ranks-per-gpu", per_gpu] if device == "cuda" and per_gpu > 1 else []
    command += ["--compare"] if compare else []
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        print(f"{kind} {rows}, {pes} PEs, {way}: exit {result.returncode}: {result.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(result.stdout) | {"kind": kind}


def keep(path, results):
    """What is known so far: a run that is cut off leaves it."""
    if path:
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
        os.replace(f"{path}.tmp", path)


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--pes", default="1,2,4")
    parser.add_argument("--kinds", default="grid,banded,power_law,block")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that PEs share out (default 1)")
    parser.add_argument("--most-rows", type=int, default=10_000_000, help="matrices of more rows are left out")
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows: a try")
    parser.add_argument("--ring", action="store_true", help="also by rings, where PEs send each other anything")
    parser.add_argument("--json", help="all results, as the program gave them")
    options = parser.parse_args()
    results, against_library, against_boundaries, against_ring = [], [], [], []
    print("| kind | rows | entries | levels | PEs | analysis, ms | in the kernel, ms | by ring, ms | by levels, ms | cuSPARSE, ms | its analysis, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind, rows in MATRICES:
        rows = rows // 100 if options.small else rows
        if kind not in options.kinds.split(",") or rows > options.most_rows:
            continue
        for pes in map(int, options.pes.split(",")):
            compare = options.device == "cuda" and pes == 1
            found = run(options, kind, rows, pes, "in_kernel", options.repeat, compare)
            if found is None:
                continue
            results.append(found)
            problem, best = found["problem"], min(found["seconds"])
            boundaries = None
            if problem["levels"] <= MOST_LEVELS_BY_BOUNDARIES:
                boundaries = run(options, kind, rows, pes, "kernel_boundaries", 3, False)
            if boundaries is not None:
                results.append(boundaries)
                against_boundaries.append((pes, min(boundaries["seconds"]) / best))
            ring = None
            if options.ring and pes > 1:
                ring = run(options, kind, rows, pes, "ring", 3, False)
            if ring is not None:
                results.append(ring)
                against_ring.append((pes, min(ring["seconds"]) / best))
            keep(options.json, results)
            library = found.get("library")
            if library is not None and kind != "banded":
                against_library.append(min(library["seconds"]) / best)

            def ms(seconds):
                return f"{seconds * 1e3:.3f}"

            print(f"| {kind} | {rows} | {problem['entries']} | {problem['levels']} | {pes} | {ms(found['analysis_seconds'])} | {ms(best)} | "
                  f"{ms(min(ring['seconds'])) if ring else ''} | "
                  f"{ms(min(boundaries['seconds'])) if boundaries else ''} | {ms(min(library['seconds'])) if library else ''} | "
                  f"{ms(library['analysis_seconds']) if library else ''} |", flush=True)
    if against_library:
        print(f"\ncuSPARSE's time over ours, geometric mean of all but banded: {mean(against_library):.3f}")
    for pes in sorted({pes for pes, _ in against_boundaries}):
        print(f"by levels over in the kernel, {pes} PEs: {mean([ratio for p, ratio in against_boundaries if p == pes]):.3f}")
    for pes in sorted({pes for pes, _ in against_ring}):
        print(f"by ring over in the kernel, {pes} PEs: {mean([ratio for p, ratio in against_ring if p == pes]):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
