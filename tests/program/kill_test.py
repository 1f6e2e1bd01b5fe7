"""kill -9 one rank of a running job at a random moment, many times.

Every time, the job must end with exit code 3 within 5 s (with --device cuda: the wait limit and 5 s), each survivor must
name the lost rank, and nothing may be left: no process, no shared-memory object, no file. The job has four ranks, or, with
--device cuda, as many as there are GPUs; with fewer than two this exits 77, which CTest reports as skipped.

usage: kill_test.py IMBREX [TIMES [SEED]] [--device cpu|cuda] [--wait-limit SECONDS] [--operators NAME ...] [--strategies NAME ...]
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

MOST_RANKS = 4
OPERATORS = ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all", "all_reduce", "embedding_all_to_all"]
TABLES = {"tables": [{"rows": 500, "dim": 32, "hotness": 5}, {"rows": 90, "dim": 64, "count": 7}]}
SKIPPED = 77


class Setting:
    """What the device changes: sizes and strategies that it runs, when to kill, and how soon the job must end."""

    def __init__(self, device, wait_limit, ranks, operators, strategies, tables):
        on_gpus = device == "cuda"
        self.ranks = ranks
        self.operators, self.strategies, self.tables = operators, strategies, tables
        self.options = ["--device", device] + (["--wait-limit", str(wait_limit)] if wait_limit else [])
        self.limit = 5.0 + ((wait_limit or 30) if on_gpus else 0)
        # GPUs take seconds to start; kills come before, during and after that.
        self.latest_kill = 8.0 if on_gpus else 0.2
        self.latest_kill_while_writing = 8.0 if on_gpus else 0.4
        self.size = "1024" if on_gpus else "64"


def children(pid):
    """Direct children of a process, oldest first; ranks are forked in order."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_once(program, rng, folder, setting):
    operator = rng.choice(setting.operators)
    how = ["--codec", rng.choice(["exact", "int8"])] if operator == "all_reduce" else ["--strategy", rng.choice(setting.strategies)]
    if operator == "embedding_all_to_all":
        how += ["--tables", setting.tables, "--batch", setting.size]
    else:
        how += ["--m", setting.size, "--n", setting.size] + (["--k", setting.size] if operator != "all_reduce" else [])
    command = [program, "run", operator, "--ranks", str(setting.ranks), *how, "--repeat", "1000000", "--out", os.path.join(folder, "y"), *setting.options]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        ranks = []
        while len(ranks) < setting.ranks:
            ranks = children(job.pid)
            if time.monotonic() > deadline or job.poll() is not None:
                return f"{command}: the ranks did not start"
        time.sleep(rng.uniform(0, setting.latest_kill))
        victim = rng.randrange(setting.ranks)
        os.kill(ranks[victim], signal.SIGKILL)
        killed = time.monotonic()
        try:
            _, errors = job.communicate(timeout=setting.limit + 30)
        except subprocess.TimeoutExpired:
            return f"{command}: still running {setting.limit + 30:.0f} s after rank {victim} was killed"
        seconds = time.monotonic() - killed
        if seconds > setting.limit:
            return f"{command}: took {seconds:.1f} s to end"
        if job.returncode != 3:
            return f"{command}: exit code {job.returncode}, not 3; {errors}"
        for rank in range(setting.ranks):
            if rank != victim and not re.search(rf"rank {rank}: .*rank {victim} .*lost", errors):
                return f"{command}: rank {rank} did not name the lost rank {victim}:\n{errors}"
        left = [pid for pid in ranks if alive(pid)]
        if left:
            return f"{command}: processes {left} are left"
        return None
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()


def kill_while_writing(program, rng, folder, setting):
    """Large outputs, a kill at any moment up to the end: what lies in the folder afterwards is whole."""
    size = 1500
    job = subprocess.Popen([program, "run", "gemm_all_reduce", "--ranks", str(setting.ranks), "--m", str(size), "--n", str(size), "--k", "4",
                            "--out", os.path.join(folder, "y"), *setting.options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ranks = []
    while len(ranks) < setting.ranks and job.poll() is None:
        ranks = children(job.pid)
    time.sleep(rng.uniform(0, setting.latest_kill_while_writing))
    for pid in ranks[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, errors = job.communicate(timeout=setting.limit + 30)
    if job.returncode not in (0, 3):
        return f"exit code {job.returncode}: {errors}"
    whole = 128 + 4 * size * size
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not re.fullmatch(r"y\.rank\d\.npy", name) or os.path.getsize(path) != whole:
            return f"{name} of {os.path.getsize(path)} bytes is left"
        os.remove(path)
    return None


def gpus(program):
    report = subprocess.run([program, "doctor", "--json", "-"], capture_output=True, text=True)
    return len(json.loads(report.stdout)["gpus"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("times", nargs="?", type=int, default=100)
    parser.add_argument("seed", nargs="?", type=int, default=int(os.environ.get("IMBREX_TEST_SEED", "20261121")))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--wait-limit", type=float)
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=OPERATORS)
    parser.add_argument("--strategies", nargs="+", default=["sequential", "decomposed", "fused"])
    arguments = parser.parse_args()
    program, times, seed = arguments.program, arguments.times, arguments.seed
    ranks = min(MOST_RANKS, gpus(program)) if arguments.device == "cuda" else MOST_RANKS
    if ranks < 2:
        print(f"SKIPPED: 2 GPUs wanted, {ranks} found")
        sys.exit(SKIPPED)
    print(f"seed {seed}")
    rng = random.Random(seed)
    shared_memory = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".json") as tables:
        json.dump(TABLES, tables)
        tables.flush()
        setting = Setting(arguments.device, arguments.wait_limit, ranks, arguments.operators, arguments.strategies, tables.name)
        for i in range(times):
            fault = kill_once(program, rng, folder, setting)
            if fault:
                sys.exit(f"kill {i}: {fault}")
        if os.listdir(folder):
            sys.exit(f"files are left: {os.listdir(folder)}")
        for i in range(times // 5):
            fault = kill_while_writing(program, rng, folder, setting)
            if fault:
                sys.exit(f"kill {i} while results are written: {fault}")
    new = {name for name in set(os.listdir("/dev/shm")) - shared_memory if "imbrex" in name}
    if new:
        sys.exit(f"shared-memory objects are left: {new}")
    print(f"killed one rank of {ranks} {times} times: every survivor named it within {setting.limit:.0f} s, exit code 3, nothing left")


if __name__ == "__main__":
    main()
