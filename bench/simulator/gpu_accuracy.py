#!/usr/bin/env python3
"""Compares the simulator with what bench/results/gpu-4xh200.json measured, cell by cell, for the plans that ran there.

usage: gpu_accuracy.py IMBREX             predicts, with the program IMBREX (build/bin/imbrex), writes
                                          bench/results/simulator-gpu-accuracy.json and the table of docs/simulator.md
       gpu_accuracy.py --table [--check]  only the table, from that file; --check: changes nothing, fails where it differs
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from prediction import library_us, simulated_us  # noqa: E402
from report import ROOT, with_section, write_or_check  # noqa: E402

RESULT = ROOT / "bench/results/simulator-gpu-accuracy.json"
DOCUMENT = ROOT / "docs/simulator.md"
MAKER = "bench/simulator/gpu_accuracy.py"
MACHINE = "4xh200"


def predicted_us(program, record):
    """Of the record's plan, in microseconds."""
    if record["strategy"] == "sequential":
        return library_us(program, MACHINE, record, record["knobs"]["transport"])
    return simulated_us(program, MACHINE, record, record["strategy"], record["knobs"])


def table(result):
    lines = ["| operator | cells | mean error | largest |", "|---|---|---|---|"]
    for name, s in result["summary"].items():
        lines.append(f"| {name} | {s['cells']} | {100 * s['mean']:.1f} % | {100 * s['largest']:.1f} % |")
    return "\n".join(lines) + "\n"


def write_table(check=False):
    result = json.loads(RESULT.read_text())
    write_or_check({DOCUMENT: with_section(DOCUMENT.read_text(), MAKER, table(result))}, check, f"{MAKER} --table")


def predict(program):
    records = json.loads((ROOT / "machines/tuned/4xh200.json").read_text())["records"]
    by_problem = {(r["op"], r["m"], r["n"], r["k"]): r for r in records}
    cells = []
    for row in json.loads((ROOT / "bench/results/gpu-4xh200.json").read_text())["rows"]:
        p = row["problem"]
        record = by_problem.get((p["operator"], p["m"], p["n"], p["k"]))
        if record is None:  # it ran the knobs of a problem nearby
            continue
        measured = next(plan["us"] for plan in row["plans"] if plan["chosen"])
        predicted = predicted_us(program, record)
        cells.append({"operator": p["operator"], "m": p["m"], "n": p["n"], "k": p["k"], "strategy": record["strategy"],
                      "measured_us": measured, "predicted_us": round(predicted, 2), "error": round(predicted / measured - 1, 4)})
        print("{operator:20} {m:5} {n:6} {k:6} {strategy:10} {measured_us:9.1f} {predicted_us:9.1f} {error:+7.1%}".format(**cells[-1]), flush=True)
    summary = {}
    for name in dict.fromkeys([c["operator"] for c in cells] + ["all"]):
        errors = sorted(abs(c["error"]) for c in cells if name in (c["operator"], "all"))
        summary[name] = {"cells": len(errors), "mean": round(sum(errors) / len(errors), 4), "largest": errors[-1]}
        print(f"{name}: {len(errors)} cells, mean error {summary[name]['mean']:.1%}, largest {errors[-1]:.1%}")
    body = ",\n".join("  " + json.dumps(c) for c in cells)
    RESULT.write_text(f'{{\n "summary": {json.dumps(summary)},\n "cells": [\n{body}\n ]\n}}\n')


def main():
    arguments = sys.argv[1:]
    if arguments in (["--table"], ["--table", "--check"]):
        return write_table("--check" in arguments)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    predict(arguments[0])
    write_table()


if __name__ == "__main__":
    main()
