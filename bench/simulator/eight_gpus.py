#!/usr/bin/env python3
"""Predicts what eight H200s on one NVSwitch gain: the machine 4xh200 with eight devices. Next to it stands what four gain, as
predicted in the same way and as measured.

usage: eight_gpus.py IMBREX [--check]    makes the table of docs/eight-gpus.md with the program IMBREX (build/bin/imbrex);
                                         --check: changes nothing, fails where it is another
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from gpu_tables import RESULT, rows_of  # noqa: E402
from report import ROOT, heading, line, with_section, write_or_check  # noqa: E402

DOCUMENT = ROOT / "docs/eight-gpus.md"
MAKER = "bench/simulator/eight_gpus.py"
LAYERS = {"all_gather_gemm": (57344, 8192), "gemm_reduce_scatter": (8192, 28672), "gemm_all_reduce": (8192, 28672)}  # Llama 2 70B's
ROWS = (64, 1024, 8192)
RANKS = (4, 8)
TIME = re.compile(r": ([\d.]+) (us|ms|s)\b")
SCALE = {"us": 1, "ms": 1e3, "s": 1e6}


def ask(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def predicted_us(program, machine, op, m, ranks, strategy):
    n, k = LAYERS[op]
    out = ask(program, "simulate", op, "--m", str(m), "--n", str(n), "--k", str(k), "--ranks", str(ranks), "--machine", machine, "--strategy", strategy)
    found = TIME.search(out)
    return float(found[1]) * SCALE[found[2]]


def predictions(program):
    """(operator, M) -> for each number of ranks the time of cuBLAS and NCCL, and of what `auto` takes."""
    with tempfile.TemporaryDirectory() as folder:
        machine = str(Path(folder) / "8xh200.json")
        ask(program, "machine", "4xh200", "--name", "8xh200", "--devices", "8", "--out", machine)
        return {(op, m): [tuple(predicted_us(program, machine, op, m, ranks, strategy) for strategy in ("sequential", "auto")) for ranks in RANKS]
                for op in LAYERS for m in ROWS}


def table(found):
    measured = {(r["op"], r["m"], r["n"], r["k"]): r["gain"] for r in rows_of(json.loads(RESULT.read_text()))}
    lines = heading(["operator", "M", "four GPUs, measured", "four GPUs, predicted", "eight GPUs, predicted", "cuBLAS, then NCCL on eight", "Imbrex on eight"])
    for (op, m), (four, (sequential, auto)) in found.items():
        lines.append(line([f"`{op}`", str(m), f"{measured[op, m, *LAYERS[op]]:.2f}x", f"{four[0] / four[1]:.2f}x", f"{sequential / auto:.2f}x",
                           f"{sequential:.0f} us", f"{auto:.0f} us"]))
    return "\n".join(lines) + "\n"


def main(argv):
    if len(argv) not in (2, 3) or argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    write_or_check({DOCUMENT: with_section(DOCUMENT.read_text(), MAKER, table(predictions(argv[1])))}, argv[2:] == ["--check"], MAKER)


if __name__ == "__main__":
    main(sys.argv)
