"""Groups of torch in a container whose /proc shows processes alone, as hardened runtimes mount it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from launch_for_tests import torchrun

pytest.importorskip("torch")

MOUNT = "mount -t proc -o subset=pid proc /proc"
RANK = """
import sys, torch, torch.distributed as dist, imbrex.torch
from pathlib import Path
assert not Path("/proc/sys").exists()
dist.init_process_group("gloo")
total = imbrex.torch.matmul_all_reduce(torch.ones(2, 2), torch.ones(2, 2))[0, 0].item()
sys.stdout.write(f"sum {total}\\n")  # whole, where ranks write at once without buffers
dist.destroy_process_group()
"""


def within(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    """Runs it in a process namespace and a mount namespace of its own."""
    script = f'{MOUNT} && exec "$@"'
    return subprocess.run(
        ["unshare", "-mp", "--fork", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_groups_need_no_more_of_proc_than_processes(tmp_path):
    if not shutil.which("unshare") or within(["true"]).returncode != 0:
        pytest.skip("this process may not mount a /proc of its own (it takes root and unshare)")
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    environment = {**os.environ, "IMBREX_WAIT_LIMIT": "60", "OMP_NUM_THREADS": "1"}
    done = within([*torchrun(2), str(program)], env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("sum 4.0") == 2, done.stdout
