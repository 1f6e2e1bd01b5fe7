#!/usr/bin/env python3
"""Compares the simulator with what bench/results/gpu-4xh200.json and gpu-2xh200.json measured, cell by cell, for the plans
that ran there.

usage: gpu_accuracy.py IMBREX             predicts, with the program IMBREX (build/bin/imbrex), writes
                                          bench/results/simulator-gpu-accuracy.json and the tables of docs/simulator.md
       gpu_accuracy.py --table [--check]  only the tables, from that file; --check: changes nothing, fails where one differs
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from prediction import library_us, measured_cells, simulated_us  # noqa: E402
from report import ROOT, heading, line, with_section, write_or_check, write_rows  # noqa: E402

RESULT = ROOT / "bench/results/simulator-gpu-accuracy.json"
DOCUMENT = ROOT / "docs/simulator.md"
MAKER = "bench/simulator/gpu_accuracy.py"
MACHINE = "4xh200"
GPUS = ("4xh200", "2xh200")


def predicted_us(program, record):
    """Of the record's plan, in microseconds."""
    if record["strategy"] == "sequential":
        return library_us(program, MACHINE, record, record["knobs"]["transport"])
    return simulated_us(program, MACHINE, record, record["strategy"], record["knobs"])


def table(cells):
    """Of each operator, all of them, and each strategy."""
    groups = {}
    for cell in cells:
        groups.setdefault(cell["operator"], []).append(abs(cell["error"]))
    groups["all"] = [abs(cell["error"]) for cell in cells]
    for strategy in sorted({cell["strategy"] for cell in cells}):
        groups[f"all, strategy {strategy}"] = [abs(cell["error"]) for cell in cells if cell["strategy"] == strategy]
    lines = heading(["operator", "cells", "mean error", "largest"])
    for name, errors in groups.items():
        lines.append(line([name, str(len(errors)), f"{100 * sum(errors) / len(errors):.1f} %", f"{100 * max(errors):.1f} %"]))
    return "\n".join(lines) + "\n"


def write_tables(check=False):
    result, document = json.loads(RESULT.read_text()), DOCUMENT.read_text()
    for gpus in GPUS:
        document = with_section(document, MAKER if gpus == MACHINE else f"{MAKER} {gpus}", table(result[gpus]))
    write_or_check({DOCUMENT: document}, check, f"{MAKER} --table")


def predict(program, gpus):
    """The cells of the results of these GPUs."""
    cells = []
    for record, measured in measured_cells(gpus):
        predicted = predicted_us(program, record)
        cells.append({"operator": record["op"], "m": record["m"], "n": record["n"], "k": record["k"], "strategy": record["strategy"],
                      "measured_us": measured, "predicted_us": round(predicted, 2), "error": round(predicted / measured - 1, 4)})
        print("{operator:20} {m:5} {n:6} {k:6} {strategy:10} {measured_us:9.1f} {predicted_us:9.1f} {error:+7.1%}".format(**cells[-1]), flush=True)
    return cells


def main():
    arguments = sys.argv[1:]
    if arguments in (["--table"], ["--table", "--check"]):
        return write_tables("--check" in arguments)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    write_rows(RESULT, {gpus: predict(arguments[0], gpus) for gpus in GPUS})
    write_tables()


if __name__ == "__main__":
    main()
