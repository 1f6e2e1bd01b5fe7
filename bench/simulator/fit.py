#!/usr/bin/env python3
"""Fits the constants of machines/4xh200.json to what bench/simulator/measure wrote on one GPU and on two.

usage: fit.py IMBREX [STEP...]    fits, with the program IMBREX (build/bin/imbrex), to bench/results/constants/{1,2} and
                                  bench/results/gpu-2xh200.json; in steps, in this order: one_gpu collectives links
                                  copies two_gpus
       fit.py IMBREX --measured FOLDER --out MACHINE.json [--gpu NAME] [--name NAME] [--quick]
                                  fits, from the same constants on, to FOLDER/{1,2} instead, in the steps whose files are
                                  there but two_gpus; --quick: to a part of the products, in a fifth of the time
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from prediction import library_us, measured_cells, simulated_us  # noqa: E402
from report import ROOT  # noqa: E402
import variants  # noqa: E402

MACHINE = ROOT / "machines/4xh200.json"
MEASURED = ROOT / "bench/results/constants"
GPU = "H200"
QUICK = False  # of the products, those of these rows and of four layers; fewer rounds
QUICK_M = (64, 512, 2048, 8192)
# The kernels' tiles: those that were measured with many rows, and those whose own benchmark is `tiles`.
LARGE = [variants.shape(128, columns) for columns in (128, 224, 256)]
PIECES = [(m, n) for m, n in variants.shapes() if 64 * 64 <= m * n <= 128 * 64]


def rounded(value):
    return float(f"{value:.4g}")


class Machine:
    """A machine file; constants by their places in it."""

    def __init__(self, path):
        self.json = json.loads(path.read_text())

    def node(self, place):
        section, *rest = place.split(".")
        if section == "tile":
            shape = tuple(map(int, rest[0].split("x")))
            return next(t for t in self.json["compute"]["tiles"] if (t["tile_m"], t["tile_n"]) == shape)[rest[1]]
        node = self.json[section]
        for key in rest:
            node = node[key]
        return node

    def value(self, place):
        return self.node(place)["value"]

    def set(self, place, value, source=None, why=None):
        if place.endswith(".sustained"):
            shape = tuple(map(int, place.split(".")[1].split("x")))
            tile = next(t for t in self.json["compute"]["tiles"] if (t["tile_m"], t["tile_n"]) == shape)
            tile.setdefault("sustained", {"unit": "ratio", "source": source, "from": why})
        self.node(place)["value"] = int(value) if value >= 1e6 or value == int(value) else value
        if source:
            self.node(place).update({"source": source, "from": why})

    def set_curve(self, key, points, why):
        """Sets a curve of bytes and seconds; equal bytes are averaged, seconds made not to decrease."""
        by_bytes = {}
        for size, seconds in points:
            by_bytes.setdefault(int(size), []).append(seconds)
        curve, last = [], 0
        for size in sorted(by_bytes):
            last = max(last, rounded(sum(by_bytes[size]) / len(by_bytes[size])))
            curve.append([size, last])
        self.json["collectives"][key] = {"unit": "[bytes, s]", "source": "measured", "from": why, "points": curve}

    def write(self, path):
        """For the program, which takes any layout."""
        path.write_text(json.dumps(self.json))

    def write_laid_out(self, program, path):
        """As the program writes machine files."""
        with tempfile.TemporaryDirectory() as folder:
            fitted = Path(folder) / "machine.json"
            self.write(fitted)
            subprocess.run([program, "machine", fitted, "--out", path], check=True, stdout=subprocess.DEVNULL)


class Row:
    """A measured time, and the plan that took it: of cuBLAS, or a fused one's knobs."""

    def __init__(self, problem, us, knobs=None):
        self.problem, self.us, self.knobs = problem, us, knobs

    def predicted_us(self, program, path, machine):
        if self.knobs:
            return simulated_us(program, path, self.problem, "fused", self.knobs)
        # One rank's exchange with itself is a copy behind the product, which was not measured with it.
        elements = self.problem["m"] * self.problem["n"]
        copy = machine.value("compute.launch_gap") + 4 * elements / machine.value("compute.memory_bandwidth")
        return library_us(program, path, self.problem, "push") - 1e6 * copy


def errors(program, machine, rows):
    """log(predicted / measured) of each row."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        path = Path(folder) / "machine.json"
        machine.write(path)
        times = list(pool.map(lambda row: row.predicted_us(program, path, machine), rows))
    return [math.log(time / row.us) for time, row in zip(times, rows)]


def solved(matrix, right):
    """By Gauss, with pivots."""
    rows = [list(row) + [value] for row, value in zip(matrix, right)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(len(rows)):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i])]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def product(x, y):
    return sum(a * b for a, b in zip(x, y))


def clamped(value, least, most):
    return min(max(value, least), most)


def fit(program, machine, rows, bounds, why):
    """Least squares of the errors over the logarithms of constants within their bounds: {place: (least, most)}. Gauss
    and Newton, with differences of 3 %, which are large against a wave's steps, and half steps where one is too long."""
    if not rows:
        sys.exit(f"nothing was measured for {', '.join(bounds)}")
    limits = [(math.log(least), math.log(most)) for least, most in bounds.values()]

    def at(point):
        for place, log in zip(bounds, point):
            machine.set(place, rounded(math.exp(log)), "fitted", why)
        return errors(program, machine, rows)

    point = [clamped(math.log(machine.value(place)), *limit) for place, limit in zip(bounds, limits)]
    found = at(point)
    for _ in range(2 if QUICK else 6):
        slopes = []
        for i, (_, most) in enumerate(limits):
            step = -0.03 if point[i] + 0.03 > most else 0.03
            slopes.append([(new - old) / step for new, old in zip(at(point[:i] + [point[i] + step] + point[i + 1:]), found)])
        # The little that is added keeps constants that no row tells apart where they are.
        little = 1e-3 * sum(product(s, s) for s in slopes) / len(slopes)
        normal = [[product(x, y) + (little if i == j else 0) for j, y in enumerate(slopes)] for i, x in enumerate(slopes)]
        change = solved(normal, [-product(s, found) for s in slopes])
        for part in (1, 0.5, 0.25, 0.1):
            new = [clamped(p + clamped(part * c, -0.7, 0.7), *limit) for p, c, limit in zip(point, change, limits)]
            left = at(new)
            if product(left, left) < product(found, found):
                break
        else:
            break
        gain = 1 - product(left, left) / product(found, found)
        point, found = new, left
        if gain < 1e-3:
            break
    at(point)
    sizes = [abs(math.expm1(e)) for e in found]
    print(f"{len(rows)} rows: mean error {sum(sizes) / len(sizes):.1%}, largest {max(sizes):.1%}, bias {sum(map(math.expm1, found)) / len(found):+.1%}")
    for place in bounds:
        print(f"  {place} = {machine.value(place):.4g}")


def bench(folder, name):
    rows = json.loads((MEASURED / folder / f"{name}.json").read_text())["rows"]
    if not QUICK:
        return rows
    layers = list(dict.fromkeys((row["problem"]["n"], row["problem"]["k"]) for row in rows))[:4]
    return [row for row in rows if row["problem"]["m"] in QUICK_M and (row["problem"]["n"], row["problem"]["k"]) in layers]


def tried(rows, wanted=lambda problem, knobs: True):
    return [Row(row["problem"], plan["us"], plan["knobs"]) for row in rows for plan in row["plans"]
            if "try" in plan and wanted(row["problem"], plan["knobs"])]


def products(rows, wanted):
    return [Row(row["problem"], row["cublas_us"]) for row in rows if wanted(row["problem"])]


def told(folder):
    """Where what was measured lies, for a machine file."""
    return str((MEASURED / folder).relative_to(ROOT)) if MEASURED.is_relative_to(ROOT) else f"{MEASURED.name}/{folder}"


def fit_one_gpu(program, machine):
    """Tiles, clocks and memory, from products without communication."""
    gemm, tiles = bench("1", "gemm"), bench("1", "tiles")
    why = f"fitted to products on one {GPU}, {told('1')}, by bench/simulator/fit.py"
    before = machine.value("compute.sm_rate.bf16")
    # With many rows the power that a shape of tiles draws sets the clock.
    hot = [f"tile.{m}x{n}.sustained" for m, n in LARGE]
    for place in hot:
        machine.set(place, machine.value("compute.sustained_ratio"), "fitted", why)
    for _ in range(1 if QUICK else 2):
        fit(program, machine, products(gemm, lambda p: p["m"] <= 64),
            {"compute.memory_bandwidth": (2e12, 4.8e12), "compute.launch_gap": (2e-7, 4e-6), "tile.64x64.prologue": (1e-7, 3e-6),
             "tile.64x128.prologue": (1e-7, 3e-6)}, why)
        rate = "compute.sm_rate.bf16"
        fit(program, machine, tried(gemm, lambda p, k: p["m"] >= 512),
            {rate: (5e12, 7.5e12), "compute.sustained_ratio": (0.6, 1), "compute.sustained_onset": (1e-4, 1e-2),
             **{place: (0.6, 1) for place in hot}, **{f"tile.{m}x{n}.efficiency": (0.7, 1) for m, n in LARGE},
             **{f"tile.{m}x{n}.prologue": (1e-7, 3e-6) for m, n in LARGE}}, why)
        fit(program, machine, tried(tiles),
            {f"tile.{m}x{n}.efficiency": (0.3, 1) for m, n in PIECES} | {f"tile.{m}x{n}.prologue": (1e-7, 3e-6) for m, n in PIECES}, why)
    # The efficiency of 64x32 is no fitted one: it keeps its rate.
    machine.set("tile.64x32.efficiency", rounded(machine.value("tile.64x32.efficiency") * before / machine.value(rate)))
    # A shape that is not measured lies between its neighbours, lest it seem the best of all.
    for key in ("efficiency", "prologue", "sustained"):
        both = [machine.value(f"tile.128x{columns}.{key}") for columns in (128, 224)]
        machine.set(f"tile.128x192.{key}", rounded(math.sqrt(both[0] * both[1])), "derived", "between 128x128 and 128x224")
    # The rate is that of the best tile shape.
    shapes = [f"tile.{t['tile_m']}x{t['tile_n']}.efficiency" for t in machine.json["compute"]["tiles"]]
    best = max(machine.value(place) for place in shapes)
    machine.set(rate, rounded(machine.value(rate) * best))
    for place in shapes:
        machine.set(place, rounded(machine.value(place) / best))
    machine.set("compute.sm_rate.fp16", machine.value(rate), "derived", "as bf16: the same tensor core rate")


def wire_bytes(problem):
    """What a rank puts on the wire; for an all-reduce twice a reduce-scatter's."""
    ranks = problem["ranks"]
    columns = problem["k"] if problem["operator"] == "all_gather_gemm" else problem["n"]
    ways = 2 if problem["operator"] == "gemm_all_reduce" else 1
    return ways * problem["m"] * columns * 2 * (ranks - 1) // ranks


def measure_collectives(machine):
    why = f"measured on 2 {GPU}s, {told('2')}"
    rows = json.loads((MEASURED / "2/all_reduce.json").read_text())["rows"]
    # With two ranks a vector of n bytes puts as many on the wire, in one step as in two; `auto` takes one up to 8 MiB.
    times = {name: [(row["bytes"], 1e-6 * row["microseconds"][name]) for row in rows if name in row["microseconds"]]
             for name in ("auto", "two_shot", "nccl")}
    machine.set_curve("own_one_step", [p for p in times["auto"] if p[0] <= 8 << 20], f"{why}: one-shot all-reduce, in CUDA graphs")
    machine.set_curve("own_two_steps", times["two_shot"], f"{why}: two-shot all-reduce, in CUDA graphs")
    machine.set_curve("all_reduce", times["nccl"], f"{why}: NCCL's all-reduce, in CUDA graphs")
    measured = bench("2", "small") + bench("2", "gather") + bench("2", "scatter")
    for key, operator in {"all_gather": "all_gather_gemm", "reduce_scatter": "gemm_reduce_scatter", "all_to_all": "gemm_all_to_all"}.items():
        points = [(wire_bytes(row["problem"]), 1e-6 * (row["plans"][0]["us"] - row["cublas_us"])) for row in measured
                  if row["problem"]["operator"] == operator]
        machine.set_curve(key, points, f"{why}: cuBLAS and NCCL, less cuBLAS alone")


def measure_links(machine):
    """Takes the fastest way of storing to the peer, both GPUs at once."""
    lines = [line.split() for line in (MEASURED / "2/links.txt").read_text().splitlines() if "bulk copies" in line]
    best = max(float(words[-2]) for words in lines)
    machine.set("stores.bandwidth", best * 1e9, "measured",
                f"measured on 2 {GPU}s, {told('2')}/links.txt: TMA bulk stores from all SMs, both GPUs at once")


def fit_two_gpus(program, machine):
    """What stores to peers cost, from the fused plans that ran on two GPUs, where it shows."""
    why = "fitted to fused plans of up to 1024 rows on two H200s, bench/results/gpu-2xh200.json, by bench/simulator/fit.py"
    rows = [Row(record, us, record["knobs"]) for record, us in measured_cells("2xh200")
            if record["strategy"] == "fused" and record["op"] != "all_gather_gemm" and record["m"] <= 1024]
    # An SM's port carries 64 bytes a cycle.
    fit(program, machine, rows, {"stores.sm_bandwidth": (5e9, 1e11), "signals.fence": (1e-7, 2e-5)}, why)


def measure_copies(machine):
    """The time of more copies of as many bytes, where copies are what takes time."""
    row = bench("2", "copies")[0]
    rows = row["problem"]["m"] // row["problem"]["ranks"]
    times = sorted((rows // plan["knobs"]["comm_rows"], 1e-6 * plan["us"]) for plan in row["plans"] if "try" in plan)
    (few, short), (many, long) = times[-3], times[-1]
    slope = (long - short) / (many - few)
    flag = machine.value("copy_engine.flag")
    machine.set("copy_engine.fixed", rounded(max(slope - flag, 1e-7)), "measured",
                f"measured on 2 {GPU}s, {told('2')}/copies.json: {slope * 1e6:.1f} us a copy and flag, less the flag")


STEPS = {"one_gpu": fit_one_gpu, "collectives": lambda _, machine: measure_collectives(machine),
         "links": lambda _, machine: measure_links(machine), "copies": lambda _, machine: measure_copies(machine),
         "two_gpus": fit_two_gpus}


# What each step reads.
FILES = {"one_gpu": ("1/gemm.json", "1/tiles.json"), "collectives": ("2/all_reduce.json", "2/small.json", "2/gather.json", "2/scatter.json"),
         "links": ("2/links.txt",), "copies": ("2/copies.json",)}


def is_whole(path):
    """Whether it was written to its end."""
    try:
        text = path.read_text()
        return bool(text if path.suffix == ".txt" else json.loads(text))
    except (OSError, ValueError):
        return False


def main():
    global MEASURED, GPU, QUICK
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--out", type=Path, default=MACHINE)
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--name", default="fitted")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tuned-like", metavar="GPU", help="whose tuned plans serve, too")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"STEP '{min(unknown)}': it must be one of {', '.join(STEPS)}")
    if options.measured and (options.steps or options.out == MACHINE):
        parser.error("--measured takes the steps whose files are there, and --out")
    program, machine, steps = options.program, Machine(MACHINE), options.steps or STEPS
    if options.measured:
        MEASURED, GPU, QUICK = options.measured.resolve(), options.gpu, options.quick
        steps = [step for step, files in FILES.items() if all(is_whole(MEASURED / file) for file in files)]
        if not steps:
            sys.exit(f"{MEASURED}: nothing was measured that a step needs")
        print(f"steps: {', '.join(steps)}", flush=True)
        rest = "constants that no measurement of them tells are those of 4xh200"
        machine.json |= {"name": options.name, "about": f"{machine.json['devices']} {GPU}; {rest}", "gpus": [GPU]}
        if options.tuned_like:
            machine.json["tuned_like"] = options.tuned_like
    for step in STEPS:
        if step in steps:
            STEPS[step](program, machine)
    machine.write_laid_out(program, options.out)


if __name__ == "__main__":
    main()
