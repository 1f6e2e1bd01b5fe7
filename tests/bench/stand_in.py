"""Measurements that take no machine: children that sleep, hang, die, or start others, for tests of bench/all."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

# Writes a result of two rows, the second one later: {out}, seconds, and what to do at the end.
CHILD = """
import json, os, subprocess, sys, time
out, seconds, then = sys.argv[1], float(sys.argv[2]), sys.argv[3]
def write(rows):
    with open(out + ".new", "w") as file:
        json.dump({"rows": rows, "subject_left_out": ["M 8, fused"] if then == "short" else []}, file)
    os.replace(out + ".new", out)
row = {"problem": {"operator": "gemm_all_reduce", "m": 8, "n": 8, "k": 8, "ranks": 2, "type": "bf16"}, "cublas_us": 3.0,
       "plans": [{"name": "sequential", "us": 5.0, "chosen": False}, {"name": "fused", "us": 4.0, "chosen": True}]}
write([row])
if then == "family":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.environ["MARK"]])
time.sleep(seconds)
write([row, row])
if then == "hang" or then == "family":
    time.sleep(600)
if then == "deaf":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if then == "die":
    os.kill(os.getpid(), 11)
sys.exit(int(then) if then.isdigit() else 0)
"""


def measurement(name: str, seconds: float, then: str = "end", expected: float = 0, weight: float = 1, **more: Any) -> dict[str, Any]:
    """One that sleeps so long."""
    command = [sys.executable, "-c", CHILD, "{out}", str(seconds), then]
    return {"name": name, "topic": more.pop("topic", "gemm"), "weight": weight, "seconds": expected or max(seconds, 0.1),
            "command": command, "memory_gib": 0, **more}  # fmt: skip


def several(count: int, seed: int, longest: float = 0.3) -> list[dict[str, Any]]:
    """Some of random weights and seconds in some topics."""
    draw = random.Random(seed)
    topics = ["gemm", "codecs", "shmem"]
    return [measurement(f"m{i}", draw.uniform(0, longest), weight=draw.random(), topic=draw.choice(topics)) for i in range(count)]


def write(path: Path, measurements: list[dict[str, Any]]) -> Path:
    """As --measurements reads it."""
    path.write_text(json.dumps(measurements), encoding="utf-8")
    return path
