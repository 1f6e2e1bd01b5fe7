#!/usr/bin/env python3
"""Compares what a codec costs, measured anew, with bench/results/codec.json, and that with the table of bench/results/codec.md.

usage: check.py CODEC_BENCH          exits 1 where a figure differs by more than the C library's rounding may explain
       check.py --table              prints the table
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "bench/results/codec.json"
DOCUMENT = ROOT / "bench/results/codec.md"
DISTRIBUTIONS = ["gaussian", "gelu", "heavy_tailed", "outliers"]


def table(rows):
    """The rows of the document's table."""
    found = {}
    for row in rows:
        found.setdefault((row["codec"], row["algorithm"]), {})[row["distribution"]] = row
    lines = []
    for (codec, algorithm), by_distribution in found.items():
        normal = by_distribution["gaussian"]
        cells = [("exact" if codec == "exact" else f"`{codec}`") + (", ring" if algorithm == "ring" else ""), f"{normal['wire_bits']:g}"]
        cells += [f"{by_distribution[name]['sqnr_db']:.1f}" for name in DISTRIBUTIONS]
        cells += [f"{normal['largest_error']:.3f}", f"{normal['bound']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def differences(rows, committed):
    if len(rows) != len(committed):
        yield f"{len(rows)} rows measured, {len(committed)} committed"
    for now, then in zip(rows, committed):
        name = f"{now['codec']} {now['algorithm']} {now['distribution']}"
        if any(now[key] != then[key] for key in ("codec", "algorithm", "distribution", "wire_bits")):
            yield f"{name}: committed is {then}"
        elif abs(now["sqnr_db"] - then["sqnr_db"]) > 0.05 or any(
                abs(now[key] - then[key]) > 0.01 * then[key] for key in ("largest_error", "bound")):
            yield f"{name}: {now}, committed is {then}"
        if now["largest_error"] > now["bound"]:
            yield f"{name}: the largest error, {now['largest_error']}, is above the bound, {now['bound']}"


def main(argument):
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))["accuracy"]
    if argument == "--table":
        print("\n".join(table(committed)))
        return 0
    report = subprocess.run([argument, "--no-speed"], check=True, capture_output=True, text=True).stdout
    faults = list(differences(json.loads(report)["accuracy"], committed))
    document = DOCUMENT.read_text(encoding="utf-8").splitlines()
    faults += [f"bench/results/codec.md lacks the row {line}" for line in table(committed) if line not in document]
    print("\n".join(faults) if faults else f"{len(committed)} rows as committed, and as documented")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
