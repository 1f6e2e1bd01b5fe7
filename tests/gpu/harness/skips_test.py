#!/usr/bin/env python3
"""The mains of GPU tests: a program that skipped every test exits 77, one failure makes it 1, and anything else 0. What is
to run under MPS only is skipped where none runs. The second of two parts runs the second of two tests alone.

usage: skips_test.py PROGRAM...      programs of skips_program.cpp, one a main
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(programs):
    faults = []
    for program in programs:
        for told, want in (("skip", 77), ("pass", 0), ("fail", 1)):
            code = subprocess.run([program], env={**os.environ, "IMBREX_TEST_TOLD": told}, stdout=subprocess.DEVNULL).returncode
            if code != want:
                faults.append(f"{program}: told to {told} it exits {code}, not {want}")
        for part, told, want in ((0, "fail", 77), (1, "fail", 1), (1, "pass", 0)):
            env = {**os.environ, "IMBREX_TEST_TOLD": told, "GTEST_TOTAL_SHARDS": "2", "GTEST_SHARD_INDEX": str(part)}
            code = subprocess.run([program], env=env, stdout=subprocess.DEVNULL).returncode
            if code != want:
                faults.append(f"{program}: part {part} of 2, told to {told}, exits {code}, not {want}")
        with tempfile.TemporaryDirectory() as folder:
            for runs in (False, True):
                if runs:
                    Path(folder, "control").touch()
                env = {**os.environ, "IMBREX_TEST_TOLD": "pass", "IMBREX_TEST_NEEDS_MPS": "1", "CUDA_MPS_PIPE_DIRECTORY": folder}
                run = subprocess.run([program], env=env, stdout=subprocess.PIPE, text=True)
                if run.returncode != (0 if runs else 77) or ("SKIPPED: " in run.stdout) == runs:
                    faults.append(f"{program}: with{'' if runs else 'out'} MPS it exits {run.returncode}: {run.stdout}")
    print("\n".join(faults) if faults else f"{len(programs)} programs end as they should")
    return 1 if faults or not programs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
