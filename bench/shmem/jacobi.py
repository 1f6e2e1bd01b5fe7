#!/usr/bin/env python3
"""Times `imbrex run jacobi` in every way on PEs that share one GPU under MPS, or have one each, sizes and ways in turn.

usage: jacobi.py [--program IMBREX] [--out FILE] [--sizes N...] [--ways NAME...] [--ranks R] [--type fp32|fp64]
                 [--rounds N] [--repeat N] [--check] [--gpus N]

PEs share out --gpus, one without it. Where there are more PEs, it starts MPS in a folder of its own unless CUDA_MPS_PIPE_DIRECTORY names one that runs. A row is a size: the median over
rounds of microseconds a sweep, and by how much `in_kernel` is faster than each other way. Exits 1 where one is less
than is asked for (up to 1024, 1.4 times kernel boundaries and 1.15 times the ring; at 2048, 1.15 times kernel
boundaries; 1.0 times every way), or where --check finds a wrong element or residual.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mps import mps

WAYS = ["kernel_boundaries", "graph", "overlapped", "ring", "in_kernel"]
SIZES = [256, 512, 1024, 2048, 4096]


def asked_for(way: str, size: int) -> float:
    """How many times faster than `way` in_kernel is to be."""
    if way == "ring" and size <= 1024:
        return 1.15
    if way != "kernel_boundaries" or size > 2048:
        return 1.0
    return 1.4 if size <= 1024 else 1.15


def sweeps_of(size: int, way: str) -> int:
    """Enough for tens of milliseconds. By rings a sweep may take a hundred times as long."""
    return 200 if way == "ring" or size > 2048 else 2000 if size <= 1024 else 600


def per_gpu(arguments: argparse.Namespace) -> int:
    """PEs that share a GPU."""
    return -(-int(arguments.ranks) // int(arguments.gpus))


def run(
    arguments: argparse.Namespace, environment: dict[str, str], size: int, way: str, *more: object
) -> dict[str, Any]:
    """One job's results."""
    command = [
        arguments.program,
        "run",
        "jacobi",
        "--device",
        "cuda",
        "--ranks",
        arguments.ranks,
        "--ranks-per-gpu",
        per_gpu(arguments),
        "--size",
        size,
        "--type",
        arguments.type,
        "--way",
        way,
        "--wait-limit",
        20,
        *more,
        "--json",
        "-",
    ]
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=240)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def microseconds(result: dict[str, Any]) -> float:
    """A sweep's; the first run is left out, which loads and warms."""
    seconds = result["seconds"][1:] or result["seconds"]
    return float(statistics.median(seconds)) / float(result["problem"]["sweeps"]) * 1e6


def row_of(size: int, rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and ratios whose median is over rounds, each of its own turn."""
    row: dict[str, Any] = {"size": size, "us": {}, "rounds": rounds, "ratios": {}, "short": []}
    for way, values in rounds.items():
        row["us"][way] = statistics.median(values)
        if way == "in_kernel" or "in_kernel" not in rounds:
            continue
        ratios = [other / own for other, own in zip(values, rounds["in_kernel"], strict=True)]
        row["ratios"][way] = {"median": statistics.median(ratios), "least": min(ratios), "asked": asked_for(way, size)}
        if row["ratios"][way]["median"] < asked_for(way, size):
            row["short"].append(way)
    return row


def table_of(rows: list[dict[str, Any]]) -> str:
    """In Markdown, as bench/results/jacobi.md has it."""
    ways = list(rows[0]["us"])
    others = list(rows[0]["ratios"])
    lines = [
        f"| a PE | {' | '.join(f'`{way}`' for way in ways)} | {' | '.join(f'over `{way}`' for way in others)} |",
        "|" + "---|" * (1 + len(ways) + len(others)),
    ]
    for row in rows:
        cells = [f"{row['us'][way]:.2f} us" for way in ways] + [f"{row['ratios'][way]['median']:.2f}" for way in others]
        lines.append(f"| {row['size']}² | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--program", default="build/bin/imbrex")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--type", choices=["fp32", "fp64"], default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=6)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    wrong = []
    times: dict[int, dict[str, list[float]]] = {size: {way: [] for way in arguments.ways} for size in arguments.sizes}
    blocks: dict[int, str] = {}
    with mps() if per_gpu(arguments) > 1 else contextlib.nullcontext(dict(os.environ)) as environment:
        for size in arguments.sizes if arguments.check else []:
            for way in arguments.ways:
                few = ["--sweeps", 12 if size > 1024 else 203, "--residual-every", 4, "--verify"]
                result = run(arguments, environment, size, way, *few)
                print(f"{size} {way}: {'right' if result['verified'] else 'WRONG: ' + result['message']}", flush=True)
                if not result["verified"]:
                    wrong.append(f"{size} {way}")
        doctor = subprocess.run(
            [arguments.program, "doctor", "--json", "-"], capture_output=True, text=True, env=environment
        )
        gpus = json.loads(doctor.stdout)["gpus"]
        rows: list[dict[str, Any]] = []
        result = {
            "date": datetime.date.today().isoformat(),
            "gpu": gpus[0]["name"] if gpus else None,
            "ranks": arguments.ranks,
            "ranks_per_gpu": per_gpu(arguments),
            "type": arguments.type,
            "residual_every": 100,
            "wrong": wrong,
            "blocks": blocks,
            "rows": rows,
        }
        for turn in range(arguments.rounds):
            for size in arguments.sizes:
                for way in arguments.ways:
                    many = ["--sweeps", sweeps_of(size, way), "--residual-every", 100, "--repeat", arguments.repeat]
                    found = run(arguments, environment, size, way, *many)
                    times[size][way].append(microseconds(found))
                    if way == "in_kernel":
                        blocks[size] = found["blocks"]
                    us = times[size][way][-1]
                    print(f"round {turn} {size} {way}: {us:.2f} us a sweep, {found['blocks']}", flush=True)
                # What is cut off leaves the sizes that have been measured.
                rows[:] = [row_of(n, ways) for n, ways in times.items() if all(ways.values())]
                if arguments.out:
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table_of(rows), end="")
    short = [f"{row['size']} {way} {row['ratios'][way]['median']:.3f}" for row in rows for way in row["short"]]
    for line in wrong:
        print(f"wrong: {line}")
    for line in short:
        print(f"less than asked for: {line}")
    sys.exit(1 if wrong or short else 0)


if __name__ == "__main__":
    try:
        main()
    except ValueError as failure:
        sys.exit(f"jacobi.py: {failure}")
