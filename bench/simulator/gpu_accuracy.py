#!/usr/bin/env python3
"""Compares the simulator with what bench/results/gpu-4xh200.json measured, cell by cell, for the plans that ran there.

usage: gpu_accuracy.py IMBREX [--out FILE.json]    IMBREX: the program, build/bin/imbrex
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = ("span_shards", "one_shot")
VALUES = ("tile_m", "tile_n", "cluster", "group", "order", "transport", "reducer", "comm_rows", "k_slices", "own_shift", "abreast", "partial")


def predicted_us(program, record):
    """Of the record's plan on the machine 4xh200, in microseconds."""
    command = [program, "simulate", record["op"], "--machine", "4xh200", "--strategy", record["strategy"], "--json", "-"]
    for size in ("m", "n", "k", "ranks", "type"):
        command += [f"--{size}", str(record[size])]
    if record["strategy"] == "fused":
        for knob in VALUES:
            command += ["--" + knob.replace("_", "-"), str(record["knobs"][knob])]
        command += ["--" + flag.replace("_", "-") for flag in FLAGS if record["knobs"][flag]]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return json.loads(result.stdout)["seconds"] * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    records = json.loads((ROOT / "machines/tuned/4xh200.json").read_text())["records"]
    by_problem = {(r["op"], r["m"], r["n"], r["k"]): r for r in records}
    cells = []
    for row in json.loads((ROOT / "bench/results/gpu-4xh200.json").read_text())["rows"]:
        p = row["problem"]
        record = by_problem[p["operator"], p["m"], p["n"], p["k"]]
        measured = next(plan["us"] for plan in row["plans"] if plan["chosen"])
        predicted = predicted_us(arguments.program, record)
        cells.append({"operator": p["operator"], "m": p["m"], "n": p["n"], "k": p["k"], "strategy": record["strategy"],
                      "measured_us": measured, "predicted_us": round(predicted, 2), "error": round(predicted / measured - 1, 4)})
        print("{operator:20} {m:5} {n:6} {k:6} {strategy:10} {measured_us:9.1f} {predicted_us:9.1f} {error:+7.1%}".format(**cells[-1]), flush=True)
    summary = {}
    for name in dict.fromkeys([c["operator"] for c in cells] + ["all"]):
        errors = sorted(abs(c["error"]) for c in cells if name in (c["operator"], "all"))
        summary[name] = {"cells": len(errors), "mean": round(sum(errors) / len(errors), 4), "largest": errors[-1]}
        print(f"{name}: {len(errors)} cells, mean error {summary[name]['mean']:.1%}, largest {errors[-1]:.1%}")
    if arguments.out:
        body = ",\n".join("  " + json.dumps(c) for c in cells)
        Path(arguments.out).write_text(f'{{\n "summary": {json.dumps(summary)},\n "cells": [\n{body}\n ]\n}}\n')


if __name__ == "__main__":
    main()
