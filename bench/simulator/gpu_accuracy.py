#!/usr/bin/env python3
"""Compares the simulator with what bench/results/gpu-4xh200.json and gpu-2xh200.json measured, cell by cell, for the plans
that ran there.

usage: gpu_accuracy.py IMBREX             predicts, with the program IMBREX (build/bin/imbrex), writes
                                          bench/results/simulator-gpu-accuracy.json and the tables of docs/dev/simulator-model.md
       gpu_accuracy.py IMBREX --check     changes nothing; fails where the file has other cells, or small ones are predicted otherwise
       gpu_accuracy.py --table [--check]  only the tables, from that file; --check: changes nothing, fails where one differs
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from prediction import library_us, measured_cells, simulated_us  # noqa: E402
from report import ROOT, heading, line, with_section, write_or_check, write_rows  # noqa: E402

RESULT = ROOT / "bench/results/simulator-gpu-accuracy.json"
DOCUMENT = ROOT / "docs/dev/simulator-model.md"
MAKER = "bench/simulator/gpu_accuracy.py"
MACHINE = "4xh200"
GPUS = ("4xh200", "2xh200")
CHECKED_M = 256  # a check predicts cells of at most so many rows: these take two seconds together, all of them minutes


def predicted_us(program, record):
    """What the simulator predicts for the record's plan, in microseconds."""
    if record["strategy"] == "sequential":
        return library_us(program, MACHINE, record, record["knobs"]["transport"])
    return simulated_us(program, MACHINE, record, record["strategy"], record["knobs"])


def table(cells):
    """Errors of each operator, of all of them, and of each strategy."""
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


def cell_of(record, measured, predicted):
    return {"operator": record["op"], "m": record["m"], "n": record["n"], "k": record["k"], "strategy": record["strategy"],
            "measured_us": measured, "predicted_us": round(predicted, 2), "error": round(predicted / measured - 1, 4)}


def predict(program, gpus):
    """The cells of the results of these GPUs."""
    cells = []
    for record, measured in measured_cells(gpus):
        cells.append(cell_of(record, measured, predicted_us(program, record)))
        print("{operator:20} {m:5} {n:6} {k:6} {strategy:10} {measured_us:9.1f} {predicted_us:9.1f} {error:+7.1%}".format(**cells[-1]), flush=True)
    return cells


def differences(program, committed, largest_m):
    """Faults of what is committed; cells with more rows than `largest_m` keep their prediction, the rest of each is compared."""
    for gpus in GPUS:
        measured = list(measured_cells(gpus))
        if len(measured) != len(committed[gpus]):
            yield f"{gpus}: {len(committed[gpus])} cells, {len(measured)} were measured"
        for (record, microseconds), then in zip(measured, committed[gpus]):
            small = record["m"] <= largest_m
            now = cell_of(record, microseconds, predicted_us(program, record) if small else then["predicted_us"])
            # A prediction and its error are rounded: each may fall to the other side.
            close = abs(now["predicted_us"] - then["predicted_us"]) < 0.011 and abs(now["error"] - then["error"]) < 0.001
            if not close or any(now[key] != then[key] for key in now if key not in ("predicted_us", "error")):
                yield f"{gpus}: committed is {then}, now {now}"


def check(program):
    committed = json.loads(RESULT.read_text())
    faults = list(differences(program, committed, CHECKED_M))
    if faults:
        sys.exit("\n".join(faults))
    small = sum(cell["m"] <= CHECKED_M for gpus in GPUS for cell in committed[gpus])
    print(f"{sum(len(committed[gpus]) for gpus in GPUS)} cells as committed, {small} of them predicted anew")


def main():
    arguments = sys.argv[1:]
    if arguments in (["--table"], ["--table", "--check"]):
        return write_tables("--check" in arguments)
    if len(arguments) == 2 and arguments[1] == "--check" and not arguments[0].startswith("-"):
        return check(arguments[0])
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    write_rows(RESULT, {gpus: predict(arguments[0], gpus) for gpus in GPUS})
    write_tables()


if __name__ == "__main__":
    main()
