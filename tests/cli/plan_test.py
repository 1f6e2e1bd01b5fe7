#!/usr/bin/env python3
"""Plans on the command line: made, checked, refused, simulated, drawn."""

import copy
import json
import unittest
import xml.etree.ElementTree

from program import OPERATORS, Case

SIZES = ["--m", "96", "--n", "80", "--k", "64"]
STRATEGIES = ["sequential", "decomposed", "fused", "signaled"]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Plans(Case):
    def plan(self, op="gemm_reduce_scatter", *options):
        self.run_program("plan", op, *SIZES, "--tile-m", 16, "--tile-n", 32, *options, "--json", "plan.json")
        return json.loads(self.read("plan.json"))

    def test_every_plan_made_is_sound(self):
        for op in OPERATORS:
            for strategy in STRATEGIES:
                with self.subTest(op=op, strategy=strategy):
                    self.plan(op, "--strategy", strategy)
                    self.assertEqual(self.run_program("check", "plan.json"), ("sound\n", ""))

    def test_knobs_reach_the_plan(self):
        knobs = ["--strategy", "fused", "--cluster", 2, "--group", 3, "--order", "naive", "--transport", "pull", "--reducer", "tail",
                 "--comm-rows", 8, "--split-k", 3, "--own-shift", 1, "--span-shards", "--partial", "fp32"]
        made = self.plan("gemm_reduce_scatter", *knobs)["knobs"]
        expected = {"tile_m": 16, "tile_n": 32, "cluster": 2, "group": 3, "order": "naive", "transport": "pull", "reducer": "tail",
                    "comm_rows": 8, "split_k": 3, "own_shift": 1, "span_shards": True, "partial": "fp32"}
        self.assertLessEqual(expected.items(), made.items())
        self.assertEqual(self.plan("gemm_all_reduce", "--strategy", "fused", "--cluster-k", 2)["knobs"]["cluster_k"], 2)

    def test_nodes(self):
        for op in OPERATORS[:3]:
            for strategy in ("sequential", "decomposed", "auto"):
                with self.subTest(op=op, strategy=strategy):
                    plan = self.plan(op, "--strategy", strategy, "--nodes", 2)
                    self.assertEqual(plan["knobs"]["nodes"], 2)
                    self.assertEqual(self.run_program("check", "plan.json"), ("sound\n", ""))
        text, _ = self.run_program("plan", "gemm_reduce_scatter", *SIZES, "--strategy", "sequential", "--nodes", 2)
        self.assertIn("  4 messages between 2 hosts an epoch, ", text)
        self.refuse("plan", "all_gather_gemm", *SIZES, "--strategy", "sequential", "--nodes", 3, says=["nodes = 3", "4 ranks"])
        self.refuse("plan", "all_gather_gemm", *SIZES, "--strategy", "fused", "--nodes", 2, says=["nodes = 2", "peers' memory"])
        self.refuse("plan", "gemm_all_to_all", *SIZES, "--nodes", 2, says=["nodes = 2", "gemm_all_to_all"])

    def test_groups(self):
        made = self.plan("gemm_reduce_scatter", "--ranks", 2, "--strategy", "signaled", "--groups", "1,2", "--kept-free", 3)
        self.assertEqual((made["knobs"]["groups"], made["knobs"]["kept_free"]), ([1, 2], 3))
        made = self.plan("gemm_all_reduce", "--strategy", "signaled", "--packed", "--groups", "5,7,6")
        self.assertEqual((made["knobs"]["groups"], made["knobs"]["packed"]), ([5, 7, 6], True))
        self.assertEqual(self.run_program("check", "plan.json"), ("sound\n", ""))
        text, _ = self.run_program("plan", "all_gather_gemm", *SIZES, "--strategy", "signaled", "--machine", "4xh200")
        self.assertRegex(text, r"1 group, of rows of tiles; 16 SMs are kept free[\s\S]+group 1: .* gathered from [\s\S]+all done at")
        tiles = ["--tile-m", 16, "--tile-n", 32, "--strategy", "signaled"]
        for options, says in ((["gemm_reduce_scatter", "--groups", "1,2"], ["groups = 1, 2", "3 rows of tiles", "there are 2"]),
                              (["gemm_all_reduce", "--packed", "--groups", "17"], ["17 tiles", "there are 18"]),
                              (["gemm_reduce_scatter", "--groups", "0,2"], ["--groups", "size of 0"]),
                              (["gemm_reduce_scatter", "--groups", ",".join(["1"] * 17)], ["17 sizes", "16"]),
                              (["gemm_reduce_scatter", "--packed"], ["packed", "gemm_reduce_scatter"]),
                              (["gemm_all_reduce", "--kept-free", 100000], ["kept_free = 100000"]),
                              (["gemm_all_reduce", "--packed", "--codec", "int8"], ["packed", "int8", "N = 80"])):
            with self.subTest(options=options):
                self.refuse("plan", *options, *SIZES, *tiles, says=says)

    def test_without_peer_access(self):
        """Nothing that stores to peers is chosen, and what does is refused by name."""
        none = {"IMBREX_PEER_ACCESS": "0", **NO_GPU}
        sizes = ["--m", 4096, "--n", 8192, "--k", 8192]
        text, _ = self.run_program("plan", "gemm_reduce_scatter", *sizes, "--machine", "rtx4090-4", environment=none)
        self.assertRegex(text, r"auto takes signaled: .* ms, simulated on rtx4090-4; decomposed .* ms, sequential .* ms\n")
        for op in OPERATORS:
            with self.subTest(op=op):
                self.run_program("run", op, *SIZES, "--verify", environment=none)
                self.refuse("run", op, *SIZES, "--strategy", "fused", environment=none, says=["rank 1", "IMBREX_PEER_ACCESS=0"])
        self.run_program("run", OPERATORS[0], *SIZES, "--ranks", 1, "--strategy", "fused", environment=none)
        self.refuse("run", OPERATORS[0], *SIZES, environment={"IMBREX_PEER_ACCESS": "2", **NO_GPU}, says=["IMBREX_PEER_ACCESS='2'", "0 or 1"])

    def test_partial_sums_travel_in_the_type_asked_for(self):
        self.assertEqual(self.plan("gemm_reduce_scatter", "--strategy", "fused", "--type", "fp32")["knobs"]["partial"], "fp32")

    def test_a_plan_is_the_one_that_run_runs(self):
        """Without GPUs; tests/gpu/run_test.py has the same with them."""
        for op in OPERATORS:
            seen = set()
            for options in ([], ["--strategy", "sequential"], ["--strategy", "fused", "--type", "fp32"], ["--tile-m", 16, "--tile-n", 32],
                            ["--strategy", "decomposed", "--chunks", 4, "--ranks", 2], ["--device", "cpu"]):
                with self.subTest(op=op, options=options):
                    text, _ = self.run_program("plan", op, *SIZES, *options, "--json", "plan.json", environment=NO_GPU)
                    ran = self.json_of("run", op, *SIZES, *options, environment=NO_GPU)
                    self.assertEqual(self.json_of("check", "plan.json")["digest"], ran["digest"])
                    self.assertIn(f"  digest {ran['digest']}\n", text)
                    self.assertRegex(text, rf", {ran['strategy']}, for cpu\n")
                    self.assertEqual(self.json_of("run", "--plan", "plan.json", environment=NO_GPU)["digest"], ran["digest"])
                    seen.add(ran["digest"])
            self.assertGreaterEqual(len(seen), 3)

    def test_device_and_machine(self):
        sized = ["gemm_all_reduce", *SIZES]
        self.assertIn(", for 4xh200\n", self.run_program("plan", *sized, "--machine", "4xh200")[0])
        self.refuse("plan", *sized, "--machine", "4xh200", "--device", "cpu", says=["--device cpu", "--machine 4xh200"])
        self.refuse("plan", *sized, "--device", "tpu", says=["'tpu'", "auto, cpu or cuda"])
        errors = [self.run_program(command, *sized, "--device", "cuda", code=2, environment=NO_GPU)[1] for command in ("plan", "run")]
        self.assertEqual(errors[0], errors[1])
        self.assertIn("device cuda: ", errors[0])

    def test_pipes(self):
        text, _ = self.run_program("plan", "gemm_all_reduce", *SIZES, "--json", "-")
        self.assertEqual(self.run_program("check", "-", stdin=text)[0], "sound\n")

    def test_check_names_fault_and_task(self):
        plan = self.plan("gemm_reduce_scatter", "--strategy", "fused")
        broken = 0
        for r, rank in enumerate(plan["ranks"]):
            for q, queue in enumerate(rank["queues"]):
                for t, task in enumerate(queue["tasks"]):
                    if not task.get("posts") or broken >= 8:
                        continue
                    broken += 1
                    bad = copy.deepcopy(plan)
                    del bad["ranks"][r]["queues"][q]["tasks"][t]["posts"][0]
                    self.write("bad.json", json.dumps(bad))
                    out, _ = self.run_program("check", "bad.json", code=1)
                    self.assertRegex(out, r"^unsound: (deadlock|race|reuse): .*rank \d+ queue \d+ task \d+")
                    result = json.loads(self.run_program("check", "bad.json", "--json", "-", code=1)[0])
                    self.assertFalse(result["sound"])
                    self.assertGreaterEqual(result["finding"]["task"], 0)
        self.assertGreater(broken, 0)
        self.refuse("run", "--plan", "bad.json", code=1, says="task")
        self.refuse("simulate", "--plan", "bad.json", "--machine", "4xh200", code=1, says=["bad.json", "task"])

    def test_malformed_plans(self):
        good = json.dumps(self.plan())
        for text in ("", "{", "[]", "null", "{}", good[:-1], good + "x", good.replace('"m"', '"q"', 1), "\xff\xfe",
                     "[" * 100000):
            self.write("bad.json", text)
            self.refuse("check", "bad.json", says="bad.json")
        self.refuse("check", "absent.json", says="absent.json")
        self.refuse("check", ".", says="folder")

    def test_a_plan_is_for_its_problem(self):
        self.plan()
        self.refuse("run", "gemm_all_reduce", "--plan", "plan.json", says=["gemm_all_reduce", "gemm_reduce_scatter"])
        self.refuse("run", "--plan", "plan.json", "--m", 97, says=["97", "96"])
        self.refuse("run", "--plan", "plan.json", "--type", "fp32", says=["fp32", "bf16"])
        self.refuse("run", "--plan", "plan.json", "--tile-m", 8, says="knobs")


class Simulations(Case):
    LARGE = ["--m", 8192, "--n", 8192, "--k", 8192]

    def test_json_and_timelines(self):
        result = self.json_of("simulate", "gemm_reduce_scatter", *self.LARGE, "--machine", "4xh200", "--trace", "t.svg")
        self.assertEqual(result["problem"]["operator"], "gemm_reduce_scatter")
        self.assertGreater(result["seconds"], 1e-4)
        self.assertLess(result["seconds"], 1e-2)
        self.assertTrue(xml.etree.ElementTree.fromstring(self.read("t.svg")).tag.endswith("svg"))
        self.run_program("trace", "gemm_reduce_scatter", *self.LARGE, "--machine", "4xh200", "--out", "t.json")
        self.assertTrue(json.loads(self.read("t.json"))["traceEvents"])

    def test_auto_is_the_fastest(self):
        seconds = {s: self.json_of("simulate", "gemm_reduce_scatter", *self.LARGE, "--machine", "4xh200", "--strategy", s)["seconds"]
                   for s in STRATEGIES + ["auto"]}
        self.assertLessEqual(seconds["auto"], min(seconds.values()) * 1.0001)

    def test_machine_files(self):
        self.write("bad.json", "{}")
        self.refuse("simulate", "gemm_all_reduce", *self.LARGE, "--machine", "./bad.json", says="bad.json")
        self.refuse("simulate", "gemm_all_reduce", *self.LARGE, "--machine", "absent.json", says="absent.json")


if __name__ == "__main__":
    unittest.main()
