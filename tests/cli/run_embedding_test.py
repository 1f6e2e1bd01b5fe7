#!/usr/bin/env python3
"""`imbrex run embedding_all_to_all`, and its plans: tables from a file, rows and bags from a seed."""

import json
import struct
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

    def test_weights_that_are_no_numbers_are_right(self):
        self.write("t.json", json.dumps({"tables": [{"rows": 10, "dim": 4}]}))
        job = ["run", "embedding_all_to_all", "--tables", "t.json", "--batch", 2, "--ranks", 1, "--indices", "i.npy", "--offsets", "o.npy",
               "--weights", "w.npy", "--verify"]
        self.write_vector("i.npy", [1, 2], "<i8")
        self.write_vector("o.npy", [0, 1, 2], "<i8")
        for odd in (float("nan"), float("inf"), -float("inf")):
            self.write_vector("w.npy", [odd, 1], "<f4")
            self.assertIn("right: ", self.run_program(*job)[0])

    def test_auto_says_why(self):
        asked = ["run", *self.tables()]
        self.assertIn("\nauto takes fused: ranks reach each other's memory\n", self.run_program(*asked)[0])
        text, _ = self.run_program(*asked, environment={"IMBREX_PEER_ACCESS": "0"})
        self.assertIn("\nauto takes sequential: IMBREX_PEER_ACCESS=0 keeps ranks", text)
        self.assertNotIn("auto takes", self.run_program(*asked, "--strategy", "fused")[0])

    def test_bench_times_strategies_in_turn(self):
        asked = ["bench", *self.tables()[:-1], 24, 48, "--rounds", 2, "--type", "fp32", "--weighted", "--device", "cpu"]
        result = self.json_of(*asked)
        self.assertEqual([row["batch"] for row in result["rows"]], [24, 48])
        for row in result["rows"]:
            self.assertTrue(row["same_bits"])
            self.assertGreater(row["indices"], 0)
            self.assertEqual([way["strategy"] for way in row["strategies"]], ["sequential", "decomposed", "fused"])
            first = row["strategies"][0]
            self.assertEqual(first["over_sequential"], 1)
            for way in row["strategies"]:
                self.assertGreater(way["us"], 0)
                self.assertAlmostEqual(way["over_sequential"], way["us"] / first["us"], delta=0.01 * way["over_sequential"])
        out, _ = self.run_program(*asked, "--strategy", "fused", "--world", "threads", "--runs", 2)
        self.assertRegex(out, r"on cpu\n  sequential +\S+ \w+, 1.000 of sequential\n  fused +\S+ \w+, [0-9.]+ of sequential\n")

    def test_bench_leaves_out_what_is_refused(self):
        asked = self.tables(shards=[{"table": t, "rank": 0, "begin": 0, "end": dim} for t, dim in enumerate((32, 12, 12, 12, 64))])
        ways = self.json_of("bench", *asked, "--ranks", 2, "--rounds", 1, "--device", "cpu")["rows"][0]["strategies"]
        self.assertIn("rank 1 has no table", ways[0]["refused"])
        self.assertEqual(set(ways[2]), {"strategy", "us"})

    def test_bench_refuses(self):
        self.refuse("bench", "embedding_all_to_all", says="--batch is missing")
        self.refuse("bench", "embedding_all_to_all", "--batch", 8, says="--tables is missing")
        self.refuse("bench", "--tables", "t", says="--tables is about --ops embedding_all_to_all")
        self.refuse("bench", *self.tables(), "--m", 64, says="--m is about operators with a GEMM")
        self.refuse("bench", *self.tables(), "--serve", says="--serve is about operators with a GEMM")
        self.refuse("bench", *self.tables(), "--ops", "gemm_all_reduce", says="timed alone")
        self.refuse("bench", *self.tables()[:-1], 13, says="batch = 13 does not divide by 4 ranks")
        self.refuse("bench", *self.tables(), "--world", "both", says="'both'")

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
        self.refuse("run", *asked, "--plan", "plan.json", "--trace", "x.svg", says="--trace is not for a run of")
        made = self.json_of("run", *asked, "--plan", "plan.json", "--verify")
        # One that no strategy makes: its blocks in another order.
        plan = json.loads(self.read("plan.json"))
        tasks = plan["ranks"][0]["queues"][0]["tasks"]
        tasks[1:-1] = tasks[-2:0:-1]
        self.write("edited.json", json.dumps(plan))
        edited = self.json_of("run", *asked, "--plan", "edited.json", "--verify", "--repeat", 3)
        self.assertEqual((made["verified"], edited["verified"], "why" in edited), (True, True, False))
        self.assertNotEqual(made["digest"], edited["digest"])
        tasks[-1]["waits"] = []
        self.write("edited.json", json.dumps(plan))
        self.refuse("run", *asked, "--plan", "edited.json", says="plan edited.json is unsound", code=1)
        seconds = {}
        for strategy in ("sequential", "decomposed", "fused", "auto"):
            asked[-1] = 65536
            result = self.json_of("simulate", *asked, "--strategy", strategy, "--machine", "4xh200")
            self.assertEqual(result["problem"]["batch"], 65536)
            seconds[strategy] = result["seconds"]
        self.assertEqual(seconds["auto"], min(seconds.values()))

    def write_array(self, name, shape, values, descr):
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        code = {"<i4": "i", "<i8": "q", "<f4": "f", "<f2": "e"}[descr]
        self.write(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{len(values)}{code}", *values))

    def write_vector(self, name, values, descr):
        self.write_array(name, (len(values),), values, descr)

    def test_bags_and_rows_come_from_files(self):
        # Two tables of 4 columns, on 2 ranks; a batch of 4, with empty bags and repeated rows. All sums are exact.
        self.write("tables.json", json.dumps({"tables": [{"rows": 3, "dim": 4}, {"rows": 5, "dim": 4}]}))
        asked = ["run", "embedding_all_to_all", "--tables", "tables.json", "--batch", 4, "--ranks", 2, "--type", "fp32"]
        tables = [[[float(100 * t + 10 * r + c) for c in range(4)] for r in range(rows)] for t, rows in enumerate((3, 5))]
        bags = [[[0], [], [2, 2], [1, 0]], [[4], [3, 1, 0], [], [4]]]
        indices = [i for table in bags for bag in table for i in bag]
        offsets = [0]
        for bag in bags[0] + bags[1]:
            offsets.append(offsets[-1] + len(bag))
        weights = [float(1 + i % 3) for i in range(len(indices))]
        files = ["--indices", "i.npy", "--offsets", "o.npy", "--weights", "w.npy", "--table-files", "rows"]
        for ints, floats in (("<i4", "<f2"), ("<i8", "<f4")):
            for t, rows in enumerate(tables):
                self.write_array(f"rows{t}.npy", (len(rows), 4), [x for row in rows for x in row], floats)
            self.write_vector("i.npy", indices, ints)
            self.write_vector("o.npy", offsets, "<i8" if ints == "<i4" else "<i4")
            self.write_vector("w.npy", weights, floats)
            for strategy in ("fused", "sequential"):
                with self.subTest(ints=ints, strategy=strategy):
                    result = self.json_of(*asked, *files, "--strategy", strategy, "--out", "y", "--verify")
                    self.assertEqual((result["verified"], result["problem"]["indices"]), (True, len(indices)))
                    got = [x for rank in range(2) for x in self.read_npy(f"y.rank{rank}.npy")[2]]
                    wanted = []
                    for b in range(4):
                        for t in range(2):
                            first = offsets[4 * t + b]
                            wanted += [sum(weights[first + i] * tables[t][r][c] for i, r in enumerate(bags[t][b])) for c in range(4)]
                    self.assertEqual(got, wanted)

        def refused(says, **vectors):
            good = {"i": (indices, "<i8"), "o": (offsets, "<i8"), "w": (weights, "<f4")}
            for name, (values, descr) in {**good, **vectors}.items():
                self.write_vector(f"{name}.npy", values, descr)
            self.refuse(*asked, *files, says=says)

        refused("i.npy: index 1 is 3; table 0 has rows 0 to 2", i=([0, 3, *indices[2:]], "<i8"))
        refused("i.npy: index 1 is -1", i=([0, -1, *indices[2:]], "<i4"))
        refused("i.npy: descr is '<f4'; it must be '<i4' (int32) or '<i8' (int64)", i=(weights, "<f4"))
        refused("o.npy: the shape is 8; it must be one dimension of 9", o=(offsets[:-1], "<i8"))
        refused("o.npy: the first offset is 1; it must be 0", o=([1, *offsets[1:]], "<i8"))
        refused("o.npy: offset 2 is 0, less than 1 before it", o=([0, 1, 0, *offsets[3:]], "<i8"))
        refused(f"o.npy: the last offset is {2**60}; it must be {len(indices)}", o=([*offsets[:-1], 2**60], "<i8"))
        refused("w.npy: the shape is 3; it must be one dimension of", w=([1.0] * 3, "<f4"))
        refused("w.npy: descr is '<i8'", w=(indices, "<i8"))
        self.write_vector("w.npy", weights, "<f4")
        self.refuse(*asked, *files[:2], says="--offsets is missing")
        self.refuse(*asked, *files[4:6], says="--weights needs --indices")
        self.write_npy("rows1.npy", 4, 4, [0.0] * 16)
        refused("rows1.npy: the shape is 4 x 4; table 1 has 5 x 4")
        self.write("rows1.npy", self.read("rows1.npy", "rb")[:-1])
        refused("rows1.npy: the shape 4 x 4 asks for 64 bytes of data, but the file ends after 63")

    def test_what_is_wrong_is_named(self):
        asked = self.tables()
        self.refuse("run", "embedding_all_to_all", "--batch", 8, says="--tables is missing")
        self.refuse("run", *asked[:3], says="--batch is missing")
        self.refuse("run", *asked, "--m", 4, says="--m is about operators with a GEMM")
        self.refuse("run", "gemm_all_reduce", *asked[1:], says="--tables is about embedding_all_to_all")
        self.refuse("run", "all_reduce", "--m", 4, "--n", 4, "--pooling", "mean", says="--pooling is about")
        self.refuse("run", *asked, "--table-files", "none", says="none0.npy: cannot be opened")
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
