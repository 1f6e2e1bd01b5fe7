#!/usr/bin/env python3
"""`imbrex run embedding_all_to_all`, and its plans: tables from a file, rows and bags from a seed."""

import json
import unittest

from program import Case

TABLES = [{"rows": 200, "dim": 32, "hotness": 3}, {"rows": 50, "dim": 12, "count": 3}, {"rows": 300, "dim": 64, "hotness": 12}]
WIDTH, BATCH, RANKS = 32 + 3 * 12 + 64, 24, 4


class RunEmbedding(Case):
    def tables(self, name="tables.json", **more):
        self.write(name, json.dumps({"tables": TABLES, **more}))
        return ["embedding_all_to_all", "--tables", name, "--batch", BATCH]

    def run_program(self, *arguments, **keywords):
        """On the CPU, also where there are GPUs."""
        if arguments[0] == "run":
            arguments += ("--device", "cpu")
        return super().run_program(*arguments, **keywords)

    def test_every_strategy_and_type_is_right(self):
        first = None
        for rows in ("fp32", "fp16", "bf16", "int8"):
            asked = self.tables(rows=rows)
            for strategy, world in (("auto", "processes"), ("fused", "threads"), ("sequential", "processes"), ("decomposed", "threads")):
                with self.subTest(rows=rows, strategy=strategy):
                    optimizer = [] if rows == "int8" else ["--optimizer", "row_wise_adagrad"]
                    result = self.json_of("run", *asked, "--strategy", strategy, "--world", world, "--type", "fp32", "--weighted",
                                          "--pooling", "mean", "--index-type", "int32", "--repeat", 2, "--out", "y", "--verify", *optimizer)
                    self.assertTrue(result["verified"])
                    self.assertLessEqual(result["max_error_over_bound"], 1)
                    self.assertGreater(result["problem"]["indices"], 0)
                    self.assertEqual("update_seconds" in result, bool(optimizer))
                    outputs = [self.read_npy(f"y.rank{rank}.npy") for rank in range(RANKS)]
                    self.assertEqual([output[:2] for output in outputs], [(BATCH // RANKS, WIDTH)] * RANKS)
                    if strategy == "auto":
                        first = outputs
                    self.assertEqual(outputs, first)

    def test_shards_are_as_the_file_says(self):
        shards = [{"table": t, "rank": t % 2, "begin": 0, "end": dim} for t, dim in enumerate((32, 12, 12, 12))]
        shards += [{"table": 4, "rank": 0, "begin": 32, "end": 64}, {"table": 4, "rank": 1, "begin": 0, "end": 32}]
        asked = self.tables(shards=shards)
        result = self.json_of("run", *asked, "--ranks", 2, "--verify")
        self.assertEqual((result["verified"], result["problem"]["shards"]), (True, 6))
        self.refuse("run", *asked, "--ranks", 4, "--strategy", "sequential", says="rank 2 has no table")

    def test_plans_are_made_checked_and_simulated(self):
        asked = self.tables()
        self.run_program("plan", *asked, "--strategy", "fused", "--tile-m", 3, "--json", "plan.json")
        self.run_program("check", "plan.json")
        self.refuse("run", "gemm_all_reduce", "--plan", "plan.json", says="embedding_all_to_all")
        seconds = {}
        for strategy in ("sequential", "decomposed", "fused", "auto"):
            asked[-1] = 65536
            result = self.json_of("simulate", *asked, "--strategy", strategy, "--machine", "4xh200")
            self.assertEqual(result["problem"]["batch"], 65536)
            seconds[strategy] = result["seconds"]
        self.assertEqual(seconds["auto"], min(seconds.values()))

    def test_what_is_wrong_is_named(self):
        asked = self.tables()
        self.refuse("run", "embedding_all_to_all", "--batch", 8, says="--tables is missing")
        self.refuse("run", *asked[:3], says="--batch is missing")
        self.refuse("run", *asked, "--m", 4, says="--m is about operators with a GEMM")
        self.refuse("run", "gemm_all_reduce", *asked[1:], says="--tables is about embedding_all_to_all")
        self.refuse("run", "all_reduce", "--m", 4, "--n", 4, "--pooling", "mean", says="--pooling is about")
        self.refuse("run", *asked, "--ranks", 5, says="batch = 24 does not divide by 5 ranks")
        self.refuse("run", *asked, "--strategy", "signaled", says="strategy signaled")
        for text, says in (("{", "tables.json"), ('{"tables": [{"rows": 4}]}', ["tables[0]", "'dim' is missing"]),
                           ('{"tables": [{"rows": 4, "dim": 6}]}', "dim = 6"), ('{"tables": []}', "0 tables"),
                           ('{"tables": [], "row": "fp32"}', "'row' is not known"), ('{"rows": "int4", "tables": []}', "'int4'")):
            with self.subTest(text):
                self.write("tables.json", text)
                self.refuse("run", *asked, says=says)

    def test_tables_that_no_shard_names_are_checked_too(self):
        good = {"rows": 4, "dim": 8}
        shards = [{"table": 1, "rank": 0, "begin": 0, "end": 8}]
        for bad, says in (({"rows": 0, "dim": 0}, "table 0: 0 rows"), ({"rows": 4, "dim": 0}, "table 0: dim = 0"),
                          ({"rows": 4, "dim": -4}, "table 0: dim = -4"), ({"rows": -1, "dim": 4}, "table 0: -1 rows"),
                          ({"rows": 4, "dim": 4, "hotness": 1e300}, "table 0: hotness = 1e+300")):
            with self.subTest(says):
                self.write("tables.json", json.dumps({"tables": [bad, good], "shards": shards}))
                self.refuse("run", "embedding_all_to_all", "--tables", "tables.json", "--batch", BATCH, "--verify", says=says)

    def test_what_would_fill_the_memory_is_refused_before(self):
        tables = ["embedding_all_to_all", "--tables", "tables.json"]
        self.write("tables.json", json.dumps({"tables": [{"rows": 4, "dim": 8, "hotness": 2e9}]}))
        self.refuse("run", *tables, "--batch", 8, says="rank 0 looks up 1.6e+10 indices")
        self.write("tables.json", json.dumps({"tables": [{"rows": 4, "dim": 8, "count": 4}]}))
        largest = [*tables, "--batch", 2**31 - 4, "--ranks", 4]
        self.refuse("plan", *largest, "--strategy", "fused", "--tile-m", 1, says=["tasks", "more than 8388608 tasks"])
        for more in (["--strategy", "decomposed"], ["--strategy", "fused", "--nodes", 2]):
            self.refuse("plan", *largest, *more, "--chunks", 2**30, says=["tasks", "more than 8388608 tasks"])

    def test_ranks_may_lie_on_several_hosts(self):
        asked = self.tables()
        for strategy in ("fused", "sequential"):
            self.run_program("plan", *asked, "--strategy", strategy, "--nodes", 2, "--json", "plan.json")
            self.run_program("check", "plan.json")
        self.refuse("plan", *asked, "--strategy", "fused", "--nodes", 3, says="nodes = 3")


if __name__ == "__main__":
    unittest.main()
