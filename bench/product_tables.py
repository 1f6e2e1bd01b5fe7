#!/usr/bin/env python3
"""Makes the table of the product alone in bench/results/gpu.md from bench/results/product-h200.json.

usage: product_tables.py [--check]    --check: changes nothing, fails where the document is not up to date
       product_tables.py --merge OUT.json MACHINE IN.json...    joins outputs of `imbrex bench --ranks 1 --try ... --json`
"""

import json
import sys

from report import ROOT, geometric_mean, heading, line, merge, with_section, write_or_check

RESULT = ROOT / "bench/results/product-h200.json"
DOCUMENT = ROOT / "bench/results/gpu.md"
MAKER = "bench/product_tables.py"


def tile_of(plan):
    """The tile in a plan's name and, where K is shared or cut, into how many parts."""
    words = plan.split()
    if "sharing" in words:
        return f"{words[1]}, K shared"
    return words[1] + (f", K in {words[words.index('split') + 1]}" if "split" in words else "")


def rows_of(result):
    """For each problem, cuBLAS and the fastest of the fused plans timed: with one rank, both are products."""
    for row in result["rows"]:
        p = row["problem"]
        best = min((plan for plan in row["plans"] if plan["name"].startswith("fused")), key=lambda plan: plan["us"])
        chosen = next(plan for plan in row["plans"] if plan["chosen"])
        yield {"m": p["m"], "n": p["n"], "k": p["k"], "cublas": row["cublas_us"], "us": best["us"],
               "ratio": row["cublas_us"] / best["us"], "chosen": row["cublas_us"] / chosen["us"], "tile": tile_of(best["name"])}


def table(result):
    rows = list(rows_of(result))
    lines = heading(["M x N x K", "cuBLAS us", "Imbrex us", "cuBLAS / Imbrex", "tile"])
    for r in rows:
        lines.append(line([f"{r['m']} x {r['n']} x {r['k']}", f"{r['cublas']:.1f}", f"{r['us']:.1f}", f"{r['ratio']:.2f}", r["tile"]]))
    lines += ["", "Geometric means of cuBLAS / Imbrex; the fastest of several is so by luck, too, the plan chosen beforehand is not:", ""]
    lines += heading(["M", "products", "mean", "least", "chosen beforehand", "least"])
    for name, least in (("all", 0), ("from 512 on", 512), ("from 2048 on", 2048)):
        own = [r for r in rows if r["m"] >= least]
        cells = [f(r[key] for r in own) for key in ("ratio", "chosen") for f in (lambda x: f"{geometric_mean(x):.3f}", lambda x: f"{min(x):.2f}")]
        lines.append(line([name, str(len(own)), *cells]))
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:2] == ["--merge"] and len(sys.argv) > 4:
        return merge(sys.argv[2], sys.argv[3], sys.argv[4:])
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    document = with_section(DOCUMENT.read_text(), MAKER, table(json.loads(RESULT.read_text())))
    write_or_check({DOCUMENT: document}, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
