#!/usr/bin/env python3
"""What the simulator says of embedding exchanges: fused plans beside sequential ones and what bounds them, on four H200s;
and on two hosts, with the messages between these.

usage: embedding.py TIMES            runs the program TIMES (build/bin/embedding_times), writes
                                     bench/results/embedding-simulated.json, the tables of bench/results/embedding.md and its plot
       embedding.py TIMES --check    changes nothing; fails where a row of the tables is simulated otherwise, or tables or plot
                                     differ
"""

import datetime
import json
import math
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report import ROOT, Plot, heading, line, with_section, write_or_check, write_rows  # noqa: E402

RESULT = ROOT / "bench/results/embedding-simulated.json"
DOCUMENT = ROOT / "bench/results/embedding.md"
PLOT = ROOT / "bench/results/embedding-speedups.svg"
MAKER = "bench/simulator/embedding.py"
EXCHANGES = ("NCCL of two", "NCCL of four", "370 GB/s")
DIMS = {32: "#b8860b", 64: "#27864a", 128: "#1b6ca8", 256: "#c0392b"}
BATCHES = {1024: "#8e5ea2", 4096: "#7f8c8d", 65536: "#16a2b8"}


def run(program, what):
    out = subprocess.run([program, what], check=True, capture_output=True, text=True).stdout
    return [json.loads(text) for text in out.splitlines()]


def table(rows):
    lines = heading(["tables", "type", "batch", "lookup, us", "wire, us", "fused, us", *(f"gain, {name}" for name in EXCHANGES)])
    cases = {}
    for row in rows:
        cases.setdefault((row["tables"], row["type"], row["batch"]), {})[row["exchange"]] = row
    for (tables, kind, batch), case in cases.items():
        any_row = case[EXCHANGES[0]]
        gains = (f"{case[name]['speedup']:.2f} of {case[name]['bound']:.2f}" for name in EXCHANGES)
        lines.append(line([tables, kind, f"{batch:,}", *(f"{any_row[key]:.0f}" for key in ("lookup_us", "wire_us", "fused_us")), *gains]))
    return "\n".join(lines) + "\n"


def hosts_table(rows):
    lines = heading(["machine", "tables", "rows a bag", "type", "batch", "sequential, us", "messages", "in stages, us", "messages",
                     "fused, us", "messages", "less"])
    for row in rows:
        times = (text for name in ("sequential", "staged", "fused") for text in (f"{row[f'{name}_us']:.0f}", str(row[f"{name}_messages"])))
        lines.append(line([row["machine"], row["tables"], str(row["pooling"]), row["type"], f"{row['batch']:,}", *times,
                           f"{row['less_percent']:.0f} %"]))
    return "\n".join(lines) + "\n"


def plot(rows):
    most = max(row["pooling"] for row in rows)
    picture = Plot("Fused over sequential, 32 tables on four H200s (simulated, fp16, NCCL of four), by rows a bag", 3, 0.5,
                   "rows a bag", "speed-up of fused over sequential")
    picture.level(1, "sequential: 1")

    def x(pooling):
        return math.log2(pooling) / math.log2(most)

    for pooling in sorted({row["pooling"] for row in rows}):
        picture.tick(x(pooling), pooling)

    def curve(dim, batch, colour, dashed):
        points = [(x(row["pooling"]), row["speedup"]) for row in rows if (row["dim"], row["batch"]) == (dim, batch)]
        picture.line(points, colour, f"dim {dim}, batch {batch:,}", dashed)

    for dim, colour in DIMS.items():
        curve(dim, 16384, colour, False)
    for batch, colour in BATCHES.items():
        curve(128, batch, colour, True)
    return picture.svg()


def differences(found, wanted):
    if len(found) != len(wanted):
        yield f"{len(found)} rows, and there were {len(wanted)}"
    for new, old in zip(found, wanted):
        for key in old:
            same = new[key] == old[key] if isinstance(old[key], str) else math.isclose(new[key], old[key], rel_tol=2e-3, abs_tol=0.11)
            if not same:
                yield f"{old['tables']} {old['type']} {old['batch']}: {key} is {new[key]}, and was {old[key]}"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    check = "--check" in sys.argv[1:]
    if len(arguments) != 1:
        sys.exit(__doc__)
    program = arguments[0]
    if check:
        result = json.loads(RESULT.read_text())
        changed = [text for what, key in (("dlrm", "rows"), ("hosts", "hosts")) for text in differences(run(program, what), result[key])]
        if changed:
            sys.exit("\n".join([*changed[:20], f"if that is meant, run {MAKER}"]))
    else:
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        result = {"what": "simulated times of embedding exchanges on 4xh200; lookup, wire and bound from its constants alone",
                  "commit": commit, "date": datetime.date.today().isoformat(), "command": f"{MAKER} build/bin/embedding_times",
                  "rows": run(program, "dlrm"), "sweep": run(program, "sweep"), "hosts": run(program, "hosts")}
        write_rows(RESULT, result)
    document = with_section(DOCUMENT.read_text(), MAKER, table(result["rows"]))
    document = with_section(document, f"{MAKER}, hosts", hosts_table(result["hosts"]))
    write_or_check({DOCUMENT: document, PLOT: plot(result["sweep"])}, check, MAKER)


if __name__ == "__main__":
    main()
