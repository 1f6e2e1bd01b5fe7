#!/usr/bin/env python3
"""Makes the tables and the plot of bench/results/gpu.md, and the summaries in README.md and docs/performance.md, from
bench/results/gpu-4xh200.json, gpu-2xh200.json, unseen-2xh200.json, e4m3-2xh200.json, e4m3-4xh200.json, and the runs of
`imbrex bench all` on H100s in bench/results/all.

usage: gpu_tables.py [--check]    --check: changes nothing, fails where the document or the plot is not up to date
       gpu_tables.py --merge OUT.json MACHINE IN.json...    joins outputs of `imbrex bench --json` or bench/peers_torch.py
"""

import itertools
import json
import math
import sys

from report import COLOURS, ROOT, Plot, geometric_mean, heading, line, merge, with_section, write_or_check

RESULT = ROOT / "bench/results/gpu-4xh200.json"
ON_TWO = ROOT / "bench/results/gpu-2xh200.json"
UNSEEN = ROOT / "bench/results/unseen-2xh200.json"
E4M3 = ROOT / "bench/results/e4m3-4xh200.json"
E4M3_ON_TWO = ROOT / "bench/results/e4m3-2xh200.json"
DOCUMENT = ROOT / "bench/results/gpu.md"
SUMMARY = ROOT / "docs/performance.md"
README = ROOT / "README.md"
RUNS = ROOT / "bench/results/all"
PLOT = ROOT / "bench/results/gpu-4xh200.svg"
MAKER = "bench/gpu_tables.py"
SEQUENTIAL = "cuBLAS+NCCL"  # among torch's ways
BANDS = (("", 0, math.inf), (", M up to 256", 0, 256), (", M from 512 to 1024", 512, 1024), (", M from 2048 on", 2048, math.inf))


def rows_of(result):
    """cuBLAS+NCCL: the faster of Imbrex' own and torch's, where that was measured; cuBLAS alone takes no longer."""
    for row in result["rows"]:
        p, peers = row["problem"], row.get("peers") or {}
        chosen = next(plan for plan in row["plans"] if plan["chosen"])
        sequential = min(row["plans"][0]["us"], peers.get(SEQUENTIAL, math.inf))
        roofline = max(min(row["cublas_us"], sequential), row["wire_us"])
        torch = min(peers.items(), key=lambda peer: peer[1]) if peers else None
        best = min(sequential, torch[1] if torch else math.inf)
        yield {"op": p["operator"], "type": p["type"], "m": p["m"], "n": p["n"], "k": p["k"], "roofline": roofline, "sequential": sequential,
               "torch": torch, "us": chosen["us"], "fraction": roofline / chosen["us"], "gain": sequential / chosen["us"],
               "best_gain": best / chosen["us"], "plan": chosen["name"]}


def least(gains):
    """Rounded down: a cell that is slower shows."""
    return f"{math.floor(min(gains) * 100) / 100:.2f}"


def table(result):
    """With the peers' columns where the result has any."""
    rows = list(rows_of(result))
    peers = any(r["torch"] for r in rows)
    torch = lambda r: f"{r['torch'][1]:.1f} ({r['torch'][0]})" if r["torch"] else "-"
    lines = heading(["operator", "M x N x K", "roofline us", "cuBLAS+NCCL us"] + ["torch us"] * peers
                    + ["Imbrex us", "of the roofline", "speed-up"] + ["over the best of both"] * peers + ["plan"])
    for r in rows:
        lines.append(line([r["op"], f"{r['m']} x {r['n']} x {r['k']}", f"{r['roofline']:.1f}", f"{r['sequential']:.1f}"]
                          + [torch(r)] * peers + [f"{r['us']:.1f}", f"{r['fraction']:.2f}", f"{r['gain']:.2f}"]
                          + [f"{r['best_gain']:.2f}"] * peers + [r["plan"]]))
    lines += ["", "Geometric means:", ""]
    lines += heading(["operator", "cells", "of the roofline", "speed-up", "slowest cell"] + ["over the best of both", "slowest cell of these"] * peers)
    ops = list(dict.fromkeys(r["op"] for r in rows)) + ["all"]
    for (band, from_m, to_m), op in itertools.product(BANDS, ops):
        own = [r for r in rows if op in (r["op"], "all") and from_m <= r["m"] <= to_m]
        if not own:
            continue
        cells = [op + band, str(len(own)), f"{geometric_mean(r['fraction'] for r in own):.3f}", f"{geometric_mean(r['gain'] for r in own):.3f}",
                 least(r["gain"] for r in own)]
        if peers:
            cells += [f"{geometric_mean(r['best_gain'] for r in own):.3f}", least(r["best_gain"] for r in own)]
        lines.append(line(cells))
    return "\n".join(lines) + "\n"


def sums(result, slowest):
    """Without the cells, except a given number of the slowest."""
    rows = list(rows_of(result))
    lines = heading(["type", "operator", "cells", "of the roofline", "speed-up", "slowest cell"])
    for kind in dict.fromkeys(r["type"] for r in rows):
        of_type = [r for r in rows if r["type"] == kind]
        for op in list(dict.fromkeys(r["op"] for r in of_type)) + ["all"]:
            own = [r for r in of_type if op in (r["op"], "all")]
            lines.append(line([kind, op, str(len(own)), f"{geometric_mean(r['fraction'] for r in own):.3f}",
                               f"{geometric_mean(r['gain'] for r in own):.3f}", least(r["gain"] for r in own)]))
    lines += ["", "The slowest:", ""]
    lines += heading(["type", "operator", "M x N x K", "roofline us", "cuBLAS+NCCL us", "Imbrex us", "speed-up", "plan"])
    for r in sorted(rows, key=lambda r: r["gain"])[:slowest]:
        lines.append(line([r["type"], r["op"], f"{r['m']} x {r['n']} x {r['k']}", f"{r['roofline']:.1f}", f"{r['sequential']:.1f}",
                           f"{r['us']:.1f}", f"{r['gain']:.2f}", r["plan"]]))
    return "\n".join(lines) + "\n"


def of_run(folder):
    """What a run of `imbrex bench all` measured of GEMMs with collectives, to the end, as a result."""
    about = json.loads((folder / "run.json").read_text())
    entries = json.loads((folder / "topics/gemm.json").read_text())["measurements"]
    rows = [row for name, entry in entries.items() if name.startswith("gemm-") and entry["status"] == "done" for row in entry["result"]["rows"]]
    return {"date": about["date"], "commit": about["commit"], "rows": rows}


OVER_SEQUENTIAL = "speed-up over cuBLAS + NCCL"
OVER_BOTH = "speed-up over the faster of cuBLAS + NCCL and PyTorch's fused operators"


def gains(rows):
    """Cells: how many sizes, and what README says of their gains; without peers' times, of one gain only."""
    said = lambda key: f"{geometric_mean(r[key] for r in rows):.2f}x (slowest {least(r[key] for r in rows)}x)"
    return [str(len(rows)), said("gain"), said("best_gain") if any(r["torch"] for r in rows) else "not measured"]


def layers_of(result):
    """Rows of models' layers: without squares."""
    return [r for r in rows_of(result) if not r["m"] == r["n"] == r["k"]]


def by_operator(result):
    """Pairs of a name and its rows; those of all come last."""
    rows = layers_of(result)
    for op in [*dict.fromkeys(r["op"] for r in rows), "all"]:
        yield f"`{op}`" if op != "all" else "all", [r for r in rows if op in (r["op"], "all")]


def sum_of(result, others):
    """README's tables: an operator a row where plans were tuned; where not, with the cards. `others`: (cards, result, whether by operator)."""
    rows = layers_of(result)
    lines = [f"**Tuned plans, four H200s**, commit {result.get('commit', 'unknown')}, {result['date']}: geometric means over layers of Llama and GPT-3, "
             f"{min(r['m'] for r in rows)} to {max(r['m'] for r in rows)} rows.", ""]
    lines += heading(["operator", "sizes", OVER_SEQUENTIAL, OVER_BOTH])
    lines += [line([name, *gains(rows)]) for name, rows in by_operator(result)]
    runs = "; ".join(f"{cards}, commit {other.get('commit', 'unknown')}, {other['date']}" for cards, other, _ in others)
    lines += ["", f"**Plans that were not tuned**: {runs}. H100s ran plans that were tuned on H200s. NVLink multicast was off in all runs.", ""]
    lines += heading(["cards", "operator", "sizes", OVER_SEQUENTIAL, OVER_BOTH])
    for cards, other, apart in others:
        lines += [line([cards, name, *gains(rows)]) for name, rows in by_operator(other) if apart or name == "all"]
    return "\n".join(lines) + "\n"


def summary(result):
    """By operator and M."""
    lines = heading(["operator", "M", "sizes", "of the roofline", "over cuBLAS + NCCL", "over the faster of that and PyTorch's fused operators"])
    rows = layers_of(result)
    names = ("all", "up to 256", "512 and 1024", "2048 and more")
    for op in [*dict.fromkeys(r["op"] for r in rows), "all"]:
        for name, (_, from_m, to_m) in list(zip(names, BANDS, strict=True))[1:] if op != "all" else [(names[0], BANDS[0])]:
            own = [r for r in rows if op in (r["op"], "all") and from_m <= r["m"] <= to_m]
            if not own:
                continue
            lines.append(line([f"`{op}`" if op != "all" else op, name, str(len(own))]
                              + [f"{geometric_mean(r[key] for r in own):.2f}" for key in ("fraction", "gain", "best_gain")]))
    return "\n".join(lines) + f"\n\n{result['machine']}, {result['date']}, commit {result.get('commit', 'unknown')}.\n"


def plot(result):
    """Speed-up over M, one dot a size; the line joins an operator's geometric means. What PyTorch's best takes has a line, too."""
    rows = [r for r in rows_of(result) if not r["m"] == r["n"] == r["k"]]
    sizes = sorted({r["m"] for r in rows})
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    x = lambda m: (math.log2(m) - low) / max(high - low, 1)
    most = math.ceil(4 * max(r["gain"] for r in rows)) / 4
    out = Plot("Speed-up over cuBLAS, then NCCL, on 4 H200s (dots: sizes of layers; lines: geometric means)", most, 0.25, "M, rows of A",
               "speed-up over cuBLAS, then NCCL", "{:.2f}")
    for m in sizes:
        out.tick(x(m), m)
    out.level(1, "cuBLAS, then NCCL: 1")
    for op in dict.fromkeys(r["op"] for r in rows):
        own = [r for r in rows if r["op"] == op]
        for r in own:
            out.dot(x(r["m"]), r["gain"], COLOURS[op], 0.5, f"{op} {r['m']} x {r['n']} x {r['k']}: {r['gain']:.2f}")
        out.line([(x(m), geometric_mean(r["gain"] for r in own if r["m"] == m)) for m in sorted({r["m"] for r in own})], COLOURS[op], op)
    # The faster of cuBLAS + NCCL and PyTorch's fused operators: at least 1.
    peer = lambda m: geometric_mean(r["gain"] / r["best_gain"] for r in rows if r["m"] == m)
    out.line([(x(m), peer(m)) for m in sizes], "#888", "PyTorch's best, all operators", dashed=True)
    return out.svg()


def main():
    if sys.argv[1:2] == ["--merge"] and len(sys.argv) > 4:
        return merge(sys.argv[2], sys.argv[3], sys.argv[4:])
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    result, unseen = json.loads(RESULT.read_text()), json.loads(UNSEEN.read_text())
    document = with_section(DOCUMENT.read_text(), MAKER, table(result))
    document = with_section(document, f"{MAKER} 2xh200", table(json.loads(ON_TWO.read_text())))
    document = with_section(document, f"{MAKER} unseen", sums(unseen, 8))
    document = with_section(document, f"{MAKER} e4m3", table(json.loads(E4M3.read_text())))
    document = with_section(document, f"{MAKER} e4m3 2xh200", table(json.loads(E4M3_ON_TWO.read_text())))
    readme = with_section(README.read_text(), MAKER, sum_of(result, [
        ("4 H100", of_run(RUNS / "4xh100"), True), ("2 H100", of_run(RUNS / "2xh100"), False), ("2 H200", unseen, False)]))
    claim = f"{geometric_mean(r['gain'] for r in layers_of(result)):.2f} times as fast as cuBLAS and NCCL"
    if claim not in " ".join(readme.split()):
        sys.exit(f"README.md does not say '{claim}', which is what {RESULT.name} holds")
    performance = with_section(SUMMARY.read_text(), MAKER, summary(result))
    wanted = {DOCUMENT: document, SUMMARY: performance, README: readme, PLOT: plot(result)}
    write_or_check(wanted, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
