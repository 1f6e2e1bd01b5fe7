#!/usr/bin/env python3
"""
Runs `imbrex run` for a set of cases, the ways of each in turn, and writes what each took, or whether it was right.

usage: runs.py --program IMBREX --set NAME --out FILE [--device cpu|cuda] [--ranks R] [--ranks-per-gpu G] [--seconds S]

Sets: verify (every operator in every strategy, compared with float64), operators, layouts, codecs, signaled,
all_reduce, jacobi. A row is a case. For each algorithm it has microseconds of a call on the host's clock, the median of
all calls except the first, or why it failed. A set's main case and its comparison run before the rest; what there was
no time for is named. The file is replaced after every run; nothing begins after S seconds. Exits 1 if something was
wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store import write_json

OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all")
STRATEGIES = ("sequential", "decomposed", "fused", "signaled")
SIGNALED = ("gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all")
RUN_S = 60  # of one run, at most


@dataclass(frozen=True)
class Case:
    """What is run, and in which ways. The first way is what the subject is compared with; no subject: all ways are."""

    what: str
    arguments: list[str]
    ways: dict[str, list[str]]
    subject: str = ""

    def needed(self) -> list[str]:
        """Ways without which the case says nothing of its subject."""
        return list(dict.fromkeys([next(iter(self.ways)), self.subject])) if self.subject else list(self.ways)


def in_turns(wanted: list[Case]) -> list[tuple[int, str]]:
    """Case and way, in the order in which they run: what is needed of each case, then the other ways in turn."""
    needed = [(i, way) for i, case in enumerate(wanted) if case.subject for way in case.needed()]
    rest = [
        (i, way)
        for place in range(max(len(case.ways) for case in wanted))
        for i, case in enumerate(wanted)
        for way in list(case.ways)[place : place + 1]
    ]
    return list(dict.fromkeys([*needed, *rest]))


def sizes(m: int, n: int, k: int) -> list[str]:
    """As options."""
    return ["--m", str(m), "--n", str(n), "--k", str(k)]


def strategies(op: str) -> dict[str, list[str]]:
    """Those that run the operator."""
    return {name: ["--strategy", name] for name in STRATEGIES if name != "signaled" or op in SIGNALED}


def layer(op: str, m: int, small: bool) -> list[str]:
    """Llama-3-8B's MLP; smaller on a CPU. An exchange multiplies what a rank has."""
    n, k = (14336, 4096) if op == "all_gather_gemm" else (4096, 3584) if op == "gemm_all_to_all" else (4096, 14336)
    return sizes(m, n // 8, k // 8) if small else sizes(m, n, k)


def cases(name: str, cpu: bool) -> list[Case]:
    """The cases of a set. Throws ValueError where there is no such set."""
    rows = (128, 512) if cpu else (512, 2048)
    if name == "verify":
        little = sizes(256, 384, 512) if cpu else sizes(1024, 768, 2048)
        found = [Case(op, [op, *little], strategies(op)) for op in OPERATORS]
        found.append(
            Case(
                "all_reduce",
                ["all_reduce", "--m", "64", "--n", "1024"],
                {
                    "exact": [],
                    "int8": ["--codec", "int8"],
                    "int4+int8": ["--codec", "int4+int8"],
                    "rms-norm": ["--rms-norm"],
                },
            )
        )
        ways = {
            way: ["--way", way]
            for way in ("kernel_boundaries", "overlapped", "in_kernel", *(() if cpu else ("graph",)))
        }
        found.append(Case("jacobi", ["jacobi", "--size", "96", "--sweeps", "33", "--residual-every", "8"], ways))
        found.append(
            Case(
                "sparse_triangular_solve",
                ["sparse_triangular_solve", "--generate", "grid", "--unknowns", "20000"],
                {way: ["--solve-way", way] for way in ("in_kernel", "kernel_boundaries")},
            )
        )
        return found
    if name == "operators":
        return [
            Case(f"{op}, M {m}", [op, *layer(op, m, cpu)], strategies(op), "fused") for op in OPERATORS for m in rows
        ]
    if name == "layouts":
        ways = {
            f"{layout}, {strategy}": ["--b-layout", layout, "--strategy", strategy]
            for strategy in ("sequential", "fused")
            for layout in ("kxn", "nxk")
        }
        found = [Case(f"{op}, M {rows[1]}", [op, *layer(op, rows[1], cpu)], ways, "nxk, fused") for op in OPERATORS]
        quarter = layer("all_gather_gemm", rows[1], cpu)
        quarter[3] = str(int(quarter[3]) // 4)
        lists = []
        for count in (0, 1, 2):
            more = ["--more-n", ",".join([quarter[3]] * count)] if count else []
            both = {strategy: ["--strategy", strategy, *more] for strategy in ("sequential", "fused")}
            lists.append(Case(f"all_gather_gemm, {count + 1} Bs", ["all_gather_gemm", *quarter], both, "fused"))
        return [*found, *lists]
    if name == "codecs":
        ways = {
            f"{codec}, {strategy}": ["--codec", codec, "--strategy", strategy]
            for strategy in ("sequential", "decomposed")
            for codec in ("exact", "int8", "int4+int8", "flash6")
        }
        return [
            Case(f"{op}, M {m}", [op, *layer(op, m, cpu)], ways, "int8, sequential")
            for op in OPERATORS[1:3]
            for m in rows
        ]
    if name == "signaled":
        ways = {"sequential": ["--strategy", "sequential"], "decomposed": ["--strategy", "decomposed"]}
        ways |= {f"signaled, {n} groups": ["--strategy", "signaled", "--chunks", str(n)] for n in (2, 4)}
        return [
            Case(f"{op}, M {2 * m}", [op, *layer(op, 2 * m, cpu)], ways, "signaled, 2 groups")
            for op in SIGNALED
            for m in rows
        ]
    if name == "all_reduce":
        ways = {codec: ["--codec", codec] for codec in ("exact", "int8", "int4+int8", "flash6")}
        return [
            Case(f"{4 * m} KiB", ["all_reduce", "--m", str(m), "--n", "2048"], ways, "int8") for m in (16, 256, 1024)
        ]
    if name == "jacobi":
        ways = {way: ["--way", way] for way in ("kernel_boundaries", "overlapped", "in_kernel")}
        return [
            Case(
                f"{size} x {size} a PE, 20 sweeps", ["jacobi", "--size", str(size), "--sweeps", "20"], ways, "in_kernel"
            )
            for size in (128, 512)
        ]
    raise ValueError(f"--set '{name}': it must be verify, operators, layouts, codecs, signaled, all_reduce or jacobi")


def one_run(options: argparse.Namespace, case: Case, way: str, left: float) -> dict[str, Any] | None:
    """What one run says: {"us"}, {"right"}, or {"failed"}; None where the time that was left did not do."""
    ranks = "4" if case.arguments[0] == "jacobi" and options.device == "cpu" else str(options.ranks)
    command = [
        options.program,
        "run",
        *case.arguments,
        *case.ways[way],
        "--ranks",
        ranks,
        "--device",
        options.device,
        "--wait-limit",
        "20",
        "--repeat",
        "2" if options.set == "verify" else str(options.repeat),
        "--json",
        "-",
    ]
    if options.device == "cuda" and options.ranks_per_gpu > 1:
        command += ["--ranks-per-gpu", str(options.ranks_per_gpu)]
    if options.set == "verify":
        command.append("--verify")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=min(RUN_S, max(left, 1)), check=False)
    except subprocess.TimeoutExpired as over:
        if left < RUN_S:
            return None
        return {"failed": f"no end within {over.timeout:.0f} s"}
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = {}
    if done.returncode not in (0, 1) or not told:
        said = (str(told.get("error", "")) or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        return {"failed": said[-1][:300]}
    if options.set == "verify":
        # Sums through codecs say how far they are off; the exit code judges that.
        right = done.returncode == 0 and told.get("verified", True)
        return {"right": bool(right)} | ({} if right else {"failed": str(told.get("message", "wrong"))[:300]})
    seconds = told["seconds"][1:] or told["seconds"]
    found = {"us": round(statistics.median(seconds) * 1e6, 1), "least_us": round(min(seconds) * 1e6, 1)}
    if told.get("strategy") in ("sequential", "decomposed", "signaled"):
        # Plans that these words say: a fused one has knobs that the program chooses by what it knows of the GPUs.
        found["plan"] = [*case.arguments, *case.ways[way], "--ranks", ranks]
    return found


def main(arguments: list[str]) -> int:
    """Runs them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--set", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    try:
        wanted = cases(options.set, options.device == "cpu")
    except ValueError as error:
        parser.error(str(error))
    rows: list[dict[str, Any]] = []
    result = {
        "set": options.set,
        "device": options.device,
        "ranks": options.ranks,
        "ranks_per_gpu": options.ranks_per_gpu,
        "rows": rows,
    }
    rows += [{"what": case.what, "arguments": case.arguments, "ways": {}} for case in wanted]

    def write() -> None:
        missing = [(i, way) for i, way in turns if way not in rows[i]["ways"]]
        result["left_out"] = [f"{wanted[i].what}, {way}" for i, way in missing]
        result["subject_left_out"] = [f"{wanted[i].what}, {way}" for i, way in missing if way in wanted[i].needed()]
        write_json(options.out, result)

    turns = in_turns(wanted)
    for i, way in turns:
        case, row = wanted[i], rows[i]
        left = options.seconds - (time.monotonic() - begin)
        found = one_run(options, case, way, left) if left > 0 else None
        if found is None:
            break
        row["ways"][way] = found
        # In the cases' own order, whose first way is what others are compared with.
        row["ways"] = {one: row["ways"][one] for one in case.ways if one in row["ways"]}
        print(f"{case.what}, {way}: {found.get('failed') or found.get('us', 'right')}", flush=True)
        write()
    write()
    return 1 if any(found.get("right") is False for row in rows for found in row["ways"].values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
