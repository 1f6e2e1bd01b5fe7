#!/usr/bin/env python3
"""`imbrex run --device cuda`: every operator on processes and threads, on a GPU for each rank.

run_test.py [PART PARTS]: each PARTSth test, from the PARTth on.
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

from program import OPERATORS, PROGRAM, Case

SKIPPED = 77
TUNED = Path(__file__).resolve().parents[2] / "machines" / "tuned"


def gpus():
    report = subprocess.run([PROGRAM, "doctor", "--json", "-"], capture_output=True, text=True)
    return json.loads(report.stdout)["gpus"]


GPUS = gpus()
SIZES = ["--m", 1024, "--n", 768, "--k", 2048]


class GpuRun(Case):
    def needs(self, count):
        if len(GPUS) < count:
            self.skipTest(f"{count} GPUs wanted, {len(GPUS)} found")

    def expect_right(self, result):
        self.assertEqual((result["exit_code"], result["device"], result["verified"]), (0, "cuda", True), result)
        self.assertLessEqual(result["max_error_over_bound"], 1)

    def test_operators(self):
        for ranks in (2, 4):
            self.needs(ranks)
            for op in OPERATORS:
                for world in ("processes", "threads"):
                    with self.subTest(op=op, ranks=ranks, world=world):
                        result = self.json_of("run", op, *SIZES, "--ranks", ranks, "--device", "cuda", "--world", world,
                                              "--verify", "--repeat", 5)
                        self.expect_right(result)
                        self.assertEqual(len(result["seconds"]), 5)

    def expect_plans_that_run_runs(self, op):
        self.needs(2)
        wide = ["--m", 512, "--n", 28672, "--k", 4096]
        for options in (SIZES, wide, [*SIZES, "--strategy", "sequential"], [*SIZES, "--strategy", "fused", "--tile-m", 128],
                        [*SIZES, "--device", "cuda", "--strategy", "fused", "--tile-m", 64], [*SIZES, "--device", "cpu"]):
            with self.subTest(op=op, options=options):
                text, _ = self.run_program("plan", op, *options, "--ranks", 2)
                ran = self.json_of("run", op, *options, "--ranks", 2)
                self.assertIn(f"  digest {ran['digest']}\n", text)
                self.assertIn(f", {ran['strategy']}, for {ran['device']}\n", text)
                if "--tile-m" not in options or "cuda" in options:  # GPUs may refuse what knobs ask for; auto takes the CPU then
                    self.assertEqual(ran["device"], "cpu" if "cpu" in options else "cuda")

    def test_timelines(self):
        """Every tile is multiplied once and stored once, in a time that ranks take that end together."""
        self.needs(2)
        for world in ("processes", "threads"):
            self.json_of("run", "gemm_reduce_scatter", *SIZES, "--ranks", 2, "--strategy", "fused", "--tile-m", 128, "--tile-n",
                         128, "--device", "cuda", "--world", world, "--repeat", 3, "--verify", "--trace", "t.json")
            events = [e for e in json.loads(self.read("t.json"))["traceEvents"] if e["ph"] == "X"]
            self.assertLess(max(e["ts"] + e["dur"] for e in events), 5e4, "microseconds, of ranks that end together")
            for rank in range(2):
                products = [e for e in events if e["pid"] == rank and e["name"].startswith("tile ")]
                self.assertEqual(sorted(e["name"] for e in products), sorted(
                    f"tile rows {row}+128 cols {col}+128" for row in range(0, 1024, 128) for col in range(0, 768, 128)))
                stores = [e for e in events if e["pid"] == rank and e["name"].startswith("store tile ")]
                self.assertEqual(len(stores), len(products))

    def test_timelines_of_copies(self):
        self.needs(2)
        many = ["--m", 2048, "--n", 28672, "--k", 4096]  # kernels fill the GPU, epochs queue up
        for job, ranks in ([*SIZES, "--verify"], 2), (many, min(4, len(GPUS))):
            with self.subTest(ranks=ranks):
                self.json_of("run", "all_gather_gemm", *job, "--ranks", ranks, "--strategy", "fused", "--transport", "push", "--device", "cuda",
                             "--repeat", 5, "--trace", "t.json")
                trace = json.loads(self.read("t.json"))["traceEvents"]
                rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
                for rank in range(ranks):
                    copies = [e for e in trace if e["ph"] == "X" and rows[e["pid"], e["tid"]] == "copy engine" and e["pid"] == rank]
                    self.assertTrue(copies)
                    self.assertTrue(all(e["name"].startswith("copy ") and e["dur"] > 0 for e in copies), copies)

    def test_timelines_of_libraries(self):
        self.needs(2)
        self.json_of("run", "gemm_reduce_scatter", *SIZES, "--ranks", 2, "--strategy", "sequential", "--device", "cuda",
                     "--repeat", 3, "--verify", "--trace", "t.json")
        events = [e for e in json.loads(self.read("t.json"))["traceEvents"] if e["ph"] == "X"]
        for rank in range(2):
            spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["pid"] == rank)
            self.assertEqual([name.split()[0] for *_, name in spans], ["product", "reduce_scatter"])
            self.assertLessEqual(spans[0][1], spans[1][0])

    def test_same_bits_from_processes_and_threads(self):
        self.needs(4)
        job = ["run", "gemm_all_reduce", *SIZES, "--ranks", 4, "--device", "cuda"]
        self.run_program(*job, "--out", "x")
        self.run_program(*job, "--out", "y", "--world", "threads", "--delays", 7)
        for rank in range(4):
            self.assertEqual(self.read(f"x.rank{rank}.npy", "rb"), self.read(f"y.rank{rank}.npy", "rb"))

    def test_auto_takes_gpus(self):
        self.needs(2)
        result = self.json_of("run", "gemm_reduce_scatter", *SIZES, "--ranks", 2, "--verify")
        self.expect_right(result)

    def test_more_ranks_than_gpus(self):
        ranks = len(GPUS) + 1
        sizes = ["--m", 128 * ranks, "--n", 128, "--k", 128 * ranks]
        self.refuse("run", "gemm_all_reduce", *sizes, "--ranks", ranks, "--device", "cuda", says=f"{ranks} ranks need a GPU each")
        self.assertEqual(self.json_of("run", "gemm_all_reduce", *sizes, "--ranks", ranks)["device"], "cpu")

    def test_knobs_without_a_transport_take_one_that_gpus_run(self):
        self.needs(2)
        for op in OPERATORS:
            with self.subTest(op=op):
                self.expect_right(self.json_of("run", op, *SIZES, "--ranks", 2, "--device", "cuda", "--strategy", "fused",
                                               "--tile-m", 128, "--verify"))

    def test_bias(self):
        self.needs(2)
        kinds = ("bf16", "fp16", "fp32")
        for i, op in enumerate(OPERATORS):
            for j, strategy in enumerate(("auto", "sequential", "decomposed", "fused")):
                kind, ranks = kinds[(i + j) % 3], 4 if (i + j) % 2 and len(GPUS) >= 4 else 2
                with self.subTest(op=op, ranks=ranks, strategy=strategy, type=kind):
                    self.expect_right(self.json_of("run", op, *SIZES, "--ranks", ranks, "--device", "cuda", "--strategy",
                                                   strategy, "--type", kind, "--with-bias", "--verify", "--repeat", 2))

    def test_several_outputs(self):
        self.needs(2)
        for strategy in ("auto", "sequential", "decomposed", "fused"):
            for layout in ("kxn", "nxk"):
                with self.subTest(strategy=strategy, layout=layout):
                    self.expect_right(self.json_of("run", "all_gather_gemm", *SIZES, "--more-n", "512,256", "--gathered-a", "--ranks", 2,
                                                   "--device", "cuda", "--strategy", strategy, "--b-layout", layout, "--with-bias",
                                                   "--verify", "--repeat", 2))

    def test_kernels_by_name(self):
        self.needs(2)
        job = ["run", "gemm_reduce_scatter", *SIZES, "--ranks", 2, "--with-bias", "--verify"]
        for kernel in ("plain", "pingpong 128x128", "sm80"):
            for layout in ("kxn", "nxk"):
                with self.subTest(kernel=kernel, layout=layout):
                    self.expect_right(self.json_of(*job, "--strategy", "fused", "--tile-m", 128, "--kernel", kernel,
                                                   "--b-layout", layout))
        _, errors = self.run_program(*job, "--strategy", "fused", "--kernel", "wgmma", code=2)
        self.assertIn("no kernel named like 'wgmma'", errors)
        _, errors = self.run_program(*job, "--strategy", "sequential", "--kernel", "plain", code=2)
        self.assertIn("it is for fused and signaled plans on GPUs, not sequential ones", errors)

    def test_all_reduces(self):
        self.needs(2)
        for ranks in (2, 4) if len(GPUS) >= 4 else (2,):
            for more in (["--rms-norm"], ["--rms-norm", "--algorithm", "two_shot", "--type", "fp32"],
                         ["--codec", "int8", "--tolerance", 0.001, "--whole-call"], ["--codec", "int8", "--tolerance", 1, "--whole-call"]):
                with self.subTest(ranks=ranks, more=more):
                    result = self.json_of("run", "all_reduce", "--m", 130, "--n", 3000, "--ranks", ranks, "--device", "cuda", "--repeat", 3,
                                          "--verify", *more)
                    self.assertEqual((result["verified"], result["device"]), (True, "cuda"))
                    if "--tolerance" in more:
                        self.assertEqual(result["exact"], 0.001 in more)

    def test_all_reduces_go_by_the_record(self):
        records = [(table["gpu"], record) for table in (json.loads(path.read_text()) for path in sorted(TUNED.glob("*.json")))
                   for record in table.get("all_reduces", [])]
        found = [record for gpu, record in records
                 if GPUS[0]["name"] == gpu and record["ranks"] <= len(GPUS) and record["type"] == "bf16" and record["one_shot_below"]]
        if not found:
            self.skipTest(f"no record for {GPUS[0]['name']}")
        latest = max(found, key=lambda record: record["date"])
        run = ["run", "all_reduce", "--m", 1, "--ranks", latest["ranks"], "--device", "cuda", "--verify"]
        edge = latest["one_shot_below"] // 2
        for count, algorithm in ((edge - 1, "one_shot"), (edge, "two_shot")):
            result = self.json_of(*run, "--n", count)
            self.assertEqual((result["algorithm"], result["verified"]), (algorithm, True), count)
        for codec in latest["codecs"]:
            if codec["exact_below"]:
                edge = codec["exact_below"] // 2
                for count, exact in ((edge - 1, True), (edge, False)):
                    result = self.json_of(*run, "--n", count, "--codec", codec["codec"], "--exact-below", "auto")
                    self.assertEqual((result["exact"], result["verified"]), (exact, True), (codec, count))

    def test_tuning_of_all_reduces(self):
        self.needs(2)
        tune = ["tune", "--ops", "all_reduce", "--ranks", 2, "--rounds", 1, "--runs", 2, "--out", "mine.json"]
        result = self.json_of(*tune, "--codecs", "int8", "flash6")
        self.assertEqual([row["bytes"] for row in result["rows"]], [1024 << i for i in range(17)])
        for row in result["rows"]:
            self.assertEqual(list(row["microseconds"]), ["one_shot", "two_shot", "int8", "int4-asym-g128+int8-asym-g128"])
            self.assertTrue(all(us is None or us > 0 for us in row["microseconds"].values()), row)
            self.assertIsNotNone(row["microseconds"]["two_shot"])
        [record] = json.loads(self.read("mine.json"))["all_reduces"]
        self.assertEqual((record["ranks"], record["type"], record["one_shot_below"]), (2, "bf16", result["one_shot_below"]))
        self.assertEqual({c["codec"]: c["exact_below"] for c in record["codecs"]}, result["exact_below"])
        self.run_program(*tune, "--codecs", "int4", "--type", "fp32", "--world", "threads")
        self.assertEqual([(r["type"], len(r["codecs"])) for r in json.loads(self.read("mine.json"))["all_reduces"]],
                         [("bf16", 2), ("fp32", 1)])
        self.write("other.json", self.read("mine.json").replace(GPUS[0]["name"], "Abacus"))
        tune[-1] = "other.json"
        self.refuse(*tune, "--codecs", "int8", code=2, says=["'Abacus'", GPUS[0]["name"]])
        self.assertIn("Abacus", self.read("other.json"))

    def test_under_a_launcher(self):
        self.needs(4)
        job = [PROGRAM, "run", "gemm_reduce_scatter", *SIZES, "--ranks", 4, "--device", "cuda", "--verify", "--repeat", 3]
        out, _ = self.run_program("launch", "-n", 4, "--", *job)
        self.assertEqual(out.count("right"), 1)

    def test_under_a_launcher_that_shows_each_rank_its_own_gpu(self):
        self.needs(2)
        job = [PROGRAM, "run", "gemm_all_reduce", *SIZES, "--ranks", 2, "--device", "cuda", "--verify", "--repeat", 3]
        shell = f"set {GPUS[0]['uuid']} {GPUS[1]['uuid']}; shift $IMBREX_RANK; CUDA_VISIBLE_DEVICES=$1 exec " + " ".join(map(str, job))
        out, _ = self.run_program("launch", "-n", 2, "--", "sh", "-c", shell)
        self.assertEqual(out.count("right"), 1)

    def test_ranks_that_share_a_gpu_are_named(self):
        self.needs(1)
        job = [PROGRAM, "run", "gemm_all_reduce", *SIZES, "--ranks", 2, "--device", "cuda"]
        shell = f"CUDA_VISIBLE_DEVICES={GPUS[0]['uuid']} exec " + " ".join(map(str, job))
        _, errors = self.run_program("launch", "-n", 2, "--", "sh", "-c", shell, code=2)
        self.assertIn("ranks 0 and 1 see one GPU only, the same one", errors)
        self.assertIn(GPUS[0]["uuid"], errors)


# A test an operator, so that parts share them out.
for _op in OPERATORS:
    setattr(GpuRun, f"test_a_plan_is_the_one_that_run_runs_of_{_op}", lambda self, op=_op: self.expect_plans_that_run_runs(op))


if __name__ == "__main__":
    if not GPUS:
        print("SKIPPED: no GPU found", file=sys.stderr)
        sys.exit(SKIPPED)
    part, parts = map(int, sys.argv[1:3]) if len(sys.argv) == 3 else (1, 1)
    names = unittest.defaultTestLoader.getTestCaseNames(GpuRun)[part - 1 :: parts]
    unittest.main(argv=[sys.argv[0], *(f"GpuRun.{name}" for name in names)], verbosity=2)
