#!/usr/bin/env python3
"""Makes the tables of bench/results/embedding.md from what measure.py and `imbrex bench` have written to bench/results/embedding.

usage: document.py [--check]    --check: changes nothing, fails where the document is not up to date
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import ROOT, heading, line, with_section, write_or_check  # noqa: E402

DOCUMENT = ROOT / "bench/results/embedding.md"
RESULT = ROOT / "bench/results/embedding/lookup-1xh100.json"
STRATEGIES = ROOT / "bench/results/embedding/strategies-2xh100.json"
MAKER = "bench/embedding/document.py"


def lookups(result):
    """A line for each cell, with indices of 32 bits and of 64."""
    lines = heading(["tables", "rows", "batch", "indices", "ours, us", "TB/s", "FBGEMM, us", "FBGEMM over ours", "64 bits", "torch, us"])
    wide = {(r["tables"], r["rows"], r["batch"], r["zipf"]): r for r in result["cells"] if r["index"] == "int64"}
    for r in result["cells"]:
        if r["index"] == "int64":
            continue
        other = wide[(r["tables"], r["rows"], r["batch"], r["zipf"])]
        lines.append(line([
            r["tables"], r["rows"], str(r["batch"]), "Zipf" if r["zipf"] else "uniform", f"{r['ours']['us']:.0f}", f"{r['ours']['tb_s']:.2f}",
            f"{r['fbgemm']['us']:.0f}", f"{r['fbgemm']['us'] / r['ours']['us']:.3f}", f"{other['fbgemm']['us'] / other['ours']['us']:.3f}",
            f"{r['torch']['us']:.0f}" if "torch" in r else "",
        ]))
    return lines


def joint(result):
    """A line for each cell of --joint."""
    further = [cut for cut in result["joint"][0]["over_alone_by_slices"] if cut != "1"]
    lines = heading(["tables", "rows", "batch", "lookup alone, us", "as one of four ranks", "over alone", "lookup, copy, regroup", "over one of four",
                     *(f"over alone, {cut} slices" for cut in further)])
    for r in result["joint"]:
        lines.append(line([
            r["tables"], r["rows"], str(r["batch"]), f"{r['alone']['us']:.0f}", f"{r['joint']['us']:.0f}", f"{r['joint_over_alone']:.3f}",
            f"{r['in_sequence']['us']:.0f}", f"{r['in_sequence_over_joint']:.2f}", *(f"{r['over_alone_by_slices'][cut]:.3f}" for cut in further),
        ]))
    return lines


def strategies(result):
    """A line for each batch."""
    lines = heading(["batch", "sequential, us", "decomposed", "fused", "fused over sequential"])
    for r in result["rows"]:
        us = {way["strategy"]: way["us"] for way in r["strategies"]}
        lines.append(line([str(r["batch"]), *(f"{us[s]:.0f}" for s in ("sequential", "decomposed", "fused")),
                           f"{us['fused'] / us['sequential']:.2f}"]))
    return lines


def told_of(result):
    return (f"{result['machine']}, {result['date']}, commit {result['commit']}, `{result['command']}`, DLRMv2's tables in "
            f"{result['rows_type']}, with 500,000 rows at most:")


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    result, two = json.loads(RESULT.read_text()), json.loads(STRATEGIES.read_text())
    s = result["summary"]
    means = ", ".join(f"{s[k]['geometric_mean']:.3f} ({k}; at least {s[k]['least']:.3f})" for k in s if isinstance(s[k], dict))
    told = (f"{result['machine']}, {result['date']}, commit {result['commit']}, FBGEMM {result['fbgemm']}. FBGEMM's time over ours, "
            f"geometric means: {means}. The card reads {s['read_tb_s']:.2f} TB/s from one end of memory to the other. Left out: "
            f"{'; '.join(result['left_out'])}.")
    text = "\n".join([told, "", *lookups(result), "", "As one of four ranks, in one slice for each, peers always ready and on this GPU:", "",
                      *joint(result), "", told_of(two), "", *strategies(two)]) + "\n"
    write_or_check({DOCUMENT: with_section(DOCUMENT.read_text(), MAKER, text)}, sys.argv[1:] == ["--check"], MAKER)


if __name__ == "__main__":
    main()
