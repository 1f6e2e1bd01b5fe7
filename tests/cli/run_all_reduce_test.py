#!/usr/bin/env python3
"""`imbrex run all_reduce`: tensors from files and from a seed, exact and through codecs."""

import json
import math
import os
import subprocess
import unittest

from program import PROGRAM, Case

M, N, R = 6, 40, 4


def entry(rank, row, col):
    """A small integer, so that exact sums are exact in every type."""
    return float((3 * row + 5 * col + 7 * rank) % 11 - 5)


STACKED = [entry(rank, row, col) for rank in range(R) for row in range(M) for col in range(N)]
SUM = [sum(entry(rank, row, col) for rank in range(R)) for row in range(M) for col in range(N)]


class RunAllReduce(Case):
    def run_program(self, *arguments, **keywords):
        """On the CPU, also where there are GPUs, unless a test says otherwise."""
        if arguments[0] == "run" and "--device" not in arguments:
            arguments += ("--device", "cpu")
        return super().run_program(*arguments, **keywords)

    def outputs(self, prefix="y"):
        return [self.read_npy(f"{prefix}.rank{rank}.npy") for rank in range(R)]

    def test_exact_from_a_file(self):
        self.write_npy("a.npy", R * M, N, STACKED)
        for kind in ("bf16", "fp16", "fp32"):
            for algorithm in ("auto", "one_shot", "two_shot"):
                for world in ("processes", "threads"):
                    with self.subTest(kind=kind, algorithm=algorithm, world=world):
                        self.run_program("run", "all_reduce", "--a", "a.npy", "--ranks", R, "--type", kind, "--algorithm", algorithm,
                                         "--world", world, "--out", "y", "--verify")
                        self.assertEqual(self.outputs(), [(M, N, SUM)] * R)

    def test_codecs_stay_within_the_bound(self):
        self.write_npy("a.npy", R * M, N, STACKED)
        for codec in ("int8", "int6-g64", "int5-fp32", "int4-e8m0", "int3-asym", "fp8-g128", "int4+int8", "flash6"):
            for algorithm in ("one_shot", "two_shot", "ring"):
                with self.subTest(codec=codec, algorithm=algorithm):
                    result = self.json_of("run", "all_reduce", "--a", "a.npy", "--codec", codec, "--algorithm", algorithm, "--out", "y",
                                          "--verify", "--repeat", 2)
                    self.assertTrue(result["verified"])
                    self.assertEqual((result["algorithm"], result["exact"], result["non_finite"]), (algorithm, False, 0))
                    self.assertEqual(result["problem"], {"operator": "all_reduce", "m": M, "n": N, "ranks": R, "type": "bf16"})
                    self.assertEqual(len(result["seconds"]), 2)
                    outputs = self.outputs()
                    self.assertEqual(outputs, [outputs[0]] * R)
                    worst = max(abs(got - want) for got, want in zip(outputs[0][2], SUM))
                    self.assertLessEqual(worst, result["largest_error"])
                    self.assertGreater(result["largest_error"], 0)

    def test_not_finite(self):
        values = list(STACKED)
        values[3] = math.nan
        values[M * N + 7] = math.inf
        values[9], values[2 * M * N + 9] = math.inf, -math.inf
        self.write_npy("a.npy", R * M, N, values)
        for codec in ("exact", "int8", "int3-asym-e8m0"):
            with self.subTest(codec):
                result = self.json_of("run", "all_reduce", "--a", "a.npy", "--codec", codec, "--out", "y", "--verify")
                self.assertEqual((result["verified"], result["non_finite"]), (True, 3))
                got = self.outputs()[0][2]
                self.assertTrue(math.isnan(got[3]) and got[7] == math.inf and math.isnan(got[9]))
                self.assertTrue(all(math.isfinite(value) for i, value in enumerate(got) if i not in (3, 7, 9)))

    def test_tolerance(self):
        job = ["run", "all_reduce", "--m", 100, "--n", 64, "--codec", "int4", "--algorithm", "two_shot", "--verify"]
        free, none = self.json_of(*job), self.json_of(*job, "--tolerance", 0)
        some, whole = self.json_of(*job, "--tolerance", 0.3), self.json_of(*job, "--tolerance", 0.3, "--whole-call")
        self.assertEqual(free["raw_groups"], 0)
        self.assertEqual(none["raw_groups"], none["groups"])
        self.assertTrue(0 < some["raw_groups"] < some["groups"])
        self.assertTrue(none["largest_error"] < some["largest_error"] < free["largest_error"])
        self.assertTrue(whole["exact"] and whole["groups"] == 0)
        self.assertFalse(self.json_of(*job, "--tolerance", 10, "--whole-call")["exact"])
        self.assertTrue(self.json_of(*job, "--exact-below", 20000)["exact"])
        self.assertTrue(self.json_of(*job, "--exact-below", "auto")["exact"])

    def test_residual_and_rms_norm(self):
        self.write_npy("a.npy", R * M, N, STACKED)
        residual = [float(i % 7 - 3) for i in range(M * N)]
        weight = [0.5 + (j % 3) for j in range(N)]
        self.write_npy("r.npy", M, N, residual)
        self.write_npy("w.npy", 1, N, weight)
        sums = [a + b for a, b in zip(SUM, residual)]
        want = []
        for row in range(M):
            x = sums[row * N:(row + 1) * N]
            scale = 1 / math.sqrt(sum(v * v for v in x) / N + 0.25)
            want += [v * scale * w for v, w in zip(x, weight)]
        for kind, close in (("bf16", 2**-8), ("fp16", 2**-11), ("fp32", 2**-20)):
            for algorithm in ("auto", "one_shot", "two_shot"):
                for world in ("processes", "threads"):
                    with self.subTest(kind=kind, algorithm=algorithm, world=world):
                        result = self.json_of("run", "all_reduce", "--a", "a.npy", "--residual", "r.npy", "--weight", "w.npy", "--rms-norm",
                                              "--eps", 0.25, "--type", kind, "--algorithm", algorithm, "--world", world, "--out", "y",
                                              "--verify", "--repeat", 2)
                        self.assertEqual((result["verified"], result["exact"], result["non_finite"]), (True, True, 0))
                        self.assertEqual(self.outputs("y.residual"), [(M, N, sums)] * R)
                        outputs = self.outputs()
                        self.assertEqual(outputs, [outputs[0]] * R)
                        for got, right in zip(outputs[0][2], want):
                            self.assertLessEqual(abs(got - right), abs(right) * close)
        self.assertTrue(self.json_of("run", "all_reduce", "--m", 33, "--n", 1001, "--rms-norm", "--verify")["verified"])
        # A weight that bf16 and fp16 would round to 1.
        self.write_npy("w.npy", 1, N, [1 + 2**-12] * N)
        for kind in ("bf16", "fp16", "fp32"):
            for weight in (kind, "fp32"):
                result = self.json_of("run", "all_reduce", "--a", "a.npy", "--weight", "w.npy", "--rms-norm", "--type", kind,
                                      "--weight-type", weight, "--verify")
                self.assertEqual((result["verified"], result["weight_type"]), (True, weight))
        job = ["run", "all_reduce", "--a", "a.npy", "--rms-norm"]
        self.refuse(*job, "--residual", "w.npy", says=["w.npy is 1 x 40", "6 x 40"])
        self.refuse(*job, "--weight", "r.npy", says=["r.npy is 6 x 40", "1 x 40"])
        self.refuse(*job, "--weight", "none.npy", says="none.npy")
        self.refuse(*job, "--algorithm", "ring", says="ring")
        self.refuse(*job, "--weight-type", "fp16", says="weight_type = fp16: it must be fp32, or that of the rows, bf16")
        self.refuse(*job, "--weight-type", "fp64", says=["--weight-type", "fp64"])
        self.refuse(*job, "--eps", -1, says=["--eps", "'-1'"])
        for option in (["--codec", "int8"], ["--tolerance", 1], ["--whole-call"], ["--exact-below", 4]):
            self.refuse(*job, *option, says=[option[0], "--rms-norm"])
        for option in (["--eps", 1], ["--residual", "r.npy"], ["--weight", "w.npy"], ["--weight-type", "fp32"]):
            self.refuse(*job[:-1], *option, says=[option[0], "--rms-norm"])

    def test_same_bits_every_time(self):
        job = ["run", "all_reduce", "--m", 40, "--n", 24, "--seed", 5, "--codec", "flash4", "--batch-invariant"]
        self.run_program(*job, "--out", "x")
        self.run_program(*job, "--out", "y", "--world", "threads", "--repeat", 20, "--verify")
        self.assertEqual(self.outputs("x"), self.outputs("y"))
        self.run_program(*job[:7], 6, *job[8:], "--out", "z")
        self.assertNotEqual(self.outputs("x"), self.outputs("z"))

    def test_no_elements(self):
        self.write_npy("a.npy", 0, N, [])
        result = self.json_of("run", "all_reduce", "--a", "a.npy", "--codec", "int8", "--verify", "--out", "y")
        self.assertEqual((result["verified"], result["groups"], result["largest_error"]), (True, 0, 0))
        self.assertEqual(self.outputs(), [(0, N, [])] * R)

    def test_under_a_launcher(self):
        out, _ = self.run_program("launch", "-n", 4, "--", PROGRAM, "run", "all_reduce", "--m", 40, "--n", 24, "--codec", "int8",
                                  "--verify", "--out", "y", "--device", "cpu")
        self.assertEqual(out.count("right"), 1)
        self.assertEqual(len(os.listdir(self.folder)), 4)

    def test_codecs_behind_a_product(self):
        sizes = ["--m", 96, "--n", 136, "--k", 256, "--verify", "--repeat", 2, "--json", "-"]
        for op, codecs in (("gemm_all_reduce", ("int8", "int4+int8", "fp8-g128")), ("gemm_reduce_scatter", ("int8", "int4-asym-g128"))):
            bounds = []
            for codec in codecs:
                for strategy in ("sequential", "decomposed"):
                    for type in ("bf16", "fp32"):
                        text, _ = self.run_program("run", op, *sizes, "--type", type, "--strategy", strategy, "--codec", codec)
                        result = json.loads(text)
                        self.assertTrue(result["verified"])
                        self.assertGreater(result["codec_bound"], 0)
                bounds.append(result["codec_bound"])
            # Four bits lose more than eight.
            self.assertGreater(bounds[1], 2 * bounds[0])
        self.refuse("run", "gemm_reduce_scatter", "--m", 96, "--n", 136, "--k", 256, "--codec", "int4+int8", says=["one phase", "one codec"])
        self.refuse("run", "gemm_all_reduce", "--m", 96, "--n", 136, "--k", 256, "--codec", "int8", "--strategy", "fused",
                    says=["codec int8", "strategy fused sends no codes"])
        self.refuse("run", "gemm_all_reduce", "--m", 96, "--n", 136, "--k", 256, "--codec", "int9", says="--codec")
        large = ["simulate", "gemm_all_reduce", "--m", 8192, "--n", 8192, "--k", 8192, "--machine", "4xh200", "--strategy", "sequential", "--json", "-"]
        seconds = lambda *more: json.loads(subprocess.run([PROGRAM, *map(str, [*large, *more])], check=True, capture_output=True).stdout)["seconds"]
        self.assertLess(seconds("--codec", "int8"), seconds("--transport", "store"))

    def test_wrong_usage(self):
        job = ["run", "all_reduce"]
        self.refuse(*job, says=["--m", "--a"])
        self.refuse(*job, "--m", 4, says="--n is missing")
        sized = [*job, "--m", 4, "--n", 4]
        self.refuse(*sized, "--codec", "int9", says=["'int9'", "int8, int6", "exact"])
        self.refuse(*sized, "--codec", "int8-g48", says="groups of 48")
        self.refuse(*sized, "--algorithm", "bus", says=["'bus'", "two_shot"])
        self.refuse(*sized, "--algorithm", "ring", says="needs a codec")
        self.refuse(*sized, "--tolerance", 1, says="without a codec")
        self.refuse(*sized, "--codec", "int8", "--tolerance", -1, says=["--tolerance", "'-1'"])
        self.refuse(*sized, "--codec", "int8", "--whole-call", says="whole_call")
        self.refuse(*sized, "--codec", "int8", "--exact-below", 8, "--batch-invariant", says="batch_invariant")
        for wrong in ("-1", "8 MiB", "none"):
            self.refuse(*sized, "--codec", "int8", f"--exact-below={wrong}", says=["--exact-below", f"'{wrong}'", "auto"])
        self.refuse(*sized, "--ctas", 2000, says=["--ctas", "'2000'"])
        self.refuse(*sized, "--world", "galaxy", says="'galaxy'")
        self.refuse(*sized, "--device", "tpu", says="'tpu'")
        for option in (["--k", 4], ["--strategy", "fused"], ["--tile-m", 8], ["--b", "b.npy"], ["--workers", 2], ["--trace", "t.svg"]):
            self.refuse(*sized, *option, says=[option[0], "not all_reduce"])
        self.refuse("run", "all_gather_gemm", "--m", 8, "--n", 8, "--k", 8, "--codec", "int8", says=["codec int8", "all_gather_gemm sums nothing"])
        self.refuse("plan", "all_reduce", "--m", 8, "--n", 8, "--k", 8, says="all_reduce has no plan: it can only be run")
        self.refuse(*sized, "--codec", "int9", "--json", "r.json", says="int9")
        self.assertEqual(json.loads(self.read("r.json"))["exit_code"], 2)

    def test_hostile_files(self):
        self.write_npy("a.npy", R * M, N, STACKED)
        job = ["run", "all_reduce", "--codec", "int8"]
        self.refuse(*job, "--a", "a.npy", "--ranks", 5, says=["a.npy", "24 rows", "5 ranks"])
        self.refuse(*job, "--a", "a.npy", "--m", 5, "--n", N, says=["a.npy", "6, 40", "5, 40"])
        self.refuse(*job, "--a", "a.npy", "--seed", 1, says="--seed")
        self.refuse(*job, "--a", "absent.npy", says="absent.npy")
        self.write("short.npy", self.read("a.npy", "rb")[:-1])
        self.refuse(*job, "--a", "short.npy", says="short.npy")


if __name__ == "__main__":
    unittest.main()
