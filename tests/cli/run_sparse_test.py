#!/usr/bin/env python3
"""`imbrex run sparse_triangular_solve`: matrices from files and generators."""

import json
import unittest

from program import Case

SOLVE = "sparse_triangular_solve"
LOWER = "%%MatrixMarket matrix coordinate real general\n4 4 7\n1 1 2\n2 1 1\n2 2 4\n3 3 1\n4 2 1\n4 3 -3\n4 4 0.5\n"
SYMMETRIC = "%%MatrixMarket matrix coordinate integer symmetric\n3 3 5\n1 1 2\n2 1 1\n2 2 4\n3 2 5\n3 3 1\n"


class RunSparse(Case):
    def run_program(self, *arguments, **keywords):
        """On the CPU, also where there are GPUs."""
        if "--device" not in arguments:
            arguments += ("--device", "cpu")
        return super().run_program(*arguments, **keywords)

    def array(self, name):
        lines = self.read(name).splitlines()
        self.assertEqual(lines[0], "%%MatrixMarket matrix array real general")
        rows, cols = map(int, lines[1].split())
        values = [float(line) for line in lines[2:]]
        self.assertEqual(len(values), rows * cols)
        return [values[c * rows:(c + 1) * rows] for c in range(cols)]

    def test_every_kind_is_right_and_every_way_the_same(self):
        for kind, levels in (("grid", 15), ("banded", 600), ("power_law", 5), ("block", 16)):
            digests = set()
            for way, world, workers in (("in_kernel", "processes", 1), ("kernel_boundaries", "threads", 2), ("in_kernel", "threads", 3),
                                        ("ring", "processes", 2)):
                with self.subTest(kind=kind, way=way, world=world):
                    result = self.json_of("run", SOLVE, "--generate", kind, "--unknowns", 600, "--seed", 7, "--ranks", 3, "--solve-way", way,
                                          "--world", world, "--workers", workers, "--sharing", "cyclic", "--block-rows", 10,
                                          "--right-hand-sides", 2, "--precision", "fp32", "--repeat", 3, "--transposed", "--verify")
                    self.assertTrue(result["verified"])
                    self.assertLessEqual(result["max_error_over_bound"], 1)
                    self.assertGreaterEqual(result["problem"]["levels"], levels)
                    self.assertGreater(result["messages"], 0)
                    self.assertEqual(len(result["seconds"]), 3)
                    self.assertGreaterEqual(result["analysis_seconds"], 0)
                    digests.add(result["digest"])
            self.assertEqual(len(digests), 1)

    def test_a_solution_beyond_the_type_overflows(self):
        self.write("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 4.9e-324\n2 1 1\n2 2 1\n")
        text, errors = self.run_program("run", SOLVE, "--matrix", "a.mtx", "--ranks", 2, "--verify", "--json", "result.json", code=1)
        self.assertIn("overflow: the solution has elements that fp64 does not hold\n", text)
        self.assertRegex(errors, r"row 1, right-hand side 1: the solution overflows fp64: it is -?inf\n")
        self.assertTrue(json.loads(self.read("result.json"))["overflows"])

    def test_a_file_is_solved(self):
        self.write("a.mtx", LOWER)
        dense = [[2, 0, 0, 0], [1, 4, 0, 0], [0, 0, 1, 0], [0, 1, -3, .5]]
        for transposed in (False, True):
            out = f"x{int(transposed)}"
            result = self.json_of("run", SOLVE, "--matrix", "a.mtx", "--ranks", 2, "--right-hand-sides", 3, "--out", out, "--verify",
                                  *(["--transposed"] if transposed else []))
            self.assertEqual((result["problem"]["rows"], result["problem"]["entries"]), (4, 7))
            for x in self.array(out + ".mtx"):
                b = [sum((dense[j][i] if transposed else dense[i][j]) * x[j] for j in range(4)) for i in range(4)]
                # Right-hand sides are multiples of 2^-23 in [-1, 1).
                for value in b:
                    self.assertAlmostEqual(value * 2**23, round(value * 2**23), delta=1e-6)
                    self.assertLessEqual(abs(value), 1)
        self.assertNotEqual(self.array("x0.mtx"), self.array("x1.mtx"))

    def test_a_part_of_a_matrix_and_standard_input(self):
        for part in ("lower", "upper"):
            result = self.json_of("run", SOLVE, "--matrix", "-", "--part", part, "--ranks", 1, "--verify", stdin=SYMMETRIC)
            self.assertEqual((result["problem"]["entries"], result["problem"]["levels"]), (5, 3))
        self.refuse("run", SOLVE, "--matrix", "-", says=["row 1: entry (1, 2) lies above the diagonal", "not triangular"], stdin=SYMMETRIC)

    def test_hostile_files_are_refused_by_line(self):
        header = "%%MatrixMarket matrix coordinate real general\n"
        for text, says in (("", "line 1: the file does not begin with %%MatrixMarket"),
                           (header + "2 2 100000000000\n1 1 1\n", "line 2: 100000000000 entries: what follows has at most 1"),
                           (header + "2147483646 2147483646 1\n1 1 1\n", "row 2: it has no diagonal: the matrix is singular"),
                           (header + "2 2 2\n1 1 1\n3 1 1\n", "line 4: row 3: it must be from 1 to 2"),
                           (header + "2 2 2\n1 1 1\n1 1 1\n", "line 4: entry (1, 1) comes twice"),
                           (header + "1 1 1\n1 1 nan\n", "line 3: the value is not finite"),
                           (header + "2 2 2\n1 1 1.00000\n", "line 4: the file ends after 1 of 2 entries"),
                           (header + "1 1 1\n1 1 1\nmore\n", "line 4: something follows the last of 1 entries"),
                           (header + "2 3 1\n1 1 1\n", "2 x 3: a triangular one is square"),
                           (header + "2 2 2\n1 1 1\n2 2 0\n", "row 2: its diagonal is 0")):
            with self.subTest(says=says):
                self.refuse("run", SOLVE, "--matrix", self.write("bad.mtx", text), says=["bad.mtx: ", says])
        self.refuse("run", SOLVE, "--matrix", "missing.mtx", says="missing.mtx")

    def test_options_that_do_not_go_together_are_refused(self):
        self.refuse("run", SOLVE, says="needs --matrix, or --generate and --unknowns")
        self.refuse("run", SOLVE, "--generate", "grid", says="--unknowns is missing")
        self.refuse("run", SOLVE, "--generate", "grid", "--unknowns", 5, "--matrix", "a.mtx", says="--matrix 'a.mtx' and --generate: one of them")
        self.refuse("run", SOLVE, "--generate", "roads", "--unknowns", 5, says="'roads': it must be grid, banded, power_law, block")
        self.refuse("run", SOLVE, "--generate", "grid", "--unknowns", 5, "--block-rows", 2, says="--block-rows is about --sharing cyclic")
        self.refuse("run", SOLVE, "--generate", "grid", "--unknowns", 5, "--ranks", 1, "--compare", says="this run is on the CPU")
        self.refuse("run", SOLVE, "--generate", "grid", "--unknowns", 5, "--m", 5, says="--m is about operators with a GEMM")
        self.refuse("run", "all_reduce", "--generate", "grid", says=f"--generate is about {SOLVE}, not all_reduce")
        self.refuse("run", SOLVE, "--generate", "grid", "--unknowns", 5, "--out", "missing/x", says=["--out", "missing"])
        self.refuse("plan", SOLVE, says=SOLVE)


if __name__ == "__main__":
    unittest.main()
