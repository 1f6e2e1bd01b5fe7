#!/usr/bin/env python3
"""GPU tests whose ranks are threads or processes: what ranks expect in vain, throw or add to the trouble reaches the test.

usage: ranks_test.py PROGRAM      of ranks_program.cpp
"""

import os
import subprocess
import sys

SAID = ["expected by a rank", "before it throws, rank 0", "before it throws, rank 1", "trouble of rank 2", "trouble of rank 3"]


def main(program):
    faults = []
    for ranks in ("threads", "processes"):
        for told in ("pass", "fail"):
            run = subprocess.run([program], env={**os.environ, "IMBREX_TEST_TOLD": told, "IMBREX_TEST_RANKS": ranks},
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if run.returncode != (1 if told == "fail" else 0):
                faults.append(f"{ranks}, told to {told}: exit code {run.returncode}\n{run.stdout}")
            # A process prints a failed expectation itself, too; the test says whose it was.
            for text in SAID:
                by_test = [line for line in run.stdout.splitlines() if text in line and not line.startswith("imbrex: ")]
                if told == "fail" and not by_test:
                    faults.append(f"{ranks}: nobody says '{text}'")
            if ranks == "processes" and told == "fail" and "rank 1: " not in run.stdout:
                faults.append(f"the test does not say whose the message is:\n{run.stdout}")
            if told == "fail" and "[  FAILED  ] 3 tests" not in run.stdout:
                faults.append(f"{ranks}: not 3 tests fail\n{run.stdout}")
    print("\n".join(faults) if faults else "what ranks say reaches the test")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
