#!/usr/bin/env python3
"""Times two versions' checkers on the recorded plans, and a call of an operator on the CPU, in turn.

usage: compare_checks.py OLD NEW [--out FILE]     OLD and NEW: the program `checks`, built against each library
"""

import argparse
import datetime
import json
import math
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Side:
    def __init__(self, program, records):
        self.process = subprocess.Popen([program, records], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended at '{command}'")
        return float(line)


def quickest(sides, command, rounds):
    taken = [[], []]
    for turn in range(rounds):
        for side in ((0, 1) if turn % 2 == 0 else (1, 0)):
            taken[side].append(sides[side].ask(command))
    return [min(t) for t in taken]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--out")
    parser.add_argument("--machine", default="")
    parser.add_argument("--what", default="")
    arguments = parser.parse_args()
    records = [r for f in ("2xh200", "4xh200") for r in json.loads((ROOT / f"machines/tuned/{f}.json").read_text())["records"]]
    result = {"what": arguments.what, "machine": arguments.machine, "date": datetime.date.today().isoformat()}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(records, file)
        file.flush()
        sides = [Side(program, file.name) for program in (arguments.old, arguments.new)]
        times = [quickest(sides, f"check {i}", 4) for i in range(len(records))]
        calls = quickest(sides, "call", 20)
    old, new = (sum(t[i] for t in times) for i in (0, 1))
    result["check"] = {"plans": len(times), "old_us": round(old), "new_us": round(new), "ratio_of_sums": round(new / old, 4),
                       "mean_ratio": round(math.exp(statistics.fmean(math.log(n / o) for o, n in times)), 4)}
    result["call"] = {"old_us": calls[0], "new_us": calls[1], "ratio": round(calls[1] / calls[0], 4)}
    print(json.dumps(result, indent=1))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
