#!/usr/bin/env python3
"""Plots what single knobs of fused plans do, from bench/results/knobs-4xh200.json: tile order, who moves the data, and
how many rows travel at once, from a whole shard down to one tile.

usage: knob_plots.py [--check]     makes bench/results/knob-order-4xh200.svg, bench/results/knob-transport-4xh200.svg and
                                   bench/results/knob-comm-rows-4xh200.svg; --check: changes nothing, fails where they differ
       knob_plots.py --commands    prints the commands that measure, on 4 GPUs, and make the result file
"""

import json
import sys

from report import COLOURS, ROOT, Plot, write_or_check

RESULT = ROOT / "bench/results/knobs-4xh200.json"
MAKER = "bench/knob_plots.py"
RANKS, TILE = 4, 128
PROBLEMS = [("all_gather_gemm", 1024, 57344, 8192), ("all_gather_gemm", 4096, 57344, 8192),
            ("gemm_reduce_scatter", 1024, 8192, 28672), ("gemm_reduce_scatter", 4096, 8192, 28672)]
SHIFTS = (0, 2, 4, 8, 12, 24)
AXES = {"order": "order of tiles; shift: own tiles run so many columns later", "transport": "who moves the data",
        "comm-rows": "rows that travel at once"}
SHORT = {"owner_major": "owner", "column_major": "column"}
TITLES = {"order": "Order of the tiles", "transport": "Who moves the data", "comm-rows": "Rows that travel at once"}


def tries(op, m):
    """What each plot needs of a problem: {plot: [changes of knobs]}."""
    columns = [f"order=column_major,own_shift={shift}" for shift in SHIFTS]
    wanted = {"order": ["order=naive", "order=owner_major"] + columns, "transport": [f"transport={t}" for t in ("store", "push", "pull")]}
    if op == "all_gather_gemm":  # results travel tile by tile
        rows, wanted["comm-rows"] = m // RANKS, []
        while rows >= TILE:
            wanted["comm-rows"].append(f"transport=push,comm_rows={rows}")
            rows //= 2
    return wanted


def commands():
    """Shell commands, in order."""
    lines, parts = [], []
    for i, (op, m, n, k) in enumerate(PROBLEMS):
        parts.append(f"knobs-{i}.json")
        options = "".join(f" --try {change}" for changes in tries(op, m).values() for change in changes)
        lines.append(f"build/bin/imbrex bench --ops {op} --m {m} --layers {n}x{k} --json {parts[-1]}{options}")
    return lines + [f'bench/gpu_tables.py --merge {RESULT.relative_to(ROOT)} "4 NVIDIA H200" {" ".join(parts)}', MAKER]


def plot(name, result):
    """Fraction of the roofline, one line a problem; gaps where the executor refused a plan."""
    series = []
    for row in result["rows"]:
        p = row["problem"]
        wanted = tries(p["operator"], p["m"]).get(name, [])
        times = {plan["try"]: plan["us"] for plan in row["plans"] if "try" in plan}
        roofline = max(row["cublas_us"], row["wire_us"])
        points = [(change, roofline / times[change] if change in times else None) for change in wanted]
        if any(value for _, value in points):
            series.append((p, points))
    labels = list(dict.fromkeys(change for _, points in series for change, _ in points))
    if name == "comm-rows":
        labels.sort(key=lambda change: -int(change.split("=")[-1]))
    place = {change: i / max(len(labels) - 1, 1) for i, change in enumerate(labels)}
    out = Plot(f"{TITLES[name]}: fraction of the roofline, {RANKS} H200s", 1.1, 0.2,
               AXES[name], "fraction of the roofline")
    out.level(1, "the roofline: 1")
    for change in labels:
        values = [part.split("=")[1] for part in change.split(",")]
        out.tick(place[change], values[-1] if name == "comm-rows" else SHORT.get(values[0], values[0]))
        if name == "order" and len(values) > 1:
            out.tick(place[change], f"shift {values[1]}", row=1)
    for i, (p, points) in enumerate(series):
        colour = COLOURS[p["operator"]]
        known = [(place[change], value) for change, value in points if value]
        dashed = any(other["operator"] == p["operator"] for other, _ in series[:i])
        for point in known:
            out.dot(*point, colour, 0.4 if dashed else 1)
        # Only rows are in an order that a line may follow.
        out.line(known if name == "comm-rows" else [], colour, f"{p['operator']} M {p['m']}{' (pale)' if dashed else ''}", dashed)
    return out.svg()


def main():
    if sys.argv[1:] == ["--commands"]:
        return print("\n".join(commands()))
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not RESULT.exists():
        sys.exit(f"{RESULT.relative_to(ROOT)} does not exist; {MAKER} --commands tells how to make it")
    result = json.loads(RESULT.read_text())
    wanted = {ROOT / f"bench/results/knob-{name}-4xh200.svg": plot(name, result) for name in TITLES}
    write_or_check(wanted, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
