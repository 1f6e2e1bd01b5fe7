#!/usr/bin/env python3
"""`imbrex run jacobi --device cuda`: PEs, processes, that share a GPU; by time slices, or under MPS where it runs. Every element and
every residual is the serial solution's."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from program import PROGRAM, Case

SKIPPED = 77
GPUS = json.loads(subprocess.run([PROGRAM, "doctor", "--json", "-"], capture_output=True, text=True).stdout)["gpus"]
MPS = os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"), "control"))
WAYS = [["kernel_boundaries"], ["graph"], ["overlapped"], ["in_kernel", "--tile", "held"], ["in_kernel", "--tile", "streamed"], ["ring"]]
# By time slices a signal takes milliseconds.
SWEEPS = ["--sweeps", 301, "--residual-every", 7] if MPS else ["--sweeps", 13, "--residual-every", 3]


class GpuJacobi(Case):
    def expect_right(self, ranks, *arguments, **keywords):
        result = self.json_of("run", "jacobi", "--device", "cuda", "--ranks", ranks, "--ranks-per-gpu", ranks, *arguments, "--verify",
                              timeout=180, **keywords)
        self.assertEqual((result["exit_code"], result["device"], result["verified"]), (0, "cuda", True), result)
        return result

    def test_every_way(self):
        grids = [(1, "1x1", 96, 130), (4, "2x2", 96, 130), (4, "4x1", 37, 53), (4, "1x4", 256, 256)]
        for ranks, grid, rows, columns in grids if MPS else grids[1:3]:
            for i, way in enumerate(WAYS):
                number = ("fp32", "fp64")[(i + rows) % 2]
                with self.subTest(grid=grid, way=way, type=number):
                    result = self.expect_right(ranks, "--grid", grid, "--rows", rows, "--columns", columns, "--type", number,
                                               "--way", *way, "--repeat", 2, *SWEEPS)
                    self.assertEqual(len(result["residuals"]), SWEEPS[1] // SWEEPS[3])

    @unittest.skipUnless(MPS, "MPS is wanted, which does not run")
    def test_what_tiles_hold(self):
        """4 PEs on 132 SMs: 1024 x 1024 fp32 and 512 x 512 fp64 are held, more is streamed."""
        for size, number, says in ((256, "fp32", "5 x 4"), (512, "fp32", "5 x 4"), (1024, "fp32", "9 x 8"), (1000, "fp32", "9 x 8"),
                                   (512, "fp64", "5 x 4"), (1100, "fp32", "streamed"), (1024, "fp64", "streamed")):
            with self.subTest(size=size, type=number):
                result = self.expect_right(4, "--size", size, "--type", number, "--sweeps", 60, "--residual-every", 20)
                if "H100" in GPUS[0]["name"] or "H200" in GPUS[0]["name"]:
                    self.assertIn(says, result["blocks"])

    @unittest.skipUnless(MPS, "MPS is wanted, which does not run")
    def test_many_sweeps(self):
        """Graphs are replayed with a rest, and packets change places 10,000 times."""
        for way in WAYS:
            with self.subTest(way=way):
                self.expect_right(4, "--size", 64, "--way", *way, "--sweeps", 10001, "--residual-every", 100)

    @unittest.skipUnless(MPS, "MPS is wanted, which does not run")
    def test_large_fields(self):
        for way in WAYS[:3] + WAYS[4:]:
            with self.subTest(way=way):
                self.expect_right(4, "--size", 2048, "--way", *way, "--sweeps", 10, "--residual-every", 5)

    @unittest.skipIf(MPS, "a process that is killed takes its MPS server's other clients with it")
    def test_a_lost_pe_ends_all(self):
        for way in ("in_kernel", "kernel_boundaries"):
            job = subprocess.Popen([PROGRAM, "run", "jacobi", "--device", "cuda", "--ranks", "2", "--ranks-per-gpu", "2", "--size", "64",
                                    "--sweeps", "10000000", "--residual-every", "10000000", "--way", way, "--wait-limit", "5"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(8)
            with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
                ranks = file.read().split()
            self.assertEqual(len(ranks), 2)
            os.kill(int(ranks[1]), signal.SIGKILL)
            _, errors = job.communicate(timeout=90)
            self.assertEqual(job.returncode, 3, errors)
            self.assertIn("lost", errors)

    def test_what_does_not_fit_is_named(self):
        self.refuse("run", "jacobi", "--device", "cuda", "--ranks", 2, "--ranks-per-gpu", 2, "--size", 4096, "--tile", "held",
                    "--sweeps", 1, says=["tile held", "4096 x 4096"])


if __name__ == "__main__":
    if not GPUS:
        print("SKIPPED: no GPU found", file=sys.stderr)
        sys.exit(SKIPPED)
    if os.environ.get("IMBREX_TEST_NEEDS_MPS") and not MPS:
        print("SKIPPED: MPS does not run; scripts/test starts one", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
