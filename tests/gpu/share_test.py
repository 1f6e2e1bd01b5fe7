#!/usr/bin/env python3
"""`imbrex run --ranks-per-gpu`: four ranks, processes, that share GPUs; by time slices, or under MPS where it runs."""

import glob
import json
import os
import re
import subprocess
import sys
import unittest

from program import OPERATORS, PROGRAM, Case

SKIPPED = 77
GPUS = json.loads(subprocess.run([PROGRAM, "doctor", "--json", "-"], capture_output=True, text=True).stdout)["gpus"]
MPS = os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"), "control"))
RANKS = 4
SIZES = ["--m", 1024, "--n", 768, "--k", 2048] if MPS else ["--m", 256, "--n", 256, "--k", 512]
JOB = [*SIZES, "--ranks", RANKS, "--ranks-per-gpu", RANKS]
STRATEGIES = ["fused", "sequential", "decomposed", "auto"]
TABLES = [{"rows": 5000, "dim": 64, "hotness": 5}, {"rows": 300, "dim": 128, "count": 6}, {"rows": 9000, "dim": 32, "hotness": 20}]


class Share(Case):
    def expect_right(self, result):
        self.assertEqual((result["exit_code"], result["device"], result["verified"]), (0, "cuda", True), result)
        self.assertLessEqual(result["max_error_over_bound"], 1)

    def test_every_operator(self):
        for i, op in enumerate(OPERATORS):
            for strategy in STRATEGIES if MPS else [STRATEGIES[i]]:
                with self.subTest(op=op, strategy=strategy):
                    self.expect_right(self.json_of("run", op, *JOB, "--device", "cuda", "--strategy", strategy, "--verify", "--repeat",
                                                   5 if MPS else 2, timeout=180))

    def lookups(self, command, *options, **keywords):
        self.write("tables.json", json.dumps({"rows": "fp16", "tables": TABLES}))
        return self.json_of(command, "embedding_all_to_all", "--tables", "tables.json", "--batch", 1024, "--ranks", RANKS,
                            "--ranks-per-gpu", RANKS, "--device", "cuda", *options, timeout=180, **keywords)

    @unittest.skipUnless(MPS, "a process under MPS is wanted, which does not run")
    def test_lookups(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy=strategy):
                self.expect_right(self.lookups("run", "--strategy", strategy, "--optimizer", "sgd", "--verify", "--repeat", 3))
        ways = self.lookups("bench", "--rounds", 2)["rows"][0]
        self.assertTrue(ways["same_bits"])
        self.assertEqual([way["strategy"] for way in ways["strategies"] if way["us"] > 0], ["sequential", "decomposed", "fused"])

    @unittest.skipUnless(MPS, "a process under MPS is wanted, which does not run")
    def test_lookups_on_two_hosts_send_one_message_to_each(self):
        """NCCL counts: a rank's calls inside its host are two a slice, one for each host; between hosts it is one."""
        said = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": self.path("nccl.%p.log")}
        for strategy, slices in (("sequential", 1), ("decomposed", 2)):
            with self.subTest(strategy=strategy):
                self.expect_right(self.lookups("run", "--strategy", strategy, "--nodes", 2, "--verify", "--repeat", 3, environment=said))
                logs = glob.glob(self.path("nccl.*.log"))
                calls = [re.findall(r"AlltoAll: .* comm (\w+) \[nranks=2\]", self.read(path)) for path in logs]
                for path in logs:
                    os.remove(path)
                counts = [sorted(map(own.count, set(own))) for own in calls if own]
                self.assertEqual(len(counts), RANKS)
                for inside, across in ((high, low) for low, high in counts):
                    self.assertEqual(inside, 2 * across)
                    self.assertEqual(across % slices, 0)
                    self.assertIn(across // slices, (3, 4))  # a repeat is one; what is made may run once more

    def test_the_device_follows(self):
        result = self.json_of("run", "gemm_all_reduce", *JOB, "--strategy", "fused", "--verify")
        self.expect_right(result)

    def test_knobs_without_a_transport_store(self):
        self.expect_right(self.json_of("run", "all_gather_gemm", *JOB, "--strategy", "fused", "--tile-m", 64, "--verify"))

    def test_what_copies_bring_is_refused(self):
        self.refuse("run", "all_gather_gemm", *JOB, "--strategy", "fused", "--transport", "push",
                    says=f"{RANKS} ranks to a GPU: operands that copy engines bring need a GPU for each rank")

    def test_too_many_ranks(self):
        ranks = 2 * len(GPUS) + 1
        sizes = ["--m", 64 * ranks, "--n", 64, "--k", 64 * ranks]
        self.refuse("run", "gemm_all_reduce", *sizes, "--ranks", ranks, "--ranks-per-gpu", 2,
                    says=f"{ranks} ranks, 2 to a GPU, need {len(GPUS) + 1} GPUs, and there {'is' if len(GPUS) == 1 else 'are'} {len(GPUS)}")

    def test_threads(self):
        """Libraries are refused, and auto does without."""
        threads = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}
        job = ["run", "gemm_reduce_scatter", *JOB, "--world", "threads"]
        self.refuse(*job, "--strategy", "sequential", says="library collectives need a GPU for each rank that is a thread",
                    environment=threads)
        result = self.json_of(*job, "--verify", environment=threads)
        self.expect_right(result)
        self.assertEqual(result["strategy"], "fused")

    def test_under_a_launcher(self):
        for strategy in ("fused", "sequential"):
            with self.subTest(strategy=strategy):
                job = [PROGRAM, "run", "gemm_reduce_scatter", *JOB, "--device", "cuda", "--strategy", strategy, "--verify"]
                out, _ = self.run_program("launch", "-n", RANKS, "--", *job, timeout=180)
                self.assertEqual(out.count("right"), 1)
                out, _ = self.run_program("launch", "-n", RANKS, "--ranks-per-gpu", RANKS, "--", *job, timeout=180)
                self.assertEqual(out.count("right"), 1)

    def test_under_a_launcher_more_than_may_share_are_named(self):
        job = [PROGRAM, "run", "gemm_all_reduce", *SIZES, "--ranks", RANKS, "--ranks-per-gpu", 2, "--device", "cuda"]
        shell = f"CUDA_VISIBLE_DEVICES={GPUS[0]['uuid']} exec " + " ".join(map(str, job))
        _, errors = self.run_program("launch", "-n", RANKS, "--", "sh", "-c", shell, code=2)
        self.assertIn("ranks 0, 1 and 2 see one GPU only, the same one", errors)
        self.assertIn(GPUS[0]["uuid"], errors)

    @unittest.skipUnless(MPS, "a process under MPS is wanted, which does not run")
    def test_a_part_of_the_gpu(self):
        """Where MPS shows each process fewer SMs, the ranks share out those."""
        for percentage in (25, 10):
            with self.subTest(percentage=percentage):
                self.expect_right(self.json_of("run", "gemm_all_reduce", *JOB, "--strategy", "fused", "--verify", "--repeat", 5,
                                               environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}))


if __name__ == "__main__":
    if not GPUS:
        print("SKIPPED: no GPU found", file=sys.stderr)
        sys.exit(SKIPPED)
    if os.environ.get("IMBREX_TEST_NEEDS_MPS") and not MPS:
        print("SKIPPED: MPS does not run; scripts/test starts one", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
