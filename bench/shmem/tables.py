#!/usr/bin/env python3
"""Makes the tables of bench/results/shmem.md, and its plot, from what peers.py has written to bench/results/shmem-1xgpu.json, and the
table of bench/results/jacobi.md from what jacobi.py has written to bench/results/jacobi-1xh100.json.

usage: tables.py [--check]    --check: changes nothing, fails where the document is not up to date
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import jacobi  # noqa: E402
from report import ROOT, Plot, heading, line, with_section, write_or_check  # noqa: E402

DOCUMENT = ROOT / "bench/results/shmem.md"
RESULT = ROOT / "bench/results/shmem-1xgpu.json"
JACOBI_DOCUMENT = ROOT / "bench/results/jacobi.md"
JACOBI_RESULT = ROOT / "bench/results/jacobi-1xh100.json"
PLOT = ROOT / "bench/results/shmem-latency-1xgpu.svg"
MAKER = "bench/shmem/tables.py"
COLOURS = {"thread": "#1b6ca8", "warp": "#27864a", "block": "#c0392b", "packet": "#8e5ea2"}


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def theirs(row, key="us"):
    return row.get("nvshmem", {}).get(key)


def size(count):
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB" if count >= 1 << 10 else f"{count} B"


def small(rows):
    """Messages of 8 bytes: one way, until the call is complete, until it returns."""
    lines = heading(["call", "by a", "until", "ours, us", "NVSHMEM, us", "its over ours", "cycles", "NVSHMEM's"])
    until = {"latency": "the peer sees it", "complete": "it is complete", "issue": "it returns"}
    for row in rows:
        if row["bytes"] == 8 and row["measure"] in until:
            lines.append(line([f"`{row['call']}`", row["scope"], until[row["measure"]],
                               number(row["ours"]["us"], 3), number(theirs(row), 3), number(row.get("speed_up")),
                               number(row["ours"].get("cycles"), 0), number(theirs(row, "cycles"), 0)]))
    return lines


def bandwidths(rows):
    """GB/s of several blocks."""
    lines = heading(["call", "bytes", "blocks", "threads of each", "ours, GB/s", "NVSHMEM, GB/s", "ours over its"])
    for row in rows:
        if row["measure"] == "bandwidth":
            rate = row["bytes"] / 1000
            lines.append(line([f"`{row['call']}`", size(row["bytes"]), str(row["blocks"]), f"{row['threads']}{', wide' * (row['scope'] == 'wide')}",
                               number(rate / row["ours"]["us"], 1), number(rate / theirs(row) if theirs(row) else None, 1),
                               number(row.get("speed_up"))]))
    return lines


def rates(rows):
    """Millions of messages a second through a context a block."""
    timed = [row for row in rows if row["measure"] == "rate"]
    blocks = sorted({row["blocks"] for row in timed})
    lines = heading(["messages of 8 bytes, millions a second", *(f"{count} contexts" if count > 1 else "1 context" for count in blocks)])
    for call in dict.fromkeys(row["call"] for row in timed):
        for name, of in (("", lambda row: row["ours"]["us"]), (", NVSHMEM", theirs)):
            values = {row["blocks"]: of(row) for row in timed if row["call"] == call}
            if all(values.values()):
                lines.append(line([f"`{call}`{name}", *(number(count / values[count], 1) if count in values else "" for count in blocks)]))
    return lines


def plot(rows, gpu):
    """One way over the size of a put with its signal."""
    timed = [row for row in rows if row["measure"] == "latency" and row["call"] == "put_signal" and row["bytes"] <= 1 << 15]
    most = max(max(row["ours"]["us"], theirs(row) or 0) for row in timed)
    step = max(0.5, math.ceil(most / 8))
    out = Plot(f"put_signal, one way, us, over bytes: two PEs on one {gpu} (dashed: NVSHMEM)", math.ceil(most / step) * step, step,
               "bytes of the put", "microseconds, one way")
    sizes = sorted({row["bytes"] for row in timed})
    part = {count: i / max(1, len(sizes) - 1) for i, count in enumerate(sizes)}
    for count in sizes:
        out.tick(part[count], size(count))
    for scope in ("thread", "warp", "block"):
        mine = [row for row in timed if row["scope"] == scope]
        out.line([(part[row["bytes"]], row["ours"]["us"]) for row in mine], COLOURS[scope], f"a {scope}")
        if mine and all(theirs(row) for row in mine):
            out.line([(part[row["bytes"]], theirs(row)) for row in mine], COLOURS[scope], f"a {scope}, NVSHMEM", dashed=True)
    for row in rows:
        if row["measure"] == "latency" and row["call"] == "packet":
            out.dot(part[8], row["ours"]["us"], COLOURS["packet"])
            out.line([], COLOURS["packet"], "the packet")
    return out.svg()


def section(result):
    told = (f"Two PEs that are processes on one {result['gpu']}, under MPS with half of it each, {result['date']}; medians of "
            f"{result['turns']} turns, which NVSHMEM's calls take in the same way. Their memory is the same card's: these are times of "
            "calls, of fences and of the memory, and say nothing about links.")
    reached = heading(["to be reached", "is", "at most", ""])
    reached += [line([bar["bar"], number(bar["value"], 3), number(bar["most"], 3), "yes" if bar["met"] else "**no**"]) for bar in result["bars"]]
    rows = result["rows"]
    return "\n".join([told, "", *reached, "", *small(rows), "", f"![put_signal by size]({PLOT.name})", "", *bandwidths(rows), "", *rates(rows)]) + "\n"


def documents(result, document):
    """What is to be written, by path."""
    if result is None:
        return {DOCUMENT: with_section(document, MAKER, "Nothing has been measured yet.\n")}
    return {DOCUMENT: with_section(document, MAKER, section(result)), PLOT: plot(result["rows"], result["gpu"])}


def jacobi_section(result):
    """Microseconds a sweep of each way, how much faster in_kernel is, and what its blocks do."""
    told = (f"Four PEs that share one {result['gpu']} under MPS, {result['type']}, a residual every {result['residual_every']} sweeps, "
            f"{result['date']}; a sweep, medians of rounds in turn, and by how much `in_kernel` is faster:")  # fmt: skip
    blocks = [f"- {size}²: {what}" for size, what in result["blocks"].items()]
    return "\n".join([told, "", jacobi.table_of(result["rows"]), "`in_kernel` has", "", *blocks]) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else None
    wanted = documents(result, DOCUMENT.read_text())
    wanted[JACOBI_DOCUMENT] = with_section(JACOBI_DOCUMENT.read_text(), MAKER, jacobi_section(json.loads(JACOBI_RESULT.read_text())))
    write_or_check(wanted, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
