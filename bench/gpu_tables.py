#!/usr/bin/env python3
"""Makes the table and the plot of docs/cuda-executor.md from bench/results/gpu-4xh200.json.

usage: gpu_tables.py [--check]    --check: changes nothing, fails where the document or the plot is not up to date
       gpu_tables.py --merge OUT.json MACHINE IN.json...    joins outputs of `imbrex bench --json` into a result file
"""

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench/results/gpu-4xh200.json"
DOCUMENT = ROOT / "docs/cuda-executor.md"
PLOT = ROOT / "docs/gpu-4xh200.svg"
BEGIN, END = "<!-- made by bench/gpu_tables.py -->\n", "<!-- end -->\n"
COLOURS = {"all_gather_gemm": "#1b6ca8", "gemm_reduce_scatter": "#c0392b", "gemm_all_reduce": "#27864a", "gemm_all_to_all": "#8e5ea2"}


def rows_of(result):
    for row in result["rows"]:
        p = row["problem"]
        sequential, chosen = row["plans"][0], next(plan for plan in row["plans"] if plan["chosen"])
        roofline = max(row["cublas_us"], row["wire_us"])
        yield {"op": p["operator"], "m": p["m"], "n": p["n"], "k": p["k"], "roofline": roofline, "sequential": sequential["us"],
               "us": chosen["us"], "fraction": roofline / chosen["us"], "gain": sequential["us"] / chosen["us"], "plan": chosen["name"]}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def table(result):
    rows = list(rows_of(result))
    lines = ["| operator | M x N x K | roofline us | cuBLAS+NCCL us | Imbrex us | of the roofline | speed-up | plan |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(f"| {r['op']} | {r['m']} x {r['n']} x {r['k']} | {r['roofline']:.1f} | {r['sequential']:.1f} | {r['us']:.1f} "
                     f"| {r['fraction']:.2f} | {r['gain']:.2f} | {r['plan']} |")
    lines += ["", "Geometric means:", "", "| operator | cells | of the roofline | speed-up | slowest cell |", "|---|---|---|---|---|"]
    for op in dict.fromkeys(r["op"] for r in rows):
        own = [r for r in rows if r["op"] == op]
        lines.append(f"| {op} | {len(own)} | {geometric_mean(r['fraction'] for r in own):.3f} | {geometric_mean(r['gain'] for r in own):.3f} "
                     f"| {min(r['gain'] for r in own):.2f} |")
    lines.append(f"| all | {len(rows)} | {geometric_mean(r['fraction'] for r in rows):.3f} | {geometric_mean(r['gain'] for r in rows):.3f} "
                 f"| {min(r['gain'] for r in rows):.2f} |")
    return "\n".join(lines) + "\n"


def plot(result):
    """Roofline fraction over M, one dot a cell; the line joins an operator's geometric means."""
    rows = list(rows_of(result))
    low, high = math.log2(min(r["m"] for r in rows)), math.log2(max(r["m"] for r in rows))
    x = lambda m: 60 + 600 * (math.log2(m) - low) / max(high - low, 1)
    y = lambda f: 340 - 280 * f / 1.1
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 400" font-family="sans-serif" font-size="12">',
           '<rect width="880" height="400" fill="white"/>',
           '<text x="60" y="24" font-size="14">Fraction of the roofline over M, 4 H200s (dots: cells; lines: geometric means)</text>']
    for tick in range(0, 12, 2):
        out.append(f'<line x1="60" x2="660" y1="{y(tick / 10):.1f}" y2="{y(tick / 10):.1f}" stroke="#ddd"/>'
                   f'<text x="50" y="{y(tick / 10) + 4:.1f}" text-anchor="end">{tick / 10:.1f}</text>')
    for m in sorted({r["m"] for r in rows}):
        out.append(f'<text x="{x(m):.1f}" y="360" text-anchor="middle">{m}</text>')
    for i, op in enumerate(dict.fromkeys(r["op"] for r in rows)):
        colour, own = COLOURS[op], [r for r in rows if r["op"] == op]
        for r in own:
            out.append(f'<circle cx="{x(r["m"]):.1f}" cy="{y(r["fraction"]):.1f}" r="3" fill="{colour}" fill-opacity="0.5"/>')
        means = [(m, geometric_mean(r["fraction"] for r in own if r["m"] == m)) for m in sorted({r["m"] for r in own})]
        points = " ".join(f"{x(m):.1f},{y(f):.1f}" for m, f in means)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="680" y="{80 + 22 * i}" fill="{colour}">{op}</text>')
    return "\n".join(out) + "\n</svg>\n"


def merge(out, machine, paths):
    parts = [json.loads(Path(path).read_text()) for path in paths]
    rows = [row for part in parts for row in part["rows"]]
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    head = f' "machine": {json.dumps(machine)},\n "date": {json.dumps(parts[0]["date"])}'
    Path(out).write_text(f'{{\n{head},\n "rows": [\n{body}\n ]\n}}\n')


def main():
    if sys.argv[1:2] == ["--merge"] and len(sys.argv) > 4:
        return merge(sys.argv[2], sys.argv[3], sys.argv[4:])
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    result = json.loads(RESULT.read_text())
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    after = rest.split(END)[1]
    wanted = {DOCUMENT: before + BEGIN + table(result) + END + after, PLOT: plot(result)}
    for path, text in wanted.items():
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text() != text:
                sys.exit(f"{path.relative_to(ROOT)} does not match {RESULT.relative_to(ROOT)}; run bench/gpu_tables.py")
        else:
            path.write_text(text)


if __name__ == "__main__":
    main()
