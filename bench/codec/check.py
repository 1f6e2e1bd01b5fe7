#!/usr/bin/env python3
"""Compares what a codec costs, measured anew, with bench/results/codec.json.

usage: check.py CODEC_BENCH          exits 1 where a figure differs by more than the C library's rounding may explain
"""

import json
import subprocess
import sys
from pathlib import Path

COMMITTED = Path(__file__).resolve().parents[1] / "results" / "codec.json"


def main(program):
    rows = json.loads(subprocess.run([program, "--no-speed"], check=True, capture_output=True, text=True).stdout)["accuracy"]
    committed = json.loads(COMMITTED.read_text())["accuracy"]
    faults = [] if len(rows) == len(committed) else [f"{len(rows)} rows measured, {len(committed)} committed"]
    for now, then in zip(rows, committed):
        name = f"{now['codec']} {now['algorithm']} {now['distribution']}"
        if any(now[key] != then[key] for key in ("codec", "algorithm", "distribution", "wire_bits")):
            faults.append(f"{name}: committed is {then}")
        elif abs(now["sqnr_db"] - then["sqnr_db"]) > 0.05 or abs(now["bound"] - then["bound"]) > 0.01 * then["bound"]:
            faults.append(f"{name}: {now}, committed is {then}")
        if now["largest_error"] > now["bound"]:
            faults.append(f"{name}: the largest error, {now['largest_error']}, is above the bound, {now['bound']}")
    print("\n".join(faults) if faults else f"{len(rows)} rows as committed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
