#!/usr/bin/env python3
"""Times OpenSHMEM calls in kernels beside NVSHMEM's, in turn: two PEs on one GPU, as processes under MPS, or on two GPUs.

usage: peers.py [--program build/bin/imbrex] [--nvshmem FOLDER] [--peer BINARY] [--dormant BINARY] [--rounds 5]
                [--gpus 1|2] [--calls NAME...] [--full] [--json FILE]
       peers.py --compile BINARY [--nvshmem FOLDER]        that program alone, for a machine without nvcc

`imbrex bench shmem` and bench/shmem/nvshmem_peer.cu take turns, --rounds times; what the first times, the second times
too, in as many calls, by the same clocks, and medians over the turns count. FOLDER holds include/ and lib/ of NVSHMEM
3.4, as the package nvidia-nvshmem-cu13 has them: looked for in this Python, where it is not given. BINARY is the second
program where it has been compiled already; else nvcc does. Without NVSHMEM ours is timed alone, and that is said. On one
GPU MPS is started, and ended, where none runs; what was to be reached is about one GPU. `--dormant` is the program of dormant.cu, about puts that a kernel never makes.

Prints a table, and what was to be reached. Exits 1 where something of that was not, 3 where something failed.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import report  # noqa: E402
from mps import mps  # noqa: E402

Row = dict[str, Any]
TIMED = ("us", "cycles")
KEY = ("measure", "call", "scope", "blocks", "threads", "bytes")
PEERLESS = ("packet", "p_signal")  # NVSHMEM has no such calls
TURN_S = 240  # of one program, at most


def median(values: list[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return statistics.median(values)


def case_line(row: Row) -> str:
    """A case, as nvshmem_peer reads it; NVSHMEM has one kind of block."""
    return " ".join(str(row[key]).replace("wide", "block") for key in (*KEY, "calls"))


def nvshmem_version() -> str:
    """What the package says of itself, where there is one."""
    for name in ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of an unknown version"


def nvshmem_folder() -> Path | None:
    """Where this Python's package of NVSHMEM lies."""
    try:
        spec = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def compile_peer(nvshmem: Path, nvcc: str, to: Path) -> Path:
    """Compiles nvshmem_peer with that NVSHMEM."""
    command = [nvcc, "-std=c++17", "-O3", "-rdc=true", "-gencode=arch=compute_90,code=sm_90", f"-I{nvshmem}/include",
               str(ROOT / "bench/shmem/nvshmem_peer.cu"), "-o", str(to), f"-L{nvshmem}/lib", "-l:libnvshmem_host.so.3",
               "-lnvshmem_device", "-lcuda", "-cudart", "static"]  # fmt: skip
    subprocess.run(command, check=True, timeout=600)
    return to


def time_ours(program: Path, arguments: list[str], environment: dict[str, str], gpus: int = 1) -> dict[str, Any]:
    """What `imbrex bench shmem` says."""
    command = [str(program), "bench", "shmem", "--device", "cuda", "--ranks", "2", "--ranks-per-gpu", str(2 // gpus), *arguments, "--json", "-"]
    done = subprocess.run(command, timeout=TURN_S, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def time_theirs(peer: Path, nvshmem: Path, rows: list[Row], rounds: int, environment: dict[str, str], gpus: int = 1) -> list[list[float]]:
    """What two nvshmem_peer say of the cases, in their order."""
    environment = {**environment, "NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_REMOTE_TRANSPORT": "none",
                   "NVSHMEM_SYMMETRIC_SIZE": "64M", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
                   "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY": "AF_INET",
                   "LD_LIBRARY_PATH": f"{nvshmem}/lib:{environment.get('LD_LIBRARY_PATH', '')}"}  # fmt: skip
    cases = "".join(case_line(row) + "\n" for row in rows)

    def start(pe: int) -> subprocess.Popen[str]:
        return subprocess.Popen([str(peer), str(pe), str(rounds), *([str(pe)] if gpus > 1 else [])], env=environment, text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE)  # fmt: skip

    first, second = start(0), start(1)

    def end() -> None:
        first.kill()
        second.kill()

    watch = threading.Timer(TURN_S, end)
    watch.start()
    try:
        assert first.stdout is not None and second.stdin is not None
        # NVSHMEM itself may say something before.
        unique = next((line.split()[1] for line in first.stdout if line.startswith("id ")), None)
        if unique is None:
            raise ValueError("nvshmem_peer gave no id")
        second.stdin.write(unique + "\n" + cases)
        second.stdin.close()
        second.stdin = None
        text, _ = first.communicate(cases, timeout=TURN_S)
        second.communicate(timeout=60)
    finally:
        watch.cancel()
        end()
    lines = [line for line in text.split("\n") if re.fullmatch(r"right|(\d+\.\d+ ?){2}", line)]
    if first.returncode or second.returncode or len(lines) != len(rows) + 1 or lines[-1] != "right":
        raise ValueError(f"nvshmem_peer ended with {first.returncode} and {second.returncode}, and said: {lines[-3:]}")
    return [[float(word) for word in one.split()] for one in lines[:-1]]


def put_together(ours: list[list[Row]], theirs: list[list[list[float]]]) -> list[Row]:
    """A row a case: medians of ours, of NVSHMEM's where it was timed, and how many times as fast ours is."""
    rows = []
    for number, first in enumerate(ours[0]):
        row = {key: first[key] for key in KEY}
        row["ours"] = {key: round(median([turn[number][key] for turn in ours]), 6) for key in TIMED if key in first}
        rows.append(row)
    timed = [row for row in rows if row["call"] not in PEERLESS]
    for number, row in enumerate(timed):
        if theirs:
            row["nvshmem"] = {key: round(median([turn[number][place] for turn in theirs]), 6)
                              for place, key in enumerate(TIMED) if key in row["ours"]}  # fmt: skip
            row["speed_up"] = round(row["nvshmem"]["us"] / row["ours"]["us"], 4)
    return rows


def find(rows: list[Row], measure: str, call: str, scope: str, blocks: int, size: int) -> Row | None:
    """The row of a case."""
    wanted = (measure, call, scope, blocks, size)
    return next((row for row in rows if tuple(row[key] for key in ("measure", "call", "scope", "blocks", "bytes")) == wanted), None)


def bars(rows: list[Row], dormant: list[Row]) -> list[Row]:
    """What was to be reached: name, value, whether it is."""
    result: list[Row] = []

    def at_most(name: str, value: float, limit: float) -> None:
        result.append({"bar": name, "value": round(value, 4), "most": round(limit, 4), "met": value <= limit})

    if packet := find(rows, "latency", "packet", "thread", 1, 8):
        at_most("packet, 8 bytes and their signal, one way, us", packet["ours"]["us"], 0.45)
    if signal := find(rows, "latency", "put_signal", "thread", 1, 8):
        at_most("put_signal of 8 bytes, one way, us", signal["ours"]["us"], 1.05)
        if "nvshmem" in signal:
            at_most("the same beside NVSHMEM's", signal["ours"]["us"], signal["nvshmem"]["us"])
    if element := find(rows, "latency", "p_signal", "thread", 1, 8):
        at_most("p_signal, one way, us", element["ours"]["us"], 1.05)
    for blocks in (1, 8, 32):
        # The better of two ways each: ours in blocks of 1024 threads, or of 512 that have more loads under way.
        puts = [find(rows, "bandwidth", "put", scope, blocks, 4 << 20) for scope in ("block", "wide")]
        timed = [put for put in puts if put and "nvshmem" in put]
        if timed:
            at_most(f"put of 4 MiB by {blocks} blocks, us, beside NVSHMEM's", min(put["ours"]["us"] for put in timed),
                    min(put["nvshmem"]["us"] for put in timed))  # fmt: skip
    if dormant:
        at_most("a kernel with a put that it never makes, its time over that without", max(row["behind_ratio"] for row in dormant), 1.01)
    return result


def print_rows(rows: list[Row]) -> None:
    """The table."""
    print(f"{'measure':9} {'call':10} {'scope':6} {'blocks':>6} {'bytes':>8} {'ours us':>10} {'NVSHMEM':>10} {'speed-up':>8}   "
          "cycles")  # fmt: skip
    for row in rows:
        theirs, issue = row.get("nvshmem", {}), row["ours"].get("cycles")
        print(f"{row['measure']:9} {row['call']:10} {row['scope']:6} {row['blocks']:6} {row['bytes']:8} {row['ours']['us']:10.3f} "
              + (f"{theirs['us']:10.3f} {row['speed_up']:7.2f}x" if theirs else " " * 19)
              + (f"   {issue:.0f}" if issue else "") + (f", {theirs['cycles']:.0f}" if issue and theirs else ""))  # fmt: skip


def dormant_rows(dormant: Path | None, environment: dict[str, str]) -> list[Row]:
    """What dormant.cu says of a kernel's sweeps without a put, with one after it and with one within, none ever made."""
    if dormant is None:
        return []
    done = subprocess.run([str(dormant)], check=True, timeout=TURN_S, env=environment, text=True, stdout=subprocess.PIPE)
    print(done.stdout, end="")
    names = ("width", "height", "without_us", "behind_us", "behind_ratio", "within_us", "within_ratio")
    lines = [line.split() for line in done.stdout.split("\n")]
    rows = [dict(zip(names, map(float, words), strict=True)) for words in lines if len(words) == len(names) and words[0].isdigit()]
    if not rows:
        raise ValueError(f"{dormant} printed no rows of {len(names)} numbers")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/bin/imbrex")
    parser.add_argument("--nvshmem", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--dormant", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1)
    parser.add_argument("--calls", nargs="+", default=[])
    parser.add_argument("--full", action="store_true", help="all sizes, not three")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compile", type=Path, metavar="BINARY")
    options = parser.parse_args(arguments)
    nvshmem = options.nvshmem or nvshmem_folder()
    nvcc = shutil.which("nvcc")
    if options.compile:
        if nvshmem is None or nvcc is None:
            raise ValueError(f"nothing to compile with: {'no nvcc' if nvshmem else 'no NVSHMEM (--nvshmem)'}")
        compile_peer(nvshmem, nvcc, options.compile)
        return 0
    with mps(50) if options.gpus == 1 else contextlib.nullcontext(dict(os.environ)) as environment, tempfile.TemporaryDirectory() as folder:
        peer: Path | None = options.peer
        if nvshmem is None:
            print("peers.py: no NVSHMEM (--nvshmem): ours is timed alone", file=sys.stderr)
            peer = None
        elif peer is None and nvcc is None:
            print("peers.py: neither nvcc nor --peer: ours is timed alone", file=sys.stderr)
        elif peer is None and nvcc is not None:
            peer = compile_peer(nvshmem, nvcc, Path(folder, "nvshmem_peer"))
        own = ["--rounds", "3", *([] if options.full else ["--quick"]), *(["--calls", *options.calls] if options.calls else [])]
        ours: list[list[Row]] = []
        theirs: list[list[list[float]]] = []
        for turn in range(options.rounds):
            result = time_ours(options.program, own, environment, options.gpus)
            ours.append(result["rows"])
            if peer is not None and nvshmem is not None:
                both = [row for row in result["rows"] if row["call"] not in PEERLESS]
                theirs.append(time_theirs(peer, nvshmem, both, 3, environment, options.gpus))
            print(f"turn {turn + 1} of {options.rounds}", file=sys.stderr)
        try:
            dormant = dormant_rows(options.dormant, environment)
        except (OSError, ValueError, subprocess.SubprocessError) as failure:
            print(f"peers.py: {options.dormant} is left out: {failure}", file=sys.stderr)
            dormant = []
    rows = put_together(ours, theirs)
    reached = bars(rows, dormant) if options.gpus == 1 else []
    print_rows(rows)
    for bar in reached:
        print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['value']} (at most {bar['most']})")
    if options.json:
        report.write_rows(options.json, {"gpu": result["gpu"], "gpus": options.gpus, "date": result["date"], "turns": options.rounds,
                                         "nvshmem": nvshmem_version() if theirs else None, "dormant": dormant, "bars": reached,
                                         "rows": rows})  # fmt: skip
    return 0 if all(bar["met"] for bar in reached) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        print(f"peers.py: {failure}", file=sys.stderr)
        sys.exit(3)
