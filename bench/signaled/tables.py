#!/usr/bin/env python3
"""
Tables in Markdown of what the benchmarks here measured, for docs/dev/derivations/signaled.md: tables.py JSON...

The files are those of put_back, signaled_product and signaled_predictor; each says by its keys whose it is.
"""

import json
import math
import sys


def mean(values):
    """The arithmetic one."""
    values = list(values)
    return sum(values) / len(values)


def geometric(values):
    """The geometric mean."""
    return math.exp(mean(math.log(v) for v in values))


def table(head, rows):
    """Lines of Markdown."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"


def put_back(data):
    """Norms through the map."""
    rows = []
    for r in data["rows"]:
        t = r["microseconds"]
        rows.append(
            (
                f"{r['rows']} x {r['cols']}",
                r["type"],
                r["width"],
                f"{t['mapped']:.1f}",
                f"{t['in_rows']:.1f}",
                f"{t['copy_and_norm']:.1f}",
                f"{t['mapped'] / t['in_rows']:.3f}",
                f"{t['copy_and_norm'] / t['mapped']:.2f}",
            )
        )
    head = (
        "matrix",
        "type",
        "columns of a block",
        "norm through the map, µs",
        "of rows",
        "copy, then norm",
        "map over rows",
        "copy and norm over map",
    )
    yield from table(head, rows)
    yield ""
    yield (
        f"Geometric means: {data['mapped_over_rows']:.3f} of the norm of rows (at most {data['worst']:.3f}), and "
        f"{data['copy_and_norm_over_mapped']:.2f} times as fast as a copy and then the norm."
    )


def product(data):
    """Products under signals."""
    rows = []
    for r in data["rows"]:
        t = r["microseconds"]
        rows.append(
            (
                r["type"],
                f"{r['m']} x {r['n']} x {r['k']}",
                f"{r['tile_m']} x {r['tile_n']}",
                f"{t['signals']:.1f}",
                f"{t['plain']:.1f}",
                f"{t['cublas']:.1f}",
                f"{r['ratio']:.3f}",
            )
        )
    yield from table(
        ("type", "M x N x K", "tile", "under signals, µs", "plain", "cuBLASLt, all SMs", "signals over plain"), rows
    )
    yield ""
    yield f"Geometric mean of signals over plain, {data['kept_free']} SMs kept free: {data['mean']:.4f}."


def predictor(data):
    """Predicted and measured times, and the search beside all partitions."""
    by_curve = {}
    for r in data["predictions"]:
        by_curve.setdefault(r["curve"], []).append(r["microseconds"])
    rows = []
    for curve, times in [*by_curve.items(), ("all", [t for ts in by_curve.values() for t in ts])]:
        errors = [abs(t["predicted"] / t["measured"] - 1) for t in times]
        single = [t["one_wave_groups"] / t["measured"] for t in times if "one_wave_groups" in t]
        rows.append(
            (
                curve,
                len(times),
                f"{100 * mean(errors):.2f} %",
                f"{100 * max(errors):.1f} %",
                f"{geometric(single):.3f}" if single else "",
                f"{sum(s <= 1 for s in single)} of {len(single)}",
            )
        )
    yield from table(("curve", "plans", "mean error", "largest", "groups of one wave over searched", "no slower"), rows)
    yield ""
    searches = []
    for r in data["searches"]:
        t = r["microseconds"]
        searches.append(
            (
                f"{r['m']} x {r['n']} x {r['k']}",
                r["waves"],
                ", ".join(map(str, r["searched"])),
                ", ".join(map(str, r["best"])),
                f"{t['searched']:.1f}",
                f"{t['best']:.1f}",
                f"{100 * t['best'] / t['searched']:.1f} %",
            )
        )
    yield from table(("M x N x K", "waves", "searched", "best of all", "searched, µs", "best", "as fast"), searches)
    if searches:
        fractions = [r["microseconds"]["best"] / r["microseconds"]["searched"] for r in data["searches"]]
        yield ""
        yield f"In the mean {100 * mean(fractions):.2f} % as fast as the best, at least {100 * min(fractions):.2f} %."


def tables(data):
    """Those of a file."""
    if "predictions" in data:
        return predictor(data)
    return put_back(data) if "mapped_over_rows" in data else product(data)


def main(paths):
    """Prints the tables of each file."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        print(f"On one {data['gpu']}:\n")
        print("\n".join(tables(data)), "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
