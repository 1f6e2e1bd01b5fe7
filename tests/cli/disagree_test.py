#!/usr/bin/env python3
"""`imbrex run` of a launcher's ranks that are not all asked for the same: every rank says who differs, in what, at once."""

import json
import os
import subprocess
import time
import unittest
import uuid

from program import PROGRAM, Case

RANKS, ODD = 4, 2
OTHERS = "ranks 0, 1 and 3"
# Seconds until the last rank has ended. Where nothing is compared, ranks hang until the wait limit of 30 s; machines
# that are busy take longer than the second that idle ones do.
MOST_SECONDS = 10


def with_changes(plan, change):
    """A copy of a plan, changed."""
    copy = json.loads(json.dumps(plan))
    change(copy)
    return copy


DEFAULTS = {"tile_m": 128, "tile_n": 128, "cluster": 0, "cluster_k": 1, "group": 8, "order": "owner_major", "transport": "push",
            "reducer": "tile", "comm_rows": 0, "k_slices": 1, "split_k": 1, "chunks": 2, "nodes": 1, "library_tile": 0, "library_parts": 1,
            "own_shift": 0, "abreast": 0, "span_shards": False, "one_shot": False, "partial": "fp32"}


class Disagree(Case):
    slowest, launches = 0.0, 0

    @classmethod
    def tearDownClass(cls):
        print(f"the slowest case took {cls.slowest:.2f} s")

    def ranks(self, arguments_of):
        """Exit code and standard error of each rank. They start as torchrun or, in turn, `imbrex launch` starts them, but
        no rank is ended because another one has failed."""
        Disagree.launches += 1
        shared = {"IMBREX_WORLD_SIZE": RANKS, "IMBREX_RENDEZVOUS": uuid.uuid4().hex}
        own = "IMBREX_RANK"
        if Disagree.launches % 2:
            shared, own = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}, "RANK"

        def environment_of(rank):
            return {**os.environ, **{name: str(value) for name, value in {**shared, own: rank}.items()}}

        begin = time.monotonic()
        ranks = [subprocess.Popen([PROGRAM, *map(str, arguments_of(rank))], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=environment_of(rank)) for rank in range(RANKS)]
        ended = [(rank.communicate(timeout=120)[1], rank.returncode) for rank in ranks]
        seconds = time.monotonic() - begin
        Disagree.slowest = max(Disagree.slowest, seconds)
        self.assertLess(seconds, MOST_SECONDS, ended)
        return [(code, errors) for errors, code in ended]

    def expect(self, usual, odd, says, code=2):
        """Every rank ends with `code` and says the same; there is no output."""
        self.expect_odd(["run", *usual, "--device", "cpu"], ["run", *odd, "--device", "cpu"], says, code)

    def expect_odd(self, usual, odd, says, code=2):
        with self.subTest(says):
            before = sorted(os.listdir(self.folder))
            ended = self.ranks(lambda rank: [*(odd if rank == ODD else usual), "--out", "y"])
            for code_of_rank, errors in ended:
                self.assertEqual(code_of_rank, code, ended)
                self.assertIn(says, errors)
            self.assertEqual(len({errors for _, errors in ended}), 1, ended)
            self.assertEqual(sorted(os.listdir(self.folder)), before)

    def expect_field(self, usual, odd, field, value, other):
        self.expect(usual, odd, f"rank {ODD} asks for {field} = {value}, {OTHERS} for {field} = {other}")

    def test_problem(self):
        job = {"op": "gemm_all_reduce", "--m": 24, "--n": 24, "--k": 36, "--type": "fp32"}

        def command(changes):
            words = {**job, **changes}
            return [words.pop("op")] + [str(word) for pair in words.items() for word in pair if word is not None]

        for changes, field, value, other in (
                ({"--m": 48}, "m", 48, 24),
                ({"--n": 48}, "n", 48, 24),
                ({"--n": 240000}, "n", 240000, 24),  # whose heap is another, too
                ({"--k": 72}, "k", 72, 36),
                ({"--type": "bf16"}, "type", "bf16", "fp32"),
                ({"op": "gemm_all_to_all"}, "operator", "gemm_all_to_all", "gemm_all_reduce"),
                ({"--with-bias": None}, "bias", "true", "false"),
                ({"--strategy": "decomposed", "--chunks": 2}, "strategy", "decomposed", None),
                ({"--seed": 7}, "operands", "random by seed 7", "random by seed 0"),
                ({"--verify": None}, "verify", "true", "false"),
                ({"--repeat": 2}, "repeat", 2, 1),
                ({"--trace": "t.svg"}, "timeline", "true", "false")):
            if other is None:
                job["--strategy"], other = "fused", "fused"
            self.expect_field(command({}), command(changes), field, value, other)
            job.pop("--strategy", None)
        sizes = ["gemm_all_reduce", "--m", 24, "--n", 24, "--k", 36]
        self.expect_field(sizes, [*sizes, "--b-layout", "nxk"], "b_layout", "column_major", "row_major")
        gather = ["all_gather_gemm", "--m", 24, "--n", 24, "--k", 36]
        self.expect_field([*gather, "--more-n", 12], [*gather, "--more-n", "12,24"], "more_n", "12, 24", "12, 0")
        self.expect_field(gather, [*gather, "--gathered-a"], "gathered_a", "true", "false")
        scaled = ["gemm_all_reduce", "--m", 24, "--n", 24, "--k", 36, "--type", "e4m3", "--scales"]
        self.expect_field([*scaled, "tensor"], [*scaled, "row"], "scales", "row", "tensor")

    def test_knobs(self):
        sizes = ["--m", 96, "--n", 96, "--k", 768, "--type", "fp32"]
        for op, usual, changes in (
                ("gemm_reduce_scatter", {"strategy": "fused", "tile_m": 128},
                 {"tile_m": 32, "tile_n": 32, "cluster": 1, "cluster_k": 2, "group": 2, "order": "naive", "transport": "store",
                  "reducer": "tail", "comm_rows": 8, "split_k": 2, "partial": "bf16"}),
                ("gemm_reduce_scatter", {"strategy": "fused", "order": "column_major", "transport": "store"}, {"own_shift": 1, "abreast": 1}),
                ("all_gather_gemm", {"strategy": "fused", "comm_rows": 16}, {"k_slices": 2}),
                ("gemm_all_reduce", {"strategy": "fused", "transport": "store", "reducer": "tail"}, {"one_shot": True}),
                ("all_gather_gemm", {"strategy": "fused", "tile_m": 128}, {"span_shards": True}),
                ("gemm_all_reduce", {"strategy": "decomposed"}, {"chunks": 4, "codec": "int4"}),
                ("gemm_all_reduce", {"strategy": "sequential"}, {"nodes": 2}),
                ("gemm_all_reduce", {"strategy": "sequential"}, {"library_tile": 18, "library_parts": 2})):
            usual = {**DEFAULTS, **usual}  # no other knob is chosen

            def command(knobs):
                words = [op, *sizes]
                for name, value in knobs.items():
                    option = "--" + name.replace("_", "-")
                    words += [option] if value is True else [option + "=false"] if value is False else [option, value]
                return words

            plan = json.loads(self.run_program("plan", *command(usual), "--ranks", RANKS, "--json", "-")[0])["knobs"]
            for name, value in changes.items():
                changed = {**usual, **{name: value}}
                if name == "library_parts":
                    usual = changed = {**usual, "library_tile": 18}
                    changed = {**changed, name: value}
                self.expect_field(command(usual), command(changed), name, "true" if value is True else value,
                                  "none" if name == "codec" else "false" if plan[name] is False else plan[name])

    def test_plan_files(self):
        make = ["plan", "gemm_reduce_scatter", "--m", 24, "--n", 24, "--k", 36, "--type", "fp32", "--tile-m", 8, "--tile-n", 8,
                "--ranks", RANKS, "--strategy", "fused", "--json", "plan.json"]
        self.run_program(*make)
        plan = json.loads(self.read("plan.json"))
        usual = ["--plan", "plan.json"]

        def swap_posts(p):  # the same plan, except the order of what one task says
            posts = next(task["posts"] for queue in p["ranks"][2]["queues"] for task in queue["tasks"] if len(task["posts"]) > 1)
            posts.reverse()

        def more_workers(p):
            p["ranks"][0]["queues"][0]["workers"] += 1

        def more_rows(p):
            p["buffers"][-1]["rows"] += 1

        def signal_copies(p):
            p["signal_copies"] = 1

        def another_knob(p):
            p["knobs"]["group"] = 3

        for change, says in ((more_workers, "digest of rank 0's tasks = "), (more_rows, "digest of the buffers = "),
                             (signal_copies, "signal_copies = 1"), (another_knob, "group = 3")):
            self.write("odd.json", json.dumps(with_changes(plan, change)))
            self.expect(usual + ["--unchecked"], ["--plan", "odd.json", "--unchecked"], f"rank {ODD} asks for {says}")
        if any(len(task["posts"]) > 1 for queue in plan["ranks"][2]["queues"] for task in queue["tasks"]):
            self.write("odd.json", json.dumps(with_changes(plan, swap_posts)))
            self.expect(usual, ["--plan", "odd.json"], f"rank {ODD} asks for digest of rank 2's tasks = ")
        self.run_program(*[48 if at == 3 else word for at, word in enumerate(make[:-1])], "other.json")
        self.expect_field(usual, ["--plan", "other.json"], "m", 48, 24)
        # What the checker refutes, or the format check refuses, on one rank only.
        def lost_post(p):
            next(task for queue in p["ranks"][1]["queues"] for task in queue["tasks"] if task["posts"])["posts"].clear()
        self.write("odd.json", json.dumps(with_changes(plan, lost_post)))
        self.refuse_on_odd(usual, ["--plan", "odd.json"], "deadlock", code=1)
        self.write("odd.json", json.dumps(with_changes(plan, lambda p: p.update(signal_copies=9))))
        self.refuse_on_odd(usual, ["--plan", "odd.json"], "signal_copies", code=2)

    def refuse_on_odd(self, usual, odd, says, code):
        """The odd rank refuses its request, and its peers say so."""
        before = sorted(os.listdir(self.folder))
        ended = self.ranks(lambda rank: ["run", *(odd if rank == ODD else usual), "--device", "cpu", "--out", "y"])
        for rank, (code_of_rank, errors) in enumerate(ended):
            self.assertEqual(code_of_rank, code, ended)
            self.assertIn(says, errors)
            self.assertEqual(f"rank {ODD}: " in errors, rank != ODD, ended)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_files(self):
        for name, rows, cols in (("a.npy", 6, 8), ("b.npy", 8, 6), ("c.npy", 6, 12), ("d.npy", 12, 6)):
            self.write_npy(name, rows, cols, [1.0] * (rows * cols))
        job = ["gemm_all_reduce", "--type", "fp32"]
        files = [*job, "--a", "a.npy", "--b", "b.npy"]
        self.expect_field(files, [*job, "--a", "c.npy", "--b", "d.npy"], "k", 12, 8)
        self.expect(files, [*job, "--m", 6, "--n", 6, "--k", 8],
                    f"rank {ODD} asks for operands = random by seed 0, {OTHERS} for operands = from files")
        self.refuse_on_odd(files, [*job, "--a", "a.npy", "--b", "absent.npy"], "absent.npy", code=2)

    def test_all_reduce(self):
        job = ["all_reduce", "--m", 8, "--n", 64]
        quantized = [*job, "--codec", "int8"]
        tolerant = [*quantized, "--tolerance", 0.5]
        for usual, odd, field, value, other in (
                (job, ["all_reduce", "--m", 16, "--n", 64], "m", 16, 8),
                (job, ["all_reduce", "--m", 8, "--n", 32], "n", 32, 64),
                (job, [*job, "--type", "fp32"], "type", "fp32", "bf16"),
                (job, quantized, "codec", "int8", "exact"),
                (quantized, [*job, "--codec", "int4+int8"], "codec", "int4+int8", "int8"),
                (quantized, [*job, "--codec", "int8-g64"], "codec", "int8-g64", "int8"),
                (job, [*job, "--algorithm", "two_shot"], "algorithm", "two_shot", "auto"),
                (quantized, tolerant, "tolerance", 0.5, "none"),
                (tolerant, [*quantized, "--tolerance", 0.25], "tolerance", 0.25, 0.5),
                (tolerant, [*tolerant, "--whole-call"], "whole_call", "true", "false"),
                (quantized, [*quantized, "--exact-below", 512], "exact_below", 512, 0),
                (job, [*job, "--batch-invariant"], "batch_invariant", "true", "false"),
                (job, [*job, "--rms-norm"], "rms_norm", "true", "false"),
                (job, [*job, "--seed", 5], "tensors", "random by seed 5", "random by seed 0"),
                (job, [*job, "--verify"], "verify", "true", "false"),
                (job, [*job, "--repeat", 3], "repeat", 3, 1)):
            self.expect_field(usual, odd, field, value, other)
        normed = [*job, "--rms-norm"]
        self.write_npy("w.npy", 1, 64, [1.0] * 64)
        self.write_npy("r.npy", 8, 64, [1.0] * 512)
        self.expect_field(normed, [*normed, "--eps", 0.5], "eps", 0.5, "1e-06")
        self.expect_field(normed, [*normed, "--weight", "w.npy"], "weight", "from a file", "random by seed 0")
        self.expect_field(normed, [*normed, "--residual", "r.npy"], "residual", "from a file", "random by seed 0")
        self.expect_field(normed, [*normed, "--seed", 5], "residual", "random by seed 5", "random by seed 0")

    def test_another_kind_of_run(self):
        self.expect(["all_reduce", "--m", 8, "--n", 64], ["gemm_all_reduce", "--m", 8, "--n", 64, "--k", 8],
                    f"ranks are asked for different things: rank {ODD} asks for a run of an operator, {OTHERS} for a run of all_reduce")

    def test_ranks(self):
        """A plan for another number of ranks than the launcher started."""
        for ranks in (RANKS, 6):
            self.run_program("plan", "gemm_all_reduce", "--m", 24, "--n", 24, "--k", 36, "--ranks", ranks, "--json", f"{ranks}.json")
        self.refuse_on_odd(["--plan", f"{RANKS}.json"], ["--plan", "6.json"], "6 ranks are asked for, by --ranks or a plan, but the launcher started 4", code=2)

    def test_what_may_differ(self):
        """Where its output goes, how many workers it has and how long it waits is a rank's own affair."""
        job = ["run", "gemm_all_reduce", "--m", 24, "--n", 24, "--k", 36, "--device", "cpu", "--verify"]
        ended = self.ranks(lambda rank: [*job, "--out", f"y{rank}", "--workers", rank + 1, "--wait-limit", 20 + rank, "--delays", rank])
        self.assertEqual([code for code, _ in ended], [0] * RANKS, ended)
        self.assertEqual(sorted(os.listdir(self.folder)), [f"y{rank}.rank{rank}.npy" for rank in range(RANKS)])

    def test_imbrex_launch(self):
        script = f'if [ $IMBREX_RANK = {ODD} ]; then n=48; else n=24; fi; exec "$0" run gemm_all_reduce --m 24 --n $n --k 36 --out y'
        _, errors = self.run_program("launch", "-n", RANKS, "--", "sh", "-c", script, PROGRAM, code=2)
        self.assertEqual(errors.count(f"rank {ODD} asks for n = 48, {OTHERS} for n = 24"), RANKS)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
