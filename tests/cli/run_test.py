#!/usr/bin/env python3
"""`imbrex run` on tensors from files and from a seed."""

import json
import os
import re
import subprocess
import unittest
import xml.etree.ElementTree

from program import OPERATORS, PROGRAM, Case

# Small integers: every product and sum is exact in every type, so the expected result is exact too.
M, N, K, R = 12, 8, 16, 4


def entry(matrix, row, col):
    return float((3 * row + 5 * col + matrix) % 7 - 3) / 2


def matrix(number, rows, cols):
    return [entry(number, r, c) for r in range(rows) for c in range(cols)]


def product(rows, first_a=0, first_b=0):
    """A B for A's rows from first_a and B's from first_b, as a list of rows."""
    return [[sum(entry(0, first_a + r, k) * entry(1, first_b + k, c) for k in range(K)) for c in range(N)] for r in range(rows)]


def expected(op, rank):
    if op == "gemm_all_to_all":
        block = M // R
        return [row for s in range(R) for row in product(M, s * M, s * K)[rank * block:(rank + 1) * block]]
    whole = product(M)
    if op == "all_gather_gemm":
        return [row[rank * N // R:(rank + 1) * N // R] for row in whole]
    if op == "gemm_reduce_scatter":
        return whole[rank * M // R:(rank + 1) * M // R]
    return whole


class Run(Case):
    def run_program(self, *arguments, **keywords):
        """On the CPU, also where there are GPUs, unless a test says otherwise."""
        if arguments[0] == "run" and "--device" not in arguments:
            arguments += ("--device", "cpu")
        return super().run_program(*arguments, **keywords)

    def write_operands(self, op):
        stacked = R if op == "gemm_all_to_all" else 1
        self.write_npy("a.npy", stacked * M, K, matrix(0, stacked * M, K))
        self.write_npy("b.npy", stacked * K, N, matrix(1, stacked * K, N))

    def test_files_in_files_out(self):
        for op in OPERATORS:
            self.write_operands(op)
            for strategy in ("sequential", "decomposed", "fused"):
                for world in ("processes", "threads"):
                    with self.subTest(op=op, strategy=strategy, world=world):
                        self.run_program("run", op, "--a", "a.npy", "--b", "b.npy", "--ranks", R, "--type", "fp32",
                                         "--strategy", strategy, "--world", world, "--out", "y", "--verify")
                        for rank in range(R):
                            rows, cols, values = self.read_npy(f"y.rank{rank}.npy")
                            want = expected(op, rank)
                            self.assertEqual((rows, cols), (len(want), len(want[0])))
                            self.assertEqual(values, [value for row in want for value in row])
                            os.remove(self.path(f"y.rank{rank}.npy"))
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.npy", "b.npy"])

    def test_codecs_stay_within_the_bound(self):
        """Signaled groups may lie packed, tile after tile, edges included."""
        for sizes in ((512, 512, 64, 4), (300, 200, 96, 3)):
            m, n, k, ranks = sizes
            for codec in ("int8", "int4+int8", "flash6"):
                for strategy in ("sequential", "decomposed", "signaled"):
                    with self.subTest(sizes=sizes, codec=codec, strategy=strategy):
                        result = self.json_of("run", "gemm_all_reduce", "--m", m, "--n", n, "--k", k, "--ranks", ranks, "--codec", codec,
                                              "--strategy", strategy, "--verify")
                        self.assertTrue(result["verified"])

    def test_result(self):
        result = self.json_of("run", "gemm_all_reduce", "--m", 40, "--n", 24, "--k", 32, "--verify", "--repeat", 3)
        self.assertEqual(result["exit_code"], 0)
        self.assertTrue(result["verified"])
        self.assertLessEqual(result["max_error_over_bound"], 1)
        self.assertEqual(len(result["seconds"]), 3)
        self.assertEqual(result["device"], "cpu")
        self.assertEqual(result["problem"], {"operator": "gemm_all_reduce", "m": 40, "n": 24, "k": 32, "ranks": 4, "type": "bf16", "bias": False})

    def test_same_bits_every_time(self):
        job = ["run", "gemm_reduce_scatter", "--m", 40, "--n", 24, "--k", 32, "--seed", 5]
        self.run_program(*job, "--out", "x")
        self.run_program(*job, "--out", "y", "--workers", 3, "--delays", 7)
        for rank in range(4):
            self.assertEqual(self.read(f"x.rank{rank}.npy", "rb"), self.read(f"y.rank{rank}.npy", "rb"))

    def test_a_plan_file_runs_as_it_is(self):
        self.run_program("plan", "all_gather_gemm", "--m", 40, "--n", 24, "--k", 32, "--strategy", "decomposed", "--chunks", 3,
                         "--json", "plan.json")
        result = self.json_of("run", "--plan", "plan.json", "--verify")
        self.assertEqual((result["strategy"], result["verified"]), ("decomposed", True))
        result = self.json_of("run", "all_gather_gemm", "--plan", "plan.json", "--unchecked", "--verify")
        self.assertTrue(result["verified"])

    def test_a_wrong_unchecked_plan_is_found_out_or_stopped(self):
        self.run_program("plan", "gemm_reduce_scatter", "--m", 40, "--n", 24, "--k", 32, "--strategy", "fused", "--json", "plan.json")
        plan = json.loads(self.read("plan.json"))
        for rank in plan["ranks"]:
            for queue in rank["queues"]:
                for task in queue["tasks"]:
                    if task.get("posts"):
                        task["posts"] = []
        self.write("bad.json", json.dumps(plan))
        self.refuse("run", "--plan", "bad.json", "--unchecked", "--wait-limit", 0.5, "--json", "r.json", code=3, says="wait")
        self.assertEqual(json.loads(self.read("r.json"))["exit_code"], 3)

    def test_bias(self):
        for op in OPERATORS:
            for strategy in ("sequential", "decomposed", "fused"):
                with self.subTest(op=op, strategy=strategy):
                    result = self.json_of("run", op, "--m", 40, "--n", 24, "--k", 32, "--with-bias", "--strategy", strategy, "--verify",
                                          "--repeat", 2)
                    self.assertTrue(result["verified"])
                    self.assertTrue(result["problem"]["bias"])

    def test_bias_from_a_file(self):
        # A and B of ones: the bias is what is left after taking K away.
        self.write_npy("a.npy", 8, 4, [1.0] * 32)
        self.write_npy("b.npy", 4, 8, [1.0] * 32)
        self.write_npy("bias.npy", 1, 8, [float(i) for i in range(8)])
        files = ["--a", "a.npy", "--b", "b.npy", "--ranks", 2, "--type", "fp32"]
        self.run_program("run", "gemm_reduce_scatter", *files, "--bias", "bias.npy", "--out", "y")
        self.assertEqual(self.read_npy("y.rank1.npy"), (4, 8, [4.0 + i for i in range(8)] * 4))
        self.refuse("run", "gemm_reduce_scatter", *files, "--with-bias", says="--bias is missing")
        self.refuse("run", "gemm_all_reduce", "--m", 8, "--n", 8, "--k", 8, "--bias", "bias.npy", says="--with-bias")
        self.write_npy("bias.npy", 2, 8, [1.0] * 16)
        self.refuse("run", "gemm_reduce_scatter", *files, "--bias", "bias.npy", says=["bias.npy is 2 x 8", "1 x 8"])

    def test_e4m3(self):
        sizes = ["--m", 40, "--n", 24, "--k", 32, "--type", "e4m3"]
        for op in OPERATORS:
            for scales in ("none", "tensor", "row"):
                for strategy in ("sequential", "decomposed", "fused"):
                    with self.subTest(op=op, scales=scales, strategy=strategy):
                        result = self.json_of("run", op, *sizes, "--scales", scales, "--strategy", strategy, "--verify", "--repeat", 2)
                        self.assertTrue(result["verified"])
                        self.assertEqual(result["problem"].get("scales", "none"), scales)
        result = self.json_of("run", "gemm_all_reduce", *sizes, "--verify")
        self.assertEqual((result["problem"]["type"], result["problem"]["scales"]), ("e4m3", "tensor"))
        self.refuse("run", "gemm_all_reduce", *sizes[:-2], "--scales", "row", says="--scales row with type bf16: only e4m3 has scales")
        self.refuse("run", "gemm_all_reduce", *sizes, "--scales", "col", says="'col' is not a kind of scales")
        self.refuse("run", "gemm_all_reduce", *sizes, "--strategy", "fused", "--transport", "store", "--partial", "e4m3",
                    says="knob partial = e4m3")
        self.refuse("run", "all_reduce", "--m", 4, "--n", 8, "--type", "e4m3", says="all_reduce: type e4m3")

    def test_layouts_of_b(self):
        sizes = ["--m", 40, "--n", 24, "--k", 32]
        for op in OPERATORS:
            for type_ in ("bf16", "fp16", "fp32"):
                for strategy in ("sequential", "decomposed", "fused"):
                    with self.subTest(op=op, type=type_, strategy=strategy):
                        result = self.json_of("run", op, *sizes, "--type", type_, "--strategy", strategy, "--b-layout", "nxk", "--verify")
                        self.assertTrue(result["verified"])
                        self.assertEqual(result["problem"]["b_layout"], "nxk")
        self.assertNotIn("b_layout", self.json_of("run", "gemm_all_reduce", *sizes, "--b-layout", "kxn", "--verify")["problem"])
        # Files hold K x N, whichever way B is to lie.
        self.write_npy("a.npy", 8, 4, [float(i % 5) for i in range(32)])
        self.write_npy("b.npy", 4, 6, [float(i % 7) for i in range(24)])
        job = ["run", "gemm_reduce_scatter", "--a", "a.npy", "--b", "b.npy", "--ranks", 2, "--type", "fp32", "--verify"]
        for layout in ("kxn", "nxk"):
            self.run_program(*job, "--b-layout", layout, "--out", layout)
        self.assertEqual(self.read_npy("kxn.rank1.npy"), self.read_npy("nxk.rank1.npy"))
        # A plan is made for one of them.
        self.run_program("plan", "gemm_all_reduce", *sizes, "--b-layout", "nxk", "--strategy", "fused", "--json", "plan.json")
        self.assertTrue(self.json_of("run", "gemm_all_reduce", "--plan", "plan.json", "--b-layout", "nxk", "--verify")["verified"])
        self.refuse("run", "gemm_all_reduce", "--plan", "plan.json", "--b-layout", "kxn", says=["--b-layout is kxn", "made for nxk"])
        self.refuse("run", "gemm_all_reduce", *sizes, "--b-layout", "nkx", says=["'nkx'", "kxn or nxk"])
        self.run_program("run", "gemm_all_reduce", *sizes, "--type", "e4m3", "--b-layout", "nxk", "--verify")
        self.refuse("run", "gemm_all_reduce", *sizes, "--type", "e4m3", "--b-layout", "kxn", says=["--b-layout kxn", "lies nxk"])

    def test_e4m3_from_files(self):
        # Codes of e4m3: 1 is 0x38, 2 is 0x40, -1 is 0xb8. Every element of A is 1, B's columns are 1, 2, -1, 1, ...
        code, value = [0x38, 0x40, 0xb8], [1.0, 2.0, -1.0]
        self.write_npy("a.npy", 8, 16, [0x38] * 128, "|u1", "B")
        self.write_npy("b.npy", 16, 6, [code[c % 3] for _ in range(16) for c in range(6)], "|u1", "B")
        self.write_npy("sa.npy", 2, 8, [2.0 ** (r % 3) for _ in range(2) for r in range(8)])
        self.write_npy("sb.npy", 2, 6, [0.5] * 6 + [2.0] * 6)
        files = ["--a", "a.npy", "--b", "b.npy", "--ranks", 2, "--type", "e4m3"]
        job = ["run", "gemm_reduce_scatter", *files, "--scales", "row"]
        self.run_program(*job, "--a-scale", "sa.npy", "--b-scale", "sb.npy", "--out", "y", "--verify")
        for rank in range(2):
            # 8 of K on each rank, times the scales of both: 0.5 + 2.
            want = [8 * value[c % 3] * 2.0 ** (r % 3) * 2.5 for r in range(4 * rank, 4 * rank + 4) for c in range(6)]
            self.assertEqual(self.read_npy(f"y.rank{rank}.npy"), (4, 6, want))
        # A scale that is no number makes its row none, and no other.
        self.write_npy("nan.npy", 2, 8, [float("nan")] + [1.0] * 15)
        self.run_program(*job, "--a-scale", "nan.npy", "--b-scale", "sb.npy", "--out", "y", "--verify")
        self.assertEqual([v == v for v in self.read_npy("y.rank0.npy")[2]], [False] * 6 + [True] * 18)
        self.refuse(*job, "--a-scale", "sa.npy", says=["--b-scale is missing", "a row"])
        self.refuse("run", "gemm_reduce_scatter", *files, says=["--a-scale is missing", "a tensor"])
        self.refuse("run", "gemm_reduce_scatter", *files, "--scales", "none", "--b-scale", "sb.npy", says=["--b-scale sb.npy", "without scales"])
        self.refuse("run", "gemm_all_reduce", "--m", 8, "--n", 8, "--k", 16, "--type", "e4m3", "--a-scale", "sa.npy",
                    says="--a-scale needs --a and --b")
        self.refuse(*job, "--a-scale", "sb.npy", "--b-scale", "sb.npy", says=["sb.npy is 2 x 6", "must be 2 x 8"])
        self.refuse("run", "gemm_reduce_scatter", *files[:-2], says="a.npy holds uint8, the bits of e4m3")

    def test_infinities_are_right_where_they_must_be(self):
        inf = float("inf")
        for odd in (inf, -inf, float("nan")):
            a = [1.0] * 32
            a[10] = odd
            self.write_npy("a.npy", 4, 8, a)
            self.write_npy("b.npy", 8, 6, [1.0] * 48)
            for op in ("gemm_all_reduce", "all_gather_gemm"):
                for strategy in ("sequential", "fused"):
                    with self.subTest(odd=odd, op=op, strategy=strategy):
                        self.run_program("run", op, "--a", "a.npy", "--b", "b.npy", "--ranks", 2, "--type", "fp32", "--device", "cpu",
                                         "--strategy", strategy, "--verify")

    def test_a_launcher_says_how_many_ranks_there_are(self):
        for op in ("gemm_all_reduce", "all_reduce"):
            sizes = ["--m", 66, "--n", 16] + (["--k", 66] if op == "gemm_all_reduce" else [])
            text, _ = self.run_program("launch", "-n", 3, "--", PROGRAM, "run", op, *sizes, "--device", "cpu", "--verify")
            self.assertIn("3 ranks", text)
        self.refuse("launch", "-n", 3, "--", PROGRAM, "run", "gemm_all_reduce", "--m", 64, "--n", 16, "--k", 64, "--ranks", 4,
                    "--device", "cpu", says="4 ranks are asked for, by --ranks or a plan, but the launcher started 3")

    def test_what_is_larger_than_the_machine_is_refused(self):
        huge = 2**31 - 64
        left = "of this host's memory at least, and "
        for device in ("cpu", "auto"):
            self.refuse("run", "gemm_all_reduce", "--m", huge, "--n", huge, "--k", huge, "--device", device, "--verify",
                        says=["gemm_all_reduce", f"{huge}", "over 4 ranks, verified, needs", left], environment={"CUDA_VISIBLE_DEVICES": ""})
        self.refuse("run", "all_reduce", "--m", 2**20, "--n", 2**20, "--ranks", 64, "--device", "cpu", says=["all_reduce 1048576 x 1048576", left])
        for far in ("--lda", "--ldb", "--ldo"):
            self.refuse("run", "gemm_all_to_all", "--m", 4096, "--n", 64, "--k", 4096, far, 2**31 - 1, "--device", "cpu", says=["gemm_all_to_all", left])

    def test_a_file_that_may_not_grow_is_an_error(self):
        done = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", PROGRAM, "run", "gemm_all_reduce", "--m", "64", "--n", "64",
                               "--k", "64", "--device", "cpu"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("File too large", done.stderr)

    def test_kernels_are_about_gpus(self):
        sizes = ("gemm_all_reduce", "--m", 8, "--n", 8, "--k", 8)
        self.refuse("run", *sizes, "--kernel", "plain", says="--kernel is about GPUs; --device is cpu")
        self.refuse("run", *sizes, "--device", "auto", "--workers", 2, "--kernel", "plain", says="--workers is about the CPU")

    def test_timelines(self):
        self.run_program("run", "all_gather_gemm", "--m", 40, "--n", 24, "--k", 32, "--trace", "t.svg")
        self.assertTrue(xml.etree.ElementTree.fromstring(self.read("t.svg")).tag.endswith("svg"))
        self.run_program("trace", "all_gather_gemm", "--m", 40, "--n", 24, "--k", 32, "--measured", "--out", "t.json")
        self.assertTrue(json.loads(self.read("t.json"))["traceEvents"])

    def test_ranks_per_gpu_is_about_gpus(self):
        sizes = ["gemm_all_reduce", "--m", 8, "--n", 8, "--k", 8, "--ranks", 2]
        for value in (0, -1, 65, "few"):
            self.refuse("run", *sizes, "--device", "cuda", "--ranks-per-gpu", value, says=["--ranks-per-gpu", str(value), "1 to 64"])
        for value in (1, 2):
            self.refuse("run", *sizes, "--ranks-per-gpu", value, "--device", "cpu",
                        says=f"--ranks-per-gpu {value} is about GPUs; --device is cpu")
        self.refuse("run", *sizes, "--workers", 2, "--ranks-per-gpu", 2, says="--ranks-per-gpu 2 is about GPUs; --workers is about the CPU")
        self.refuse("run", "all_reduce", "--m", 8, "--n", 8, "--ranks-per-gpu", 2, says="--ranks-per-gpu")
        self.assertIn("--ranks-per-gpu", self.run_program("run", "--help-all")[0])

    def test_under_a_launcher(self):
        from program import PROGRAM
        out, _ = self.run_program("launch", "-n", 4, "--", PROGRAM, "run", "gemm_all_reduce", "--m", 40, "--n", 24, "--k", 32,
                                  "--verify", "--out", "y", "--device", "cpu")
        self.assertEqual(out.count("right"), 1)
        self.assertEqual(len(os.listdir(self.folder)), 4)

    def test_auto_says_why(self):
        """In one line, also as JSON; nothing is said of a strategy or a plan that was given."""
        sizes = ["gemm_reduce_scatter", "--m", 64, "--n", 64, "--k", 64, "--device", "cpu"]
        text, _ = self.run_program("run", *sizes)
        time = r"[\d.]+ (?:us|ms)"
        found = re.findall(rf"^auto takes (\w+): {time}, estimated with a generic CPU model; \w+ {time}, \w+ {time}.*$", text, re.M)
        self.assertEqual(len(found), 1, text)
        self.assertIn(f" on cpu, {found[0]}: ", text)
        result = self.json_of("run", *sizes, "--repeat", 2)
        self.assertRegex(result["why"], rf"^auto takes {result['strategy']}: ")
        self.assertNotIn("auto takes", self.run_program("run", *sizes, "--strategy", "fused")[0])
        self.run_program("plan", *sizes, "--json", "plan.json")
        self.assertNotIn("why", self.json_of("run", "--plan", "plan.json", "--device", "cpu"))

    def test_device(self):
        """Without GPUs, auto takes the CPU and cuda is refused at once; what needs the CPU takes it anywhere."""
        job = ["run", "gemm_all_reduce", "--m", 40, "--n", 24, "--k", 32]
        self.assertEqual(self.json_of(*job, "--device", "auto", "--workers", 2)["device"], "cpu")
        self.refuse(*job, "--device", "cuda", "--workers", 2, says="--workers")
        if self.json_of("doctor")["gpus"]:
            self.skipTest("GPUs are there; tests/gpu/run_test.py runs on them")
        for world in ("processes", "threads"):
            self.assertEqual(self.json_of(*job, "--device", "auto", "--world", world)["device"], "cpu")
            self.refuse(*job, "--device", "cuda", "--world", world, "--json", "r.json", says="device cuda: ")
            self.assertEqual(json.loads(self.read("r.json"))["exit_code"], 2)

    def test_hostile_files(self):
        self.write_operands("gemm_all_reduce")
        good = self.read("a.npy", "rb")
        job = ["run", "gemm_all_reduce", "--ranks", R]
        for name, data in {"empty": b"", "text": b"1,2,3\n", "short": good[:-1], "long": good + b"\0", "header": good[:40],
                           "big": good.replace(b"<f4", b">f4"), "ints": good.replace(b"<f4", b"<i4"),
                           "fortran": good.replace(b"False", b"True "), "huge": good.replace(b"(12, 16)", b"(99999999, 99999999)"),
                           "code": good.replace(b"False", b"__import__('os')")}.items():
            with self.subTest(name):
                self.write(f"{name}.npy", data)
                self.refuse(*job, "--a", f"{name}.npy", "--b", "b.npy", says=f"{name}.npy")
        self.refuse(*job, "--a", "absent.npy", "--b", "b.npy", says="absent.npy")
        self.refuse(*job, "--a", "a.npy", says="--b")
        self.refuse(*job, "--a", "a.npy", "--b", "b.npy", "--seed", 1, says="--seed")
        self.write_npy("c.npy", K + 1, N, matrix(1, K + 1, N))
        self.refuse(*job, "--a", "a.npy", "--b", "c.npy", says=str(K + 1))

    def test_large_results_are_compared_in_rows_that_are_drawn(self):
        large = ["run", "gemm_all_reduce", "--ranks", 1, "--m", 2048, "--n", 4096, "--k", 4096, "--device", "cpu"]
        result = self.json_of(*large, "--verify", "--verify-seed", 7)
        self.assertEqual((result["verified"], result["compared_rows"], result["all_rows"], result["verify_seed"]), (True, 1024, 2048, 7))
        self.assertLessEqual(result["max_error_over_bound"], 1)
        output, _ = self.run_program(*large, "--verify", "--verify-seed", 7)
        self.assertIn("right: ", output)
        self.assertIn("compared: 1024 of 2048 rows, one of each 2, drawn by seed 7. An error in 3 adjacent rows is always found, one in a "
                      "single row is missed 1 times of 2. --verify-all compares every row", output)
        # Small ones are compared whole, and so are those for which that is asked.
        self.assertEqual(self.json_of("run", "gemm_all_reduce", "--m", 64, "--n", 64, "--k", 64, "--verify")["compared_rows"], 4 * 64)
        whole = self.json_of(*large[:5], 1024, *large[6:], "--verify-all")
        self.assertEqual((whole["compared_rows"], whole["all_rows"]), (1024, 1024))
        output, _ = self.run_program(*large[:5], 64, *large[6:], "--verify-all")
        self.assertNotIn("compared", output)
        self.refuse(*large, "--verify-seed", 7, says="--verify is not given")

    def test_an_element_that_nothing_wrote_is_found_in_any_row(self):
        self.run_program("plan", "gemm_all_reduce", "--ranks", 1, "--m", 2048, "--n", 4096, "--k", 4096, "--strategy", "fused", "--json", "plan.json")
        plan = json.loads(self.read("plan.json"))
        tile = plan["ranks"][0]["queues"][0]["tasks"][0]["tile"]
        tile["a"][4] = tile["stores"][0][4] = 127  # of 128 rows
        self.write("short.json", json.dumps(plan))
        for seed, says in ((0, "element (127, 0) is"), (1, "nothing was written to element (127, 0)")):  # drawn, not drawn
            self.refuse("run", "--plan", "short.json", "--unchecked", "--device", "cpu", "--verify", "--verify-seed", seed, code=1, says=says)

    def test_progress_from_two_seconds_on(self):
        _, errors = self.run_program("run", "gemm_all_reduce", "--m", 64, "--n", 64, "--k", 64, "--repeat", 1000, "--delays", 1)
        self.assertIn("2 s so far", errors)
        _, errors = self.run_program("run", "gemm_all_reduce", "--m", 64, "--n", 64, "--k", 64)
        self.assertEqual(errors, "")


if __name__ == "__main__":
    unittest.main()
