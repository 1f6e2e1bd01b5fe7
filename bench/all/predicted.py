#!/usr/bin/env python3
"""
Predicts what a run of bench/all measured, where the simulator has the machine, and compares.

usage: predicted.py --dir DIR --program IMBREX --out FILE [--machine NAME|FILE] [--seconds S]

Rows are those of DIR/topics that say which plan ran: its knobs, or the words of `imbrex run`. The machine is the one
that was fitted to this run (DIR/machine-fitted.json), or the one of machines/ that is of these GPUs. FILE has a row
each, and the error by topic: the mean of |predicted / measured - 1|. What the simulator has no machine for is left out,
and said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/simulator")]

from rows import Row, rows_of  # noqa: E402
from store import parsed, write_json  # noqa: E402

MACHINES = {"H200": "4xh200", "H100": "4xh100"}  # what of machines/ is of which GPU


def machine_of(folder: Path, kind: str) -> tuple[str, str]:
    """A machine, and why it is none where it is empty."""
    if (folder / "machine-fitted.json").exists():
        return str(folder / "machine-fitted.json"), ""
    for name, machine in MACHINES.items():
        if name in kind:
            return machine, ""
    return "", f"machines/ has no file of {kind}, and none was fitted to this run"


def predictable(folder: Path) -> tuple[list[tuple[str, Row]], dict[str, str]]:
    """Rows with their topics, and topics without one with why."""
    found: list[tuple[str, Row]] = []
    why: dict[str, str] = {}
    for path in sorted((folder / "topics").glob("*.json")):
        told = parsed(path)
        topic = told["topic"]
        rows: list[Row] = []
        for entry in told["measurements"].values():
            if entry["status"] not in ("done", "partial") or entry.get("mps") or entry.get("result") is None:
                continue
            with contextlib.suppress(ValueError):  # the page tells
                rows += [one for one in rows_of(entry) if {"predicted_us", "knobs", "plan"} & one.keys()]
        found += [(topic, one) for one in rows]
        if not rows:
            why[topic] = "no row of a plan that the simulator runs; ranks that share a card have no links"
    return found, why


def predict(program: str, machine: str, one: Row) -> float | None:
    """Microseconds; None where the simulator refuses the plan."""
    # Bench's folder is no package: this comes from bench/simulator.
    from prediction import library_us, simulated_us  # type: ignore[import-not-found]

    if "predicted_us" in one:
        return float(one["predicted_us"])
    if "plan" in one:
        command = [program, "simulate", *one["plan"], "--machine", machine, "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return float(json.loads(done.stdout)["seconds"]) * 1e6 if done.returncode == 0 else None
    problem, knobs = one["problem"], one.get("knobs", {})
    try:
        if one["strategy"] == "sequential":
            return float(library_us(program, machine, problem, knobs.get("transport", "push")))
        return float(simulated_us(program, machine, problem, one["strategy"], knobs))
    except SystemExit:
        return None


def errors(rows: list[Row]) -> dict[str, Any]:
    """By topic: how many, the mean error and the largest."""
    found: dict[str, Any] = {}
    for topic in sorted({one["topic"] for one in rows}):
        sizes = [abs(one["predicted_us"] / one["us"] - 1) for one in rows if one["topic"] == topic]
        found[topic] = {"rows": len(sizes), "mean": round(sum(sizes) / len(sizes), 4), "largest": round(max(sizes), 4)}
    return found


def main(arguments: list[str]) -> int:
    """Predicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--machine")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    kind = (parsed(options.dir / "run.json") or {"machine": {"kind": "this machine"}})["machine"]["kind"]
    machine, why_not = (options.machine, "") if options.machine else machine_of(options.dir, kind)
    wanted, why = predictable(options.dir)
    rows: list[Row] = []
    late = refused = 0

    def one_of(item: tuple[str, Row]) -> tuple[str, Row, float | None, bool]:
        topic, one = item
        if time.monotonic() - begin > options.seconds - 5:
            return topic, one, None, True
        return topic, one, predict(options.program, machine, one) if machine or "predicted_us" in one else None, False

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for topic, one, us, was_late in pool.map(one_of, wanted):
            if us is None:
                late += was_late
                refused += not was_late
                if not machine:
                    why.setdefault(topic, why_not)
                continue
            rows.append(
                {"topic": topic, "what": one["what"], "way": one["way"], "us": one["us"], "predicted_us": round(us, 2)}
            )
    result = {
        "machine": Path(machine).name,
        "why_no_machine": why_not,
        "rows": rows,
        "errors": errors(rows),
        "left_out": why,
        "too_late": late,
        "not_predicted": refused,
    }
    write_json(options.out, result)
    print(json.dumps(result["errors"]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
