"""What the scripts of this folder share: simulated times, by the program `imbrex`."""

import json
import subprocess
import sys

from report import ROOT
from variants import shapes

FLAGS = ("span_shards", "one_shot")
VALUES = ("tile_m", "tile_n", "cluster", "cluster_k", "group", "order", "transport", "reducer", "comm_rows", "k_slices", "split_k", "own_shift", "abreast", "partial")


def measured_cells(gpus):
    """What bench/results/gpu-GPUS.json holds: the record of the plan that ran, and its microseconds."""
    records = json.loads((ROOT / f"machines/tuned/{gpus}.json").read_text())["records"]
    by_problem = {(r["op"], r["m"], r["n"], r["k"], r["ranks"], r["type"]): r for r in records}
    for row in json.loads((ROOT / f"bench/results/gpu-{gpus}.json").read_text())["rows"]:
        p = row["problem"]
        record = by_problem.get((p["operator"], p["m"], p["n"], p["k"], p["ranks"], p["type"]))
        if record is not None:  # else it ran the knobs of a problem nearby
            yield record, next(plan["us"] for plan in row["plans"] if plan["chosen"])


def simulated_us(program, machine, problem, strategy, knobs):
    """Microseconds of one plan. `problem`: operator (or op), m, n, k, ranks, type, and scales if any; `knobs`: those that are not the defaults."""
    operator = problem.get("operator", problem.get("op"))
    command = [str(program), "simulate", operator, "--machine", str(machine), "--strategy", strategy, "--json", "-"]
    for size in ("m", "n", "k", "ranks", "type"):
        command += [f"--{size}", str(problem[size])]
    command += [word for knob in VALUES if knob in knobs for word in ("--" + knob.replace("_", "-"), str(knobs[knob]))]
    command += ["--" + flag.replace("_", "-") for flag in FLAGS if knobs.get(flag)]
    if "scales" in problem:
        command += ["--scales", problem["scales"]]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return json.loads(result.stdout)["seconds"] * 1e6


def library_us(program, machine, problem, transport):
    """Microseconds of cuBLAS with collectives before or after it: with the tile shape that is fastest, as cuBLAS would choose one."""
    rows, columns = (64, 32) if problem["m"] <= 64 else (128, 128)
    knobs = ({"tile_m": m, "tile_n": n, "transport": transport} for m, n in shapes() if m == rows and n >= columns)
    return min(simulated_us(program, machine, problem, "sequential", k) for k in knobs)
