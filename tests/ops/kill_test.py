"""kill -9 one rank of a running job at a random moment, many times.

Every time, the job must end within 5 s with exit code 3, each survivor must name the lost rank, and nothing may be left:
no process, no shared-memory object, no file.

usage: kill_test.py IMBREX [TIMES [SEED]]
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
LIMIT = 5.0


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


def kill_once(program, rng, folder):
    operator = rng.choice(["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all"])
    strategy = rng.choice(["sequential", "decomposed", "fused"])
    command = [program, "run", operator, "--ranks", str(RANKS), "--m", "64", "--n", "64", "--k", "64", "--strategy", strategy,
               "--repeat", "1000000", "--out", os.path.join(folder, "y")]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        ranks = []
        while len(ranks) < RANKS:
            ranks = children(job.pid)
            if time.monotonic() > deadline or job.poll() is not None:
                return f"{command}: the ranks did not start"
        time.sleep(rng.uniform(0, 0.2))
        victim = rng.randrange(RANKS)
        os.kill(ranks[victim], signal.SIGKILL)
        killed = time.monotonic()
        try:
            _, errors = job.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            return f"{command}: still running 30 s after rank {victim} was killed"
        seconds = time.monotonic() - killed
        if seconds > LIMIT:
            return f"{command}: took {seconds:.1f} s to end"
        if job.returncode != 3:
            return f"{command}: exit code {job.returncode}, not 3; {errors}"
        for rank in range(RANKS):
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


def kill_while_writing(program, rng, folder):
    """Large outputs, a kill at any moment up to the end: what lies in the folder afterwards is whole."""
    size = 1500
    job = subprocess.Popen([program, "run", "gemm_all_reduce", "--ranks", str(RANKS), "--m", str(size), "--n", str(size), "--k", "4",
                            "--out", os.path.join(folder, "y")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ranks = []
    while len(ranks) < RANKS and job.poll() is None:
        ranks = children(job.pid)
    time.sleep(rng.uniform(0, 0.4))
    for pid in ranks[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, errors = job.communicate(timeout=30)
    if job.returncode not in (0, 3):
        return f"exit code {job.returncode}: {errors}"
    whole = 128 + 4 * size * size
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not re.fullmatch(r"y\.rank\d\.npy", name) or os.path.getsize(path) != whole:
            return f"{name} of {os.path.getsize(path)} bytes is left"
        os.remove(path)
    return None


def main():
    program = sys.argv[1]
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get("IMBREX_TEST_SEED", "20261121"))
    print(f"seed {seed}")
    rng = random.Random(seed)
    shared_memory = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder:
        for i in range(times):
            fault = kill_once(program, rng, folder)
            if fault:
                sys.exit(f"kill {i}: {fault}")
        if os.listdir(folder):
            sys.exit(f"files are left: {os.listdir(folder)}")
        for i in range(times // 5):
            fault = kill_while_writing(program, rng, folder)
            if fault:
                sys.exit(f"kill {i} while results are written: {fault}")
    new = {name for name in set(os.listdir("/dev/shm")) - shared_memory if "imbrex" in name}
    if new:
        sys.exit(f"shared-memory objects are left: {new}")
    print(f"killed one rank {times} times: every survivor named it within {LIMIT:.0f} s, exit code 3, nothing left")


if __name__ == "__main__":
    main()
