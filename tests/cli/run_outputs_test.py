#!/usr/bin/env python3
"""`imbrex run all_gather_gemm` with several B for one gathered A, and with the gathered A as an output."""

import json
import unittest

from program import Case

M, K, R = 12, 16, 4
WIDTHS = (8, 4, 16)


def entry(matrix, row, col):
    return float((3 * row + 5 * col + matrix) % 7 - 3) / 2


def matrix(number, rows, cols):
    return [entry(number, r, c) for r in range(rows) for c in range(cols)]


class Outputs(Case):
    def run_program(self, *arguments, **keywords):
        """On the CPU, also where there are GPUs."""
        if arguments[0] in ("run", "plan") and "--device" not in arguments and "--machine" not in arguments:
            arguments += ("--device", "cpu")
        return super().run_program(*arguments, **keywords)

    def write_files(self, widths=WIDTHS):
        """A, each B and each bias; returns the arguments that name them, without and with the biases."""
        self.write_npy("a.npy", M, K, matrix(0, M, K))
        files, biases = ["--a", "a.npy"], []
        for number, width in enumerate(widths):
            name = "" if number == 0 else str(number)
            self.write_npy(f"b{name}.npy", K, width, matrix(1 + number, K, width))
            self.write_npy(f"bias{name}.npy", 1, width, matrix(5 + number, 1, width))
            files += [f"--b{name}", f"b{name}.npy"]
            biases += [f"--bias{name}", f"bias{name}.npy"]
        return files, files + biases

    def expect_files(self, prefix, bias):
        """Every rank's outputs are right to the bit."""
        for rank in range(R):
            for number, width in enumerate(WIDTHS):
                name = "" if number == 0 else f".out{number}"
                part = width // R
                want = [sum(entry(0, r, k) * entry(1 + number, k, c) for k in range(K)) + (entry(5 + number, 0, c) if bias else 0)
                        for r in range(M) for c in range(rank * part, (rank + 1) * part)]
                self.assertEqual(self.read_npy(f"{prefix}{name}.rank{rank}.npy"), (M, part, want))
            self.assertEqual(self.read_npy(f"{prefix}.gathered.rank{rank}.npy"), (M, K, matrix(0, M, K)))

    def test_files_in_files_out(self):
        plain, biased = self.write_files()
        for strategy in ("sequential", "decomposed", "fused"):
            for world in ("processes", "threads"):
                for bias, files in ((False, plain), (True, biased)):
                    with self.subTest(strategy=strategy, world=world, bias=bias):
                        self.run_program("run", "all_gather_gemm", *files, "--ranks", R, "--type", "fp32", "--strategy", strategy,
                                         "--world", world, "--gathered-a", "--out", "y", "--verify", "--b-layout", "nxk" if bias else "kxn")
                        self.expect_files("y", bias)

    def test_seeds_plans_and_predictions(self):
        job = ["all_gather_gemm", "--m", 40, "--n", 24, "--k", 32, "--more-n", "16,8", "--gathered-a", "--with-bias"]
        for strategy in ("sequential", "decomposed", "fused"):
            for type_ in ("bf16", "fp16", "fp32", "e4m3"):
                with self.subTest(strategy=strategy, type=type_):
                    scales = ["--scales", "none"] if type_ == "e4m3" else []
                    result = self.json_of("run", *job, "--type", type_, *scales, "--strategy", strategy, "--verify", "--repeat", 2)
                    self.assertTrue(result["verified"])
                    self.assertEqual((result["problem"]["more_n"], result["problem"]["gathered_a"]), ([16, 8], True))
            self.run_program("plan", *job, "--strategy", strategy, "--json", "plan.json")
            self.assertEqual(json.loads(self.read("plan.json"))["problem"]["more_n"], [16, 8])
            self.assertTrue(self.json_of("check", "plan.json")["sound"])
            self.assertTrue(self.json_of("run", "--plan", "plan.json", "--more-n", "16,8", "--gathered-a", "--verify")["verified"])
            self.assertGreater(self.json_of("simulate", "--plan", "plan.json", "--machine", "4xh200")["seconds"], 0)
            self.run_program("trace", "--plan", "plan.json", "--machine", "4xh200", "--out", "t.svg")
        self.run_program("trace", "--plan", "plan.json", "--measured", "--device", "cpu", "--out", "t.json")
        self.assertNotIn("more_n", self.json_of("run", *job[:7], "--verify")["problem"])

    def test_rows_with_gaps(self):
        sizes = ["--m", 40, "--n", 24, "--k", 32]
        gaps = ["--lda", 35, "--ldb", 33, "--ldo", 50]
        for op in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all"):
            for strategy in ("sequential", "decomposed", "fused", "signaled"):
                with self.subTest(op=op, strategy=strategy):
                    job = [op, *sizes, "--strategy", strategy]
                    result = self.json_of("run", *job, *gaps, "--verify", "--repeat", 2)
                    self.assertTrue(result["verified"])
                    self.assertEqual([result["problem"][key] for key in ("lda", "ldb", "ldo")], [35, 33, 50])
                    self.run_program("plan", *job, *gaps, "--json", "plan.json")
                    self.assertEqual(json.loads(self.read("plan.json"))["problem"]["ldo"], 50)
                    self.assertTrue(self.json_of("check", "plan.json")["sound"])
                    self.assertTrue(self.json_of("run", "--plan", "plan.json", *gaps, "--verify")["verified"])
                    self.refuse("run", op, "--plan", "plan.json", "--ldo", 51, says=["--ldo is 51", "made for 50"])
        several = ["all_gather_gemm", *sizes, "--more-n", "16,8", "--more-ldb", "0,9", "--more-ldo", "7"]
        self.assertEqual(self.json_of("run", *several, "--verify")["problem"]["more_ldb"], [0, 9])
        self.assertNotIn("lda", self.json_of("run", "gemm_all_reduce", *sizes, "--verify")["problem"])
        # What is written to files has no gaps.
        plain, _ = self.write_files()
        for arguments in ([], ["--lda", K + 1, "--ldb", WIDTHS[0] + 3, "--ldo", 9]):
            self.run_program("run", "all_gather_gemm", *plain[:4], "--ranks", R, "--type", "fp32", *arguments, "--out", f"y{len(arguments)}")
        for rank in range(R):
            self.assertEqual(self.read_npy(f"y0.rank{rank}.npy"), self.read_npy(f"y6.rank{rank}.npy"))
        self.refuse("run", "gemm_all_reduce", *sizes, "--lda", 7, says="lda = 7: it must be 0, or from 8, the elements of a row of a")
        self.refuse("plan", "gemm_all_reduce", *sizes, "--ldo", -1, says="--ldo")
        self.refuse("run", "gemm_all_reduce", *sizes, "--more-ldb", 8, says="more_ldb holds 8 where more_n holds 0")
        self.refuse("run", "all_reduce", "--m", 4, "--n", 8, "--ldo", 8, says="--ldo is about operators with a GEMM")

    def test_a_wrong_output_is_found_and_named(self):
        job = ["all_gather_gemm", "--m", 40, "--n", 24, "--k", 32, "--more-n", "16", "--gathered-a"]
        self.run_program("plan", *job, "--strategy", "fused", "--json", "plan.json")
        plan = json.loads(self.read("plan.json"))
        names = [buffer["name"] for buffer in plan["buffers"]]
        for output in ("out1", "gathered"):
            spoilt = json.loads(json.dumps(plan))
            for queue in spoilt["ranks"][1]["queues"]:
                for task in queue["tasks"]:
                    if "tile" in task:
                        task["tile"]["stores"] = [s for s in task["tile"]["stores"] if names[s[1]] != output]
                    elif names[task["transfer"]["to"][1]] == output:
                        task["transfer"] = {"from": [0] * 6, "to": [0] * 6}
            self.write("bad.json", json.dumps(spoilt))
            self.run_program("check", "bad.json", code=1)
            self.refuse("run", "--plan", "bad.json", "--unchecked", "--verify", code=1, says=["rank 1: element (0, 0)", f" of {output} is", "nan"])

    def test_refusals(self):
        sizes = ["--m", 40, "--n", 24, "--k", 32]
        for op in ("gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all"):
            self.refuse("run", op, *sizes, "--more-n", 16, says=f"more_n holds 16 with {op}")
            self.refuse("run", op, *sizes, "--gathered-a", says=f"gathered_a with {op}")
        self.refuse("run", "all_reduce", "--m", 4, "--n", 8, "--more-n", 8, says="--more-n is about operators with a GEMM")
        job = ["run", "all_gather_gemm", *sizes]
        self.refuse(*job, "--more-n", "16,6", says="more_n = 6 does not divide by 4 ranks")
        self.refuse(*job, "--more-n", "16,8,4", says="--more-n")
        self.refuse(*job, "--more-n", "0", says="--more-n")
        self.refuse(*job, "--type", "e4m3", "--more-n", "16", says="with scales tensor")
        self.refuse(*job, "--b1", "b1.npy", says="--b1 needs --a and --b")
        plain, biased = self.write_files()
        files = ["run", "all_gather_gemm", "--ranks", R, "--type", "fp32"]
        self.refuse(*files, *plain[:4], "--b2", "b2.npy", says="--b2 needs --b1")
        self.refuse(*files, *plain[:6], "--bias1", "bias1.npy", says="the problem has no bias")
        self.refuse(*files, *biased[:-2], says="--bias2 is missing")
        self.refuse(*files, *plain[:4], "--more-n", 4, says="--b1 is missing")
        self.refuse(*files, *plain[:6], "--more-n", 8, says=["b1.npy has 4 columns", "not 8"])
        self.write_npy("b1.npy", K - 1, 4, [0.0] * (4 * (K - 1)))
        self.refuse(*files, *plain, says=["b1.npy is 15 x 4", "as many rows as A has columns, 16"])
        self.run_program("plan", "all_gather_gemm", "--m", M, "--n", 8, "--k", K, "--type", "fp32", "--json", "plan.json")
        self.refuse("run", "--plan", "plan.json", *plain, says="the plan is for a problem without it")
        self.refuse("run", "all_gather_gemm", "--plan", "plan.json", "--more-n", 8, says=["--more-n is 8", "made for none"])


if __name__ == "__main__":
    unittest.main()
