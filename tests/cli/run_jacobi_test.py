#!/usr/bin/env python3
"""`imbrex run jacobi`: every way on every grid of PEs gives the serial solution's bits; what is refused."""

import json
import os
import signal
import subprocess
import time
import unittest

from program import PROGRAM, Case

# What the CPU runs; a graph is for GPUs.
WAYS = [["kernel_boundaries"], ["overlapped"], ["in_kernel", "--tile", "held"], ["in_kernel", "--tile", "streamed"], ["ring"]]
GRIDS = [f"{rows}x{ranks // rows}" for ranks in range(1, 7) for rows in range(1, ranks + 1) if ranks % rows == 0]
JOB = ["run", "jacobi", "--device", "cpu"]
SWEEPS = ["--sweeps", 21, "--residual-every", 5]


def of_grid(grid):
    rows, columns = map(int, grid.split("x"))
    return ["--grid", grid, "--ranks", rows * columns]


class RunJacobi(Case):
    def expect_right(self, *arguments, **keywords):
        sweeps = SWEEPS if "--residual-every" not in arguments else SWEEPS[:2]
        result = self.json_of(*JOB, *sweeps, *arguments, "--verify", **keywords)
        self.assertEqual((result["exit_code"], result["verified"], result["device"]), (0, True, "cpu"))
        return result

    def test_every_way_on_every_grid(self):
        self.assertEqual(len(GRIDS), 14)
        sizes = [(13, 22), (9, 31), (1, 17), (26, 1), (8, 16)]
        for i, grid in enumerate(GRIDS):
            for k, way in enumerate(WAYS):
                rows, columns = sizes[(i + k) % len(sizes)]
                for number in ("fp32", "fp64"):
                    with self.subTest(grid=grid, way=way, type=number):
                        result = self.expect_right(*of_grid(grid), "--rows", rows, "--columns", columns, "--type", number, "--way", *way,
                                                   "--seed", i, "--repeat", 2, "--world", "threads" if k % 2 else "processes")
                        self.assertEqual((result["problem"]["grid"], result["way"]), (grid, way[0]))
                        self.assertEqual((len(result["seconds"]), len(result["residuals"])), (2, 4))

    def test_residuals_do_not_depend_on_grids_blocks_or_ways(self):
        for number in ("fp32", "fp64"):
            seen = set()
            for grid, rows, columns, blocks in (("1x1", 24, 36, 1), ("2x2", 12, 18, 3), ("3x2", 8, 18, 4), ("1x6", 24, 6, 2)):
                for way in WAYS:
                    result = self.expect_right(*of_grid(grid), "--rows", rows, "--columns", columns, "--type", number, "--way", *way,
                                               "--blocks", blocks)
                    seen.add(tuple(result["residuals"]))
            self.assertEqual(len(seen), 1)
            residuals = list(seen.pop())
            self.assertEqual(residuals, sorted(residuals, reverse=True))
            self.assertGreater(residuals[-1], 0)

    def test_blocks_of_all_sizes(self):
        for blocks in (1, 2, 5, 7, 16):
            for tile in ("held", "streamed"):
                with self.subTest(blocks=blocks, tile=tile):
                    result = self.expect_right(*of_grid("2x1"), "--rows", 19, "--columns", 23, "--way", "in_kernel", "--tile", tile,
                                               "--blocks", blocks)
                    self.assertLessEqual(int(result["blocks"].split()[0]), blocks)

    def test_tiles_of_large_patches(self):
        """What no tile holds is streamed; the CPU's tiles have up to 64 patches."""
        for rows, columns, blocks, says in ((40, 67, 2, "held in patches of 9 x 8"), (81, 70, 4, "held in patches of 9 x 8"),
                                            (1, 300, 2, "held in patches of 5 x 4"), (150, 160, 4, "streamed")):
            with self.subTest(rows=rows, columns=columns):
                result = self.expect_right(*of_grid("2x2"), "--rows", rows, "--columns", columns, "--blocks", blocks)
                self.assertIn(says, result["blocks"])
        self.refuse(*JOB, "--size", 200, "--tile", "held", says="tile held: 4 blocks have no registers for 200 x 200 elements of fp32")

    def test_random_pauses(self):
        for way in WAYS:
            for seed in (1, 2):
                with self.subTest(way=way, seed=seed):
                    self.expect_right(*of_grid("2x2"), "--size", 11, "--way", *way, "--delays", seed)

    def test_residuals_may_be_few_or_none(self):
        for every, count in ((1, 21), (21, 1), (22, 0)):
            for way in WAYS:
                with self.subTest(every=every, way=way):
                    result = self.expect_right(*of_grid("1x2"), "--size", 9, "--way", *way, "--residual-every", every)
                    self.assertEqual(len(result["residuals"]), count)

    def test_another_seed_is_another_field(self):
        one = self.expect_right(*of_grid("1x2"), "--size", 9, "--seed", 1)
        other = self.expect_right(*of_grid("1x2"), "--size", 9, "--seed", 2)
        self.assertNotEqual(one["residuals"], other["residuals"])

    def test_a_lost_pe_ends_all(self):
        for way in ("in_kernel", "kernel_boundaries", "ring"):
            job = subprocess.Popen([PROGRAM, *map(str, JOB), "--ranks", "3", "--size", "32", "--sweeps", "100000000",
                                    "--residual-every", "100000000", "--way", way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ranks = []
            deadline = time.monotonic() + 30
            while len(ranks) < 3 and time.monotonic() < deadline:
                with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
                    ranks = file.read().split()
            self.assertEqual(len(ranks), 3)
            time.sleep(0.5)
            os.kill(int(ranks[1]), signal.SIGKILL)
            _, errors = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 3, errors)
            self.assertIn("rank 1", errors)
            self.assertIn("lost", errors)

    def test_bad_input_is_named(self):
        size = ["--size", 8]
        run = ["run", "jacobi", "--device", "cpu"]
        self.refuse(*run, says="--size is missing; jacobi needs --size, or --rows and --columns")
        self.refuse(*run, "--rows", 8, says="--columns is missing")
        self.refuse(*run, *size, "--rows", 8, says="--size says both --rows and --columns")
        self.refuse(*run, "--size", 0, says=["--size", "'0'", "from 1"])
        self.refuse(*run, "--size", 99999999999, says=["--size", "'99999999999'"])
        self.refuse(*run, "--size", "many", says="'many'")
        self.refuse(*run, "--rows", 1 << 24, "--columns", 1 << 24, says=["16777216 x 16777216", "2^32"])
        self.refuse(*run, *size, "--grid", "2x3", says="grid 2x3: 2 x 3 are 6 PEs, and there are 4 ranks")
        for grid in ("4", "x", "2x", "x2", "2x2x1", "-2x-2", "0x4", "2 x 2", "99999999999x1", "axb"):
            self.refuse(*run, *size, "--grid", grid, says=[f"grid '{grid}'", "rows x columns"])
        self.refuse(*run, *size, "--way", "by_mail", says=["--way", "'by_mail' is not a way", "in_kernel"])
        self.refuse(*run, *size, "--tile", "round", says=["--tile", "'round'", "streamed"])
        self.refuse(*run, *size, "--way", "graph", says="way graph: the CPU has no graphs")
        self.refuse(*run, *size, "--way", "graph", "--sweeps", 10000, "--residual-every", 5000, says=["residual-every = 5000", "4096 sweeps"])
        self.refuse(*run, *size, "--way", "overlapped", "--tile", "held", says="tile held: it is about the way in_kernel, not overlapped")
        for sweeps in (0, -1, "1.5", 10**12):
            self.refuse(*run, *size, "--sweeps", sweeps, says=["--sweeps", f"'{sweeps}'"])
            self.refuse(*run, *size, "--residual-every", sweeps, says=["--residual-every", f"'{sweeps}'"])
        self.refuse(*run, *size, "--sweeps", 10**8, "--residual-every", 1, says="100000000 residuals")
        self.refuse(*run, *size, "--blocks", 5000, says=["--blocks", "'5000'"])
        for number in ("fp16", "bf16", "e4m3"):
            self.refuse(*run, *size, "--type", number, says=f"type '{number}': jacobi works in fp32 or fp64")
        self.refuse(*run, *size, "--type", "fp128", says=["--type", "'fp128'"])
        self.refuse("run", "gemm_all_reduce", "--m", 8, "--n", 8, "--k", 8, "--type", "fp64", says=["--type", "'fp64'"])
        self.refuse(*run, *size, "--m", 8, says="--m is about operators with a GEMM, not jacobi")
        self.refuse("run", "gemm_all_reduce", "--m", 8, "--n", 8, "--k", 8, "--grid", "2x2", says="--grid is about jacobi, not gemm_all_reduce")
        self.refuse(*run, *size, "--world", "galaxy", says="'galaxy'")
        for command in (["plan"], ["simulate", "--machine", "4xh200"]):
            self.refuse(command[0], "jacobi", *command[1:], says="jacobi has no plan: it can only be run")

    def test_pes_that_disagree(self):
        """Every rank of a launcher says what differs."""
        self.write("each.sh", f'exec "{PROGRAM}" run jacobi --device cpu --ranks 2 --size $((8 + IMBREX_RANK))\n')
        _, errors = self.run_program("launch", "-n", 2, "--", "sh", "each.sh", code=2)
        self.assertIn("rows", errors)

    def test_under_a_launcher(self):
        out, _ = self.run_program("launch", "-n", 4, "--", PROGRAM, *JOB, *SWEEPS, "--size", 10, "--verify", "--json", self.path("r.json"))
        self.assertTrue(json.loads(self.read("r.json"))["verified"], out)


if __name__ == "__main__":
    unittest.main()
