#!/usr/bin/env python3
"""How near signaled plans come to a perfect overlap in the simulator, for the shapes of FlashOverlap (Hong et al.,
EuroSys 2026), and how much faster than sequential ones they are. M, N and K are those of each rank's product.

usage: theory.py IMBREX            simulates, with the program IMBREX (build/bin/imbrex), writes
                                   bench/results/signaled-theory.json, the table of docs/dev/derivations/signaled.md and its plot
       theory.py IMBREX --check    changes nothing; fails where small problems are simulated otherwise
       theory.py --table [--check] only the table and the plot, from that file; --check: changes nothing, fails where
                                   one differs

A perfect overlap takes as long as the product on all SMs and the collective of what its last wave makes, or as its
first wave and then the collective of all bytes at once, whichever is longer. The last wave's bytes travel at the best
rate of the machine's curve, without latency.
"""

import datetime
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report import ROOT, Plot, heading, line, with_section, write_or_check, write_rows  # noqa: E402

RESULT = ROOT / "bench/results/signaled-theory.json"
DOCUMENT = ROOT / "docs/dev/derivations/signaled.md"
PLOT = ROOT / "docs/dev/derivations/signaled-theory.svg"
MAKER = "bench/signaled/theory.py"
OPERATORS = {"gemm_reduce_scatter": "reduce_scatter", "gemm_all_reduce": "all_reduce", "gemm_all_to_all": "all_to_all"}
RANKS = (2, 4)
CONSUMER = [(m, 8192, k) for m in (2048, 4096, 8192) for k in (8192, 16384)]
DATACENTER = [(m, n, k) for m in (8192, 16384) for n in (8192, 16384) for k in (2048, 4096, 8192)]
SHAPES = {"rtx4090-4": CONSUMER, "a800-4": DATACENTER, "4xh200": DATACENTER}
# What the paper's predictor takes for granted: NCCL runs on two SMs. No part of the means over all machines.
VARIANT, VARIED, CHANGE = "a800-4, 2 SMs", "a800-4", "collectives.sms=2"
COLOURS = {"rtx4090-4": "#1b6ca8", "a800-4": "#c0392b", "4xh200": "#27864a", VARIANT: "#b8860b"}
ELEMENT = 2  # bytes of a bf16
CHECKED = 2048 * 8192 * 8192  # a check simulates problems of two ranks and at most so large an M N K anew: seconds, not minutes
PAPER = {"least": 0.69, "most": 0.98, "speedup": 1.65}


def machine(name):
    return ROOT / f"machines/{VARIED if name == VARIANT else name}.json"


def collective_us(curve, wire_bytes):
    """As the program reads a curve: in logarithms between points, at the last one's rate above."""
    points = curve["points"]
    if wire_bytes <= points[0][0]:
        return 1e6 * points[0][1]
    if wire_bytes >= points[-1][0]:
        return 1e6 * points[-1][1] * wire_bytes / points[-1][0]
    (b0, s0), (b1, s1) = next(pair for pair in zip(points, points[1:]) if wire_bytes <= pair[1][0])
    part = math.log(wire_bytes / b0) / math.log(b1 / b0)
    return 1e6 * math.exp(math.log(s0) + part * math.log(s1 / s0))


def perfect(gemm_us, tile, constants, kind, m, n, ranks):
    """What no overlap can beat, and what it is made of, in microseconds."""
    curve, sms = constants["collectives"][kind], constants["compute"]["sms"]["value"]
    wire = m * n * ELEMENT * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1])
    waves = math.ceil(tiles / sms)
    best_rate = max(size / seconds for size, seconds in curve["points"])
    whole, head = collective_us(curve, wire), gemm_us / waves
    tail = 1e6 * wire * (tiles - (waves - 1) * sms) / tiles / best_rate
    return {"collective_us": whole, "head_us": head, "tail_us": tail, "perfect_us": max(gemm_us + tail, head + whole)}


class Program:
    """The program's predictions for one machine."""

    def __init__(self, path, name):
        self.path, self.file = path, machine(name)
        if name == VARIANT:
            self.folder = tempfile.TemporaryDirectory()
            self.file = Path(self.folder.name) / "machine.json"
            subprocess.run([path, "machine", machine(name), "--set", CHANGE, "--out", self.file], check=True, capture_output=True)
        self.constants = json.loads(self.file.read_text())

    def run(self, command, op, m, n, k, ranks, *more):
        depth = k if op == "gemm_all_to_all" else k * ranks  # sums are over all ranks' K
        sizes = ["--m", m, "--n", n, "--k", depth, "--ranks", ranks]
        return subprocess.run([self.path, command, op, *map(str, sizes), "--machine", str(self.file), *map(str, more), "--json", "-"],
                              check=True, capture_output=True, text=True).stdout

    def us(self, *problem_and_more):
        return 1e6 * json.loads(self.run("simulate", *problem_and_more))["seconds"]

    def knobs(self, *problem, strategy):
        return json.loads(re.search(r'^"knobs": (\{.*\}),$', self.run("plan", *problem, "--strategy", strategy), re.M)[1])


def row_of(program, name, op, m, n, k, ranks):
    problem, own = (op, m, n, k, ranks), Program(program, name)
    us = {strategy: own.us(*problem, "--strategy", strategy) for strategy in ("sequential", "decomposed", "signaled")}
    knobs = own.knobs(*problem, strategy="signaled")
    # The product alone, with the tiles that suit it and with the plan's; the faster counts.
    alone, tried = (op, m, n, k, 1), {}
    for tile in {(of["tile_m"], of["tile_n"]) for of in (knobs, own.knobs(*alone, strategy="sequential"))}:
        tried[tile] = own.us(*alone, "--strategy", "sequential", "--tile-m", tile[0], "--tile-n", tile[1])
    tile = min(tried, key=lambda t: (tried[t], t))
    bound = perfect(tried[tile], tile, own.constants, OPERATORS[op], m, n, ranks)
    row = {"machine": name, "operator": op, "m": m, "n": n, "k": k, "ranks": ranks,
           "tile": [knobs["tile_m"], knobs["tile_n"]], "packed": knobs.get("packed", False), "groups": knobs["groups"],
           "kept_free": knobs.get("kept_free", 0), "gemm_us": tried[tile], **bound,
           **{f"{strategy}_us": value for strategy, value in us.items()}}
    row = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
    return {**row, "fraction": round(row["perfect_us"] / row["signaled_us"], 4),
            "speedup": round(row["sequential_us"] / row["signaled_us"], 4)}


def problems():
    for name, shapes in {**SHAPES, VARIANT: SHAPES[VARIED]}.items():
        for op in OPERATORS:
            for ranks in RANKS:
                for m, n, k in shapes:
                    yield name, op, m, n, k, ranks


def key_of(row):
    return tuple(row[key] for key in ("machine", "operator", "m", "n", "k", "ranks"))


def simulate(program):
    rows = []
    for problem in problems():
        rows.append(row_of(program, *problem))
        print("{machine:13} {operator:20} {m:6} {n:6} {k:6} {ranks} {sequential_us:9.1f} {decomposed_us:9.1f} {signaled_us:9.1f} "
              "{perfect_us:9.1f} {fraction:6.3f} {speedup:6.3f}".format(**rows[-1]), flush=True)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {"what": "simulated times of signaled plans beside a perfect overlap; m, n, k of each rank's product, bf16",
            "version": version, "commit": commit, "date": datetime.date.today().isoformat(), "command": f"{MAKER} build/bin/imbrex",
            "rows": rows}


def percent(value):
    return f"{100 * value:.0f} %"


def sums(name, rows):
    fractions, speedups = [r["fraction"] for r in rows], [r["speedup"] for r in rows]
    decomposed = [r["decomposed_us"] / r["signaled_us"] for r in rows]
    return line([*name, str(len(rows)), percent(statistics.mean(fractions)), f"{percent(min(fractions))} to {percent(max(fractions))}",
                 f"{statistics.geometric_mean(speedups):.2f}", f"{max(speedups):.2f}", f"{min(speedups):.2f}",
                 f"{statistics.geometric_mean(decomposed):.2f}"])


def table(rows):
    lines = heading(["machine", "operator", "ranks", "problems", "of perfect, mean", "range", "speed-up, mean", "best", "least",
                     "over decomposed, mean"])
    for name in SHAPES:
        of_machine = [r for r in rows if r["machine"] == name]
        for op in OPERATORS:
            for ranks in RANKS:
                lines.append(sums([name, op, str(ranks)], [r for r in of_machine if (r["operator"], r["ranks"]) == (op, ranks)]))
        lines.append(sums([name, "all", "2, 4"], of_machine))
    lines.append(sums(["all three", "all", "2, 4"], [r for r in rows if r["machine"] in SHAPES]))
    lines.append(sums([VARIANT, "all", "2, 4"], [r for r in rows if r["machine"] == VARIANT]))
    lines.append(line(["the paper, measured", "", "2, 4, 8", "", "", f"{percent(PAPER['least'])} to {percent(PAPER['most'])}", "",
                       f"{PAPER['speedup']:.2f}", "", ""]))
    return "\n".join(lines) + "\n"


def plot(rows):
    """Fraction over the product's time by the collective's; the paper's range as two lines."""
    ratios = [math.log2(r["gemm_us"] / r["collective_us"]) for r in rows]
    low, high = math.floor(min(ratios)), math.ceil(max(ratios))
    place = lambda ratio: (ratio - low) / (high - low)
    out = Plot("Fraction of a perfect overlap over product time / collective time, simulated", 1.1, 0.2,
               "time of the product over time of the collective", "fraction of a perfect overlap")
    for exponent in range(low, high + 1):
        out.tick(place(exponent), f"{2.0 ** exponent:g}")
    out.level(1, "a perfect overlap: 1")
    for name in (*SHAPES, VARIANT):
        own = sorted((ratio, r["fraction"]) for ratio, r in zip(ratios, rows) if r["machine"] == name)
        for ratio, fraction in own:
            out.dot(place(ratio), fraction, COLOURS[name], 0.5)
        # The line joins means over each factor of two.
        bins = {}
        for ratio, fraction in own:
            bins.setdefault(round(ratio), []).append((ratio, fraction))
        out.line([(place(statistics.mean(x for x, _ in b)), statistics.mean(y for _, y in b)) for _, b in sorted(bins.items())], COLOURS[name], name)
    for side in ("least", "most"):
        out.line([(0, PAPER[side]), (1, PAPER[side])], "#888", f"the paper's {side}: {PAPER[side]:.2f}", dashed=True)
    return out.svg()


def write_tables(result, check):
    wanted = {DOCUMENT: with_section(DOCUMENT.read_text(), MAKER, table(result["rows"])), PLOT: plot(result["rows"])}
    write_or_check(wanted, check, f"{MAKER} --table")


def differences(program, rows, largest):
    """Faults of what is committed; only problems of two ranks and an M N K of at most `largest` are simulated anew."""
    if [key_of(row) for row in rows] != list(problems()):
        yield "the problems are not those that are simulated"
        return
    for row in rows:
        if row["ranks"] > 2 or row["m"] * row["n"] * row["k"] > largest:
            continue
        now = row_of(program, *key_of(row))
        for key, value in now.items():
            # What is rounded may fall to the other side.
            same = math.isclose(value, row[key], rel_tol=1e-4, abs_tol=0.011) if isinstance(value, float) else value == row[key]
            if not same:
                yield f"{key_of(row)}: {key} is {value}, committed is {row[key]}"


def main():
    given = sys.argv[1:]
    check = given[1:] == ["--check"]
    if not given or given[1:] not in ([], ["--check"]) or (given[0].startswith("-") and given[0] != "--table"):
        sys.exit(__doc__)
    if given[0] == "--table":
        return write_tables(json.loads(RESULT.read_text()), check)
    if check:
        faults = list(differences(given[0], json.loads(RESULT.read_text())["rows"], CHECKED))
        sys.exit("\n".join(faults) + f"\nrun {MAKER} IMBREX" if faults else 0)
    result = simulate(given[0])
    write_rows(RESULT, result)
    write_tables(result, False)


if __name__ == "__main__":
    main()
