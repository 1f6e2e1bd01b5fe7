#!/usr/bin/env python3
"""Help, wrong usage, and the commands that look at this machine."""

import json
import os
import subprocess
import unittest
from pathlib import Path

from program import COMMANDS, PROGRAM, Case

SIZES = ["--m", "8", "--n", "8", "--k", "8"]


class Usage(Case):
    def test_help_teaches(self):
        overview, _ = self.run_program("--help")
        for command in COMMANDS:
            self.assertIn(f"  {command} ", overview)
            text, _ = self.run_program(command, "--help")
            self.assertRegex(text, r"Examples?:\n  ", command)
            self.assertIn("--json", text)
            for line in (overview + text).splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_every_option_of_the_contract_is_in_the_help_of_run(self):
        text, _ = self.run_program("run", "--help-all")
        for option in ("ranks device strategy type m n k seed a b out verify repeat plan unchecked json trace world "
                       "workers delays wait-limit codec algorithm tolerance whole-call exact-below batch-invariant ctas "
                       "rms-norm eps residual weight").split():
            self.assertIn(f"--{option} ", text)

    def test_commands(self):
        self.refuse(says="a command is needed")
        self.refuse("nonsense", says=["'nonsense'", "plan, check"])
        self.refuse("--nonsense", says="'--nonsense'")

    def test_options(self):
        run = ["run", "gemm_all_reduce"]
        self.refuse(*run, *SIZES, "--nonsense", says="imbrex run takes no '--nonsense'")
        self.refuse(*run, *SIZES, "extra", "--and", "more", says="imbrex run takes no 'extra --and more'")
        self.refuse("run", *SIZES, says="no operator")
        self.refuse("run", "nonsense", *SIZES, says=["'nonsense'", "gemm_all_reduce", ", all_reduce, jacobi, sparse_triangular_solve"])
        self.refuse("launch", "-n", "2", "true", says="imbrex launch takes no 'true'; the program comes after --")
        self.refuse(*run, "--m", "0", says=["--m", "'0'", "from 1"])
        self.refuse(*run, "--m", "-8", says=["--m", "'-8'"])
        self.refuse(*run, "--m", "8x", says=["--m", "'8x'"])
        self.refuse(*run, "--m", "1e3", says=["--m", "'1e3'"])
        self.refuse(*run, "--m", "99999999999999999999", says=["--m", "99999999999999999999"])
        self.refuse(*run, "--m", "8", "--n", "8", says="--k is missing")
        self.refuse(*run, *SIZES, "--m", "9", says="--m")
        self.refuse(*run, *SIZES, "--ranks", "65", says=["--ranks", "'65'", "to 64"])
        self.refuse(*run, *SIZES, "--ranks", "3", says=["8", "3 ranks"])
        self.refuse(*run, *SIZES, "--type", "fp8", says=["'fp8'", "bf16, fp16, fp32 or e4m3"])
        self.refuse(*run, *SIZES, "--strategy", "fast", says=["'fast'", "sequential", "auto"])
        self.refuse(*run, *SIZES, "--device", "tpu", says=["'tpu'", "auto, cpu or cuda"])
        self.refuse(*run, *SIZES, "--world", "galaxy", says=["'galaxy'", "processes or threads"])
        self.refuse(*run, *SIZES, "--repeat", "0", says=["--repeat", "'0'"])
        self.refuse(*run, *SIZES, "--wait-limit", "nan", says=["--wait-limit", "'nan'"])
        self.refuse(*run, *SIZES, "--unchecked", says="--plan")
        self.refuse(*run, *SIZES, "--trace", "x.png", says=["'x.png'", ".svg"])
        self.refuse(*run, *SIZES, "--json", says="--json")
        self.refuse(*run, *SIZES, "--json", "/no/such/folder/x", says=["--json '/no/such/folder/x'", "no folder"])
        self.refuse(*run, *SIZES, "--json", ".", says="--json '.': it is a folder")
        self.refuse(*run, *SIZES, "--out", "/no/such/folder/x", says=["--out '/no/such/folder/x", "no folder"])
        self.refuse("run", "all_reduce", *SIZES[:4], "--out", "/no/such/folder/x", says=["--out '/no/such/folder/x", "no folder"])
        self.refuse(*run, *SIZES, "--trace", "/no/such/folder/x.svg", says=["--trace '/no/such/folder/x.svg'", "no folder"])
        self.refuse(*run, *SIZES, "--tile-m", "0", says=["--tile-m", "'0'"])
        self.refuse("plan", "all_gather_gemm", *SIZES, "--group", 0, "--strategy", "fused", says="--group")
        self.refuse("bench", "--layers", "12", says=["'12'", "NxK"])
        self.refuse("bench", "--ops", "gemm", says="'gemm'")
        self.refuse("bench", "--m", 0, says=["--m", "'0'", "from 1"])
        self.refuse("bench", "--m", 64, "abc", says=["--m", "'abc'"])
        self.refuse("bench", "--m", 99999999999999999999, says="'99999999999999999999'")
        self.refuse("bench", "--layers", "8x0", says=["'8x0'", "from 1"])
        self.refuse("bench", "--layers", "8x9999999999", says=["'8x9999999999'", "2147483648"])
        for command in (["bench"], ["tune"], ["run", "gemm_all_reduce", *SIZES]):
            _, errors = self.run_program(*command, "--scales", "row", code=2)
            self.assertEqual(errors, "imbrex: --scales row with type bf16: only e4m3 has scales\n")
        self.refuse("bench", "--runs", 3, says="3 runs")
        self.refuse("bench", "--strategy", "fastest", says=["--strategy", "'fastest'", "auto"])
        self.refuse("bench", "--try", "group", says=["'group'", "KNOB=VALUE"])
        self.refuse("bench", "--try", "grupp=3", says=["'grupp'", "not a knob"])
        self.refuse("bench", "--try", "group=3", "--try", "group=4,order=sideways", says=["sideways", "owner_major"])
        self.refuse("bench", "--try", "span_shards=1", says="true or false")
        self.refuse("bench", "--m", 1, 3, "--ops", "all_gather_gemm", "gemm_all_to_all", says=["left out", "M = 3"])
        # What is named twice is measured once.
        _, errors = self.run_program("tune", "--m", 3, 3, "--ops", "all_gather_gemm", "gemm_all_to_all", "all_gather_gemm", code=2)
        self.assertEqual(errors.count("left out"), 2)
        self.refuse("tune", "--m", 64, "--ranks", 3, says="3 ranks")
        self.refuse("tune", "--out", "/no/such/folder/x", says="/no/such/folder")
        all_reduce = ["tune", "--ops", "all_reduce"]
        self.refuse(*all_reduce, "gemm_all_reduce", says="all_reduce is tuned alone")
        self.refuse(*all_reduce, "--m", 64, says="--m is about operators with a GEMM")
        self.refuse(*all_reduce, "--layers", "8x8", says="--layers is about operators with a GEMM")
        self.refuse(*all_reduce, "--products", says="--products is about operators with a GEMM")
        self.refuse(*all_reduce, "--auto", "sizes.txt", says="--auto is about operators with a GEMM")
        self.refuse(*all_reduce, "--codecs", "int8", "int9", says=["--codecs", "'int9'"])
        self.refuse(*all_reduce, "--codecs", "int8", "int4", "int8", says="codec int8 comes twice")
        self.refuse(*all_reduce, "--ranks", 1, says="ranks = 1")
        self.refuse(*all_reduce, "--world", "galaxy", says="'galaxy'")
        self.refuse(*all_reduce, "--out", "/no/such/folder/x", says="/no/such/folder")
        self.refuse(*all_reduce, "--ranks", 64, says="measuring needs GPUs")
        self.write("mine.json", "{}")
        self.refuse(*all_reduce, "--out", "mine.json", says=["--out 'mine.json'", "'imbrex_records' is missing"])
        self.refuse("tune", "--out", "mine.json", says=["--out 'mine.json'", "'imbrex_records' is missing"])
        os.remove(self.path("mine.json"))
        self.refuse("tune", "--codecs", "int8", says="--codecs is about --ops all_reduce")
        self.refuse("bench", "--ops", "all_reduce", says="'all_reduce'")
        self.refuse("simulate", "gemm_all_reduce", *SIZES, says="--machine")
        self.refuse("simulate", "gemm_all_reduce", *SIZES, "--machine", "abacus", says=["'abacus'", "4xh200"])
        self.refuse("machine", says="MACHINE")
        self.refuse("machine", "abacus", says=["'abacus'", "4xh200"])
        self.refuse("machine", "4xh200", "--set", "links.latency", says=["'links.latency'", "PLACE=VALUE"])
        self.refuse("machine", "4xh200", "--set", "links.latency=fast", says="'fast' is not a number")
        self.refuse("machine", "4xh200", "--set", "links.latency=", says="'' is not a number")
        self.refuse("machine", "4xh200", "--set", "links.latency=1e-6x", says="'1e-6x' is not a number")
        self.refuse("machine", "4xh200", "--set", "links.speed=1", says=["'links.speed'", "links.latency"])
        self.refuse("machine", "4xh200", "--set", "links.latency=-1", says=["links.latency is -1", "0 to 1e6"])
        self.refuse("machine", "4xh200", "--set", "links.egress_bandwidth=inf", says="finite")
        self.refuse("machine", "4xh200", "--devices", 0, says="--devices")
        self.refuse("machine", "4xh200", "--out", "/no/such/folder/x", says="/no/such/folder/x")
        self.refuse("trace", "gemm_all_reduce", *SIZES, "--out", "x.svg", says="--machine")
        self.refuse("trace", "gemm_all_reduce", *SIZES, "--machine", "4xh200", "--out", "x.png", says="'x.png'")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_failure_is_json_too(self):
        self.run_program("run", "nonsense", "--json", "r.json", code=2)
        result = json.loads(self.read("r.json"))
        self.assertEqual(result["exit_code"], 2)
        self.assertIn("nonsense", result["error"])

    def test_a_bad_environment_is_bad_input(self):
        run = ["run", "gemm_all_reduce", *SIZES]
        for name, value in (("IMBREX_WAIT_LIMIT", "soon"), ("IMBREX_WAIT_LIMIT", "-1"), ("IMBREX_LOSS_DETECTION", "luck"),
                            ("IMBREX_CHECK_CALLS", "2")):
            environment = {name: value}
            # Once, however many ranks there are.
            _, errors = self.run_program(*run, environment=environment, code=2)
            self.assertEqual(errors.count(f"{name}='{value}'"), 1, errors)
            out, _ = self.run_program("doctor", environment=environment, code=3)
            self.assertRegex(out, f"missing +environment +{name}='{value}'")
            self.assertIn(f"it cannot be used: {name}='{value}'", self.run_program("env", environment=environment)[0])
            faults = [v.get("fault") for v in self.json_of("env", environment=environment) if v["name"] == name]
            self.assertIn(value, faults[0])

    def test_a_link_is_written_through(self):
        self.write("result", "before")
        os.symlink("result", self.path("link"))
        for arguments in (["version", "--json", "link"], ["machine", "4xh200", "--out", "link"]):
            self.run_program(*arguments)
            self.assertTrue(os.path.islink(self.path("link")), arguments)
            self.assertIsInstance(json.loads(self.read("result")), dict)
        self.assertEqual(sorted(os.listdir(self.folder)), ["link", "result"])
        os.symlink("absent", self.path("dangling"))
        self.refuse("version", "--json", "dangling", says="--json 'dangling': it cannot be written to: No such file")

    def test_closed_outputs(self):
        """What is printed goes nowhere, least of all into what the program opens next."""
        def run(*arguments, closed, code):
            result = subprocess.run([PROGRAM, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    timeout=120, preexec_fn=lambda: [os.close(number) for number in closed])
            self.assertEqual(result.returncode, code, result.stderr)
            return result.stderr
        for _ in range(10):
            errors = run("run", "gemm_all_reduce", *SIZES, "--device", "cpu", "--verify", "--out", "y", closed=[0, 1], code=0)
            self.assertEqual(errors, "")
        self.assertEqual({self.read(f"y.rank{rank}.npy", "rb")[:6] for rank in range(4)}, {b"\x93NUMPY"})
        self.assertIn("--json '-': standard output cannot be written to", run("version", "--json", "-", closed=[1], code=2))
        run("run", "nonsense", closed=[2], code=2)
        run("run", "nonsense", closed=[0, 1, 2], code=2)

    def test_what_never_ends_is_not_read(self):
        self.refuse("check", "/dev/zero", says="'/dev/zero' is larger than")

    def test_plans_that_fill_the_memory_are_not_made(self):
        self.refuse("plan", "gemm_reduce_scatter", "--m", "64", "--n", "2147483644", "--k", "64", "--ranks", "4", says=["a plan of", "more than", "larger tiles"])
        huge = ("plan", "all_gather_gemm", "--m", "2147483640", "--n", "2147483640", "--k", "2147483640", "--strategy")
        for knob in ("--k-slices", "--chunks", "--split-k"):
            self.refuse(*huge, "fused", knob, "2147483647", says="larger tiles", timeout=20)
        self.refuse(*huge, "decomposed", "--chunks", "2147483647", says="a plan of", timeout=20)

    def test_empty_values(self):
        self.refuse("version", "--json", "", says=["--json ''", "a value is needed"])
        self.refuse("machine", "4xh200", "--name", "", says="--name ''")
        self.refuse("machine", "4xh200", "--out", "x.json", "--json", "x.json", says=["--out and --json 'x.json'", "files of their own"])
        self.refuse("run", "all_reduce", "--m", "8", "--n", "8", "--ranks", "2", "--device", "cpu", "--ctas", "4", says=["--ctas 4", "GPUs"])
        self.refuse("simulate", "gemm_all_reduce", *SIZES, "--machine", "4xh200", "--max-skew", "1e-3", says=["--max-skew", "--skew-seed"])


class Machine(Case):
    def test_machine_files(self):
        """What is printed is what is read; what is set is set."""
        text, _ = self.run_program("machine", "4xh200")
        self.write("same.json", text)
        self.assertEqual(self.run_program("machine", "./same.json"), (text, ""))
        self.assertEqual(self.json_of("machine", "4xh200"), json.loads(text))
        self.run_program("machine", "4xh200", "--name", "mine", "--devices", 8, "--set", "links.latency=5e-6",
                         "--set", "compute.tiles.128x128.efficiency=0.5", "--out", "mine.json")
        mine, before = json.loads(self.read("mine.json")), json.loads(text)
        self.assertEqual(mine["links"]["latency"],
                         {"value": 5e-6, "unit": "s", "source": "unverified", "from": "set by `imbrex machine`"})
        tile = next(t for t in mine["compute"]["tiles"] if (t["tile_m"], t["tile_n"]) == (128, 128))
        self.assertEqual(tile["efficiency"]["value"], 0.5)
        self.assertEqual((mine["name"], mine["devices"]), ("mine", 8))
        self.assertEqual(mine["copy_engine"], before["copy_engine"])
        seconds = [self.json_of("simulate", "gemm_all_reduce", "--m", 512, "--n", 512, "--k", 512, "--machine", machine,
                                "--strategy", "fused")["seconds"] for machine in ("4xh200", "mine.json")]
        self.assertGreater(seconds[1], seconds[0] + 3e-6)

    def test_version(self):
        result = self.json_of("version")
        self.assertRegex(result["version"], r"^\d+\.\d+\.\d+$")
        self.assertIn(result["version"], self.run_program("version")[0])
        self.assertEqual(self.run_program("--version"), self.run_program("version"))

    def test_doctor_refuses_where_every_run_is_refused(self):
        for variable, says in (("RANK", "RANK='abc' is not an integer"), ("WORLD_SIZE", "WORLD_SIZE='abc' is not an integer")):
            environment = {variable: "abc"}
            result = self.json_of("doctor", environment=environment, code=3)
            findings = [f for f in result["findings"] if f["what"] == "launcher"]
            self.assertEqual((result["able"], findings[0]["verdict"]), (False, "missing"))
            self.assertIn(says, findings[0]["words"])
            self.refuse("run", "gemm_all_reduce", *SIZES, "--device", "cpu", says=says, environment=environment)

    def test_doctor(self):
        result = self.json_of("doctor")
        self.assertTrue(result["able"])
        self.assertLessEqual({"cores", "memory", "BLAS", "memfd", "pidfd", "CUDA", "GPUs", "launcher"},
                             {finding["what"] for finding in result["findings"]})
        strategies = {s["name"]: s for s in result["strategies"]}
        self.assertEqual(set(strategies), {"sequential", "decomposed", "fused", "signaled"})

    def test_doctor_says_which_strategies_run_without_peer_access(self):
        strategies = {s["name"]: s for s in self.json_of("doctor", environment={"IMBREX_PEER_ACCESS": "0"})["strategies"]}
        self.assertFalse(strategies["fused"]["runs"])
        self.assertIn("IMBREX_PEER_ACCESS=0", strategies["fused"]["why"])
        if not self.json_of("doctor")["gpus"]:
            self.assertTrue(all(s["runs"] for name, s in strategies.items() if name != "fused"))

    def test_doctor_prints_what_runs_where(self):
        page = Path(__file__).resolve().parents[2] / "docs/reference/limits.md"
        self.assertEqual(self.run_program("doctor", "--limits")[0], page.read_text())

    def test_env(self):
        variables = {v["name"]: v for v in self.json_of("env", environment={"IMBREX_WAIT_LIMIT": "7"})}
        self.assertEqual(variables["IMBREX_WAIT_LIMIT"]["value"], "7")
        self.assertIn("RANK", variables)
        for variable in variables.values():
            self.assertTrue(variable["description"])


class Launch(Case):
    def test_ranks_are_numbered(self):
        out, _ = self.run_program("launch", "-n", 3, "--", "sh", "-c", "echo $IMBREX_RANK of $IMBREX_WORLD_SIZE")
        self.assertEqual(sorted(out.split("\n")), ["", "0 of 3", "1 of 3", "2 of 3"])

    def test_options_behind_the_dashes_are_the_programs(self):
        out, _ = self.run_program("launch", "-n", 1, "--", "echo", "--help", "--", "-n")
        self.assertEqual(out, "--help -- -n\n")

    def test_the_worst_exit_code_wins(self):
        self.run_program("launch", "-n", 2, "--", "sh", "-c", "exit $IMBREX_RANK", code=1)
        self.run_program("launch", "-n", 2, "--", "sh", "-c", "kill -9 $$", code=3)

    def test_usage(self):
        self.refuse("launch", "-n", 2, says="no program")
        self.refuse("launch", "--", "true", says="--ranks")
        self.refuse("launch", "-n", 0, "--", "true", says="'0'")


if __name__ == "__main__":
    unittest.main()
