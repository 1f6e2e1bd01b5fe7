#!/usr/bin/env python3
"""bench/all: the planner's budget, resuming behind SIGKILL, children that hang or die, what is refused, and the page.

IMBREX_TEST_SEED adds to the seeds, which are printed where something fails.
"""

import concurrent.futures
import contextlib
import html.parser
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH / "all")]
import documents  # noqa: E402
import lists  # noqa: E402
import machine  # noqa: E402
import page  # noqa: E402
import planner  # noqa: E402
import predicted  # noqa: E402
import rows  # noqa: E402
import runs  # noqa: E402
import stand_in  # noqa: E402
import store  # noqa: E402
from marked import left_of, processes_marked  # noqa: E402
from measurement import Measurement, expect, load  # noqa: E402

PROGRAM = Path(os.environ["IMBREX_PROGRAM"])
SEED = int(os.environ.get("IMBREX_TEST_SEED", "0"))
SAMPLE = Path(__file__).with_name("sample")


def side_by_side(check, cases):
    """What fails in any of them: they mostly wait, each for processes of its own."""
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        running = {case: pool.submit(check, case) for case in cases}
        return [f"{case}: {one.exception()!r}" for case, one in running.items() if one.exception()]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"

    def command(self, measurements, *more, minutes=1.0, out=None):
        out = out or self.out
        path = stand_in.write(out.with_suffix(".json"), measurements)
        return [sys.executable, "-B", str(BENCH / "all/measure.py"), "--bin", str(PROGRAM.parent), "--cpu", "--commit", "abc", "--out", str(out),
                "--minutes", str(minutes), "--measurements", str(path), *more]

    def run_all(self, measurements, *more, minutes=1.0, code=0, mark="", environment=None, out=None):
        """What it prints, and how long it takes."""
        begin = time.monotonic()
        done = subprocess.run(self.command(measurements, *more, minutes=minutes, out=out), capture_output=True, text=True, timeout=120,
                              env={**os.environ, "MARK": mark, **(environment or {})})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr, time.monotonic() - begin

    def entries(self, out=None):
        return store.Store(out or self.out).entries

    def statuses(self, out=None):
        return {name: entry["status"] for name, entry in self.entries(out).items()}


class Planner(unittest.TestCase):
    def test_budgets(self):
        for seed in range(SEED, SEED + 300):
            draw = random.Random(seed)
            many = [Measurement(f"m{i}", "gemm", draw.choice([1, 5, draw.random() * 9]), draw.uniform(0.1, 30), [], phase=draw.randrange(3))
                    for i in range(draw.randrange(40))]
            seconds, pace = draw.uniform(0, 200), draw.uniform(0.5, 3)
            taken = planner.chosen(many, seconds, pace)
            names = {one.name for one in taken}
            with self.subTest(seed=seed):
                self.assertLessEqual(sum(one.seconds for one in taken) * pace, seconds + 1e-9)
                self.assertEqual(len(names), len(taken))
                self.assertEqual([one.phase for one in taken], sorted(one.phase for one in taken))
                for before, after in zip(taken, taken[1:]):
                    self.assertTrue(before.phase < after.phase or before.weight >= after.weight)
                # Nothing is left out that fits beside what counts at least as much.
                for one in many:
                    if one.name not in names:
                        above = sum(other.seconds for other in taken if other.weight >= one.weight) * pace
                        self.assertGreater(above + one.seconds * pace, seconds)
                # With all the time there is, all run.
                self.assertEqual(len(planner.chosen(many, sum(one.seconds for one in many) * pace + 1e-6, pace)), len(many))

    def test_pace(self):
        self.assertEqual(planner.pace_of([]), 1)
        self.assertEqual(planner.pace_of([(10, 40), (10, 10)]), 80 / 50)
        self.assertEqual(planner.pace_of([(1000, 1)]), 0.5)
        self.assertEqual(planner.pace_of([(1, 100)]), 3)
        self.assertLess(planner.pace_of([(0.1, 1)]), 1.1)


class Lists(unittest.TestCase):
    def test_every_measurement_is_sound(self):
        for ranks in (2, 4, 8):
            for made in (lists.of_gpus, lists.of_one_gpu, lists.of_cpu):
                found = made(ranks)
                names = [one.name for one in found]
                self.assertEqual(len(set(names)), len(names), made)
                for one in found:
                    expect(one)
                    self.assertIn(one.topic, lists.TOPICS)
                    self.assertIn(one.reader, rows.READERS)
                    self.assertTrue(one.output != "file" or any("{out}" in word for word in one.command), one.name)
                    scripts = [word.replace("{bench}", str(BENCH)) for word in one.command if word.startswith("{bench}")]
                    self.assertTrue(all(Path(script).is_file() for script in scripts), one.name)

    def test_every_topic_is_measured(self):
        for made in (lists.of_gpus, lists.of_one_gpu):
            self.assertEqual({one.topic for one in made(2)}, set(lists.TOPICS))
        # Every option that a command names is one that its program takes: its help has it.
        for words in {tuple(one.command[:3]) for made in (lists.of_gpus, lists.of_one_gpu, lists.of_cpu) for one in made(2)
                      if one.command[0] == "{program}"}:
            self.assertEqual(words[:2], ("{program}", "bench"))

    def test_programs_take_their_options(self):
        for one in [*lists.of_gpus(2), *lists.of_one_gpu(4), *lists.of_cpu(2)]:
            if one.command[0] != "{program}":
                continue
            commands = [word for word in one.command[1:3] if not word.startswith("-")]
            commands = commands if commands[-1] in ("bench", "shmem") else commands[:1]
            text = subprocess.run([PROGRAM, *commands, "--help-all"], capture_output=True, text=True, check=True).stdout
            for word in one.command:
                if word.startswith("--"):
                    self.assertIn(f"{word} ", text.replace(",", " ").replace("=", " "), one.name)

    def test_sets_of_runs(self):
        for name in ("verify", "operators", "layouts", "codecs", "signaled", "all_reduce", "jacobi"):
            for cpu in (True, False):
                self.assertTrue(all(case.ways for case in runs.cases(name, cpu)))
        with self.assertRaisesRegex(ValueError, "'all'"):
            runs.cases("all", True)

    def test_a_list_from_a_file_names_its_faults(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "list.json")
            good = stand_in.measurement("x", 1)
            for text, says in (("{", "no list"), ("[1]", "no list"), (json.dumps([{**good, "colour": 1}]), "colour"),
                               (json.dumps([good, good]), "more than one measurement is named x"),
                               (json.dumps([{**good, "name": "a/b"}]), "'a/b'"), (json.dumps([{**good, "seconds": 0}]), "0 seconds"),
                               (json.dumps([{**good, "phase": 4}]), "phase 4")):
                path.write_text(text)
                with self.assertRaisesRegex(ValueError, says):
                    load(path)


class Running(Case):
    def test_all_that_fits_is_measured_in_time(self):
        said, seconds = self.run_all(stand_in.several(6, SEED))
        self.assertEqual(set(self.statuses().values()), {"done"}, said)
        self.assertIn("6 of 6 measured", said)
        self.assertTrue((self.out / "page.html").exists())
        # A second run has nothing to do.
        said, _ = self.run_all(stand_in.several(6, SEED))
        self.assertIn("0 of 0 measured", said)
        self.assertEqual(json.loads((self.out / "run.json").read_text())["runs"], 2)

    def test_what_had_no_time_for_its_subject_is_not_done(self):
        said, _ = self.run_all([stand_in.measurement("whole", 0.1), stand_in.measurement("short", 0.1, then="short")])
        self.assertEqual(self.statuses(), {"whole": "done", "short": "partial"}, said)
        self.assertEqual(self.entries()["short"]["reason"], "no time for M 8, fused")
        self.assertEqual(len(self.entries()["short"]["result"]["rows"]), 2)

    def test_what_counts_most_comes_first_and_the_rest_is_named(self):
        many = [stand_in.measurement("light", 0.1, expected=50, weight=1), stand_in.measurement("heavy", 0.1, expected=2, weight=9),
                stand_in.measurement("test", 0.1, expected=2, weight=5, phase=0), stand_in.measurement("late", 0.1, expected=2, weight=8, phase=2)]
        said, seconds = self.run_all(many, minutes=0.4)
        order = [line.split(": ")[1].split(",")[0] for line in said.splitlines() if line.startswith("[")]
        self.assertEqual(order, ["test", "heavy", "late"])
        self.assertEqual(self.statuses()["light"], "left out")
        self.assertRegex(self.entries()["light"]["reason"], "no time: it takes about 50 s")
        self.assertIn("no time", (self.out / "page.html").read_text())

    def test_children_that_hang_die_or_are_deaf(self):
        many = [stand_in.measurement("fine", 0.1, weight=9), stand_in.measurement("dies", 0.1, "die", weight=8),
                stand_in.measurement("fails", 0.1, "3", weight=7), stand_in.measurement("after", 0.1, weight=1),
                {**stand_in.measurement("absent", 0.1, weight=6), "command": ["/nowhere/program"]},
                {**stand_in.measurement("silent", 0.1, weight=5), "command": [sys.executable, "-c", "pass"]},
                stand_in.measurement("bare", 0.1, weight=5, needs=["bin:no_such_program"])]
        self.run_all(many)
        self.assertEqual(self.statuses(), {"fine": "done", "dies": "partial", "fails": "partial", "after": "done", "absent": "failed",
                                           "silent": "failed", "bare": "left out"})
        for name, says in (("dies", "SIGSEGV"), ("fails", "ended with 3"), ("absent", "does not start"), ("silent", "no result"),
                           ("bare", "no_such_program")):
            self.assertIn(says, self.entries()[name]["reason"])

    def test_the_end_comes_in_time_and_leaves_nobody(self):
        for then in ("hang", "deaf", "family"):
            with self.subTest(then=then):
                mark = f"mark-{then}-{os.getpid()}"
                _, seconds = self.run_all([stand_in.measurement(then, 0.1, then, expected=4, weight=9)], "--again", minutes=0.15, mark=mark)
                self.assertLess(seconds, 0.15 * 60 + 3)  # a Python starts before it reads the clock
                self.assertEqual(processes_marked(mark), [])
                entry = self.entries()[then]
                self.assertEqual((entry["status"], len(entry["result"]["rows"])), ("partial", 2))
                self.assertIn("had not ended", entry["reason"])

    def test_a_run_that_is_ended_makes_its_page(self):
        many = [stand_in.measurement("quick", 0.1, weight=9), stand_in.measurement("slow", 30, weight=1)]
        with subprocess.Popen(self.command(many), stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if "slow" in line:
                    break
            process.send_signal(signal.SIGTERM)
            said = process.stdout.read()
            self.assertEqual(process.wait(20), 128 + signal.SIGTERM)
        self.assertIn("the same command continues", said)
        self.assertEqual(self.statuses()["quick"], "done")
        self.assertTrue((self.out / "page.html").exists())

    def test_killed_anywhere_it_loses_nothing(self):
        count = 12

        def check(seed):
            draw = random.Random(seed)
            out = self.folder / f"out{seed}"
            many = stand_in.several(count, seed, 0.2)
            known, mark = {}, f"mark-{seed}-{os.getpid()}"
            # Half of the others come first; the runs that are killed never get past it.
            many.append(stand_in.measurement("family", 0.3, "family", expected=0.3, weight=0.5))
            for attempt in range(6):
                with subprocess.Popen(self.command(many, out=out), stdout=subprocess.PIPE, env={**os.environ, "MARK": mark}) as process:
                    # On a busy machine the time may be over before it measures anything: half of them say first that they begin.
                    if attempt % 2:
                        process.stdout.readline()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(draw.uniform(0.1, 2.5))
                    process.kill()
                after = {name: entry for name, entry in (self.entries(out) if out.exists() else {}).items() if entry["status"] == "done"}
                for name, entry in known.items():
                    self.assertEqual(after[name], entry)
                known = after
            self.assertEqual(left_of(mark), [], "what a killed run had started goes on")
            self.run_all([*many[:-1], stand_in.measurement("family", 0.3, weight=0.5)], mark=mark, out=out)  # now it ends
            self.assertEqual(list(self.statuses(out).values()), ["done"] * (count + 1))
            for name, entry in known.items():
                self.assertEqual(self.entries(out)[name], entry)
        self.assertEqual(side_by_side(check, (SEED, SEED + 1)), [])

    def test_what_a_killed_child_had_written_is_kept(self):
        many = [stand_in.measurement("long", 30, weight=1)]
        process = subprocess.Popen(self.command(many), stdout=subprocess.DEVNULL)
        raw = self.out / "raw/long.json"
        while not raw.exists() and process.poll() is None:
            time.sleep(0.05)
        process.kill()
        process.wait()
        self.run_all(many, minutes=0.15)  # no time for it
        entry = self.entries()["long"]
        self.assertEqual((entry["status"], len(entry["result"]["rows"])), ("partial", 1))

    def test_what_failed_is_tried_again_only_if_asked(self):
        many = [{**stand_in.measurement("absent", 0.1), "command": ["/nowhere/program"]}]
        self.run_all(many)
        self.assertIn("0 of 0 measured", self.run_all(many)[0])
        self.assertIn("0 of 1 measured", self.run_all(many, "--again")[0])

    def test_results_of_another_machine_or_program_are_refused(self):
        many = stand_in.several(1, SEED)
        self.run_all(many)
        for key, value in (("commit", "other"), ("program", "00"), ("ranks", 3), ("mode", "gpus")):
            path = self.out / "run.json"
            was = path.read_text()
            path.write_text(json.dumps({**json.loads(was), key: value}))
            said, _ = self.run_all(many, code=2)
            self.assertIn(f"its results are of {key} {value}", said)
            path.write_text(was)
        (self.out / "topics/gemm.json").write_text("{}")
        self.assertIn("no results of bench/all", self.run_all(many, code=2)[0])

    def test_a_dry_run_leaves_nothing(self):
        said, _ = self.run_all(stand_in.several(3, SEED), "--dry-run")
        self.assertEqual(said.count("weight"), 3)
        self.assertFalse(self.out.exists())

    def test_wrong_options(self):
        for options, says in ((["--minutes", "0"], "more than 0"), (["--minutes", "nan"], "more than 0"), (["--ranks", "9"], "from 1 to 8"),
                              (["--only", "soup"], "soup"), (["--bin", "/nowhere"], "no program imbrex"), (["--python", "/nowhere/python"], "no such program"),
                              (["--measurements", "/nowhere/list"], "no list of measurements"), (["--out", __file__], "no folder")):
            said, _ = self.run_all([], *options, code=2)
            self.assertIn(says, said)

    def test_a_run_without_gpus_measures_the_cpu(self):
        done = subprocess.run([PROGRAM, "bench", "all", "--cpu", "--commit", "abc", "--minutes", "0.6", "--out", self.out, "--only", "correctness",
                               "jacobi", "predicted"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        entry = self.entries()["runs-verify"]
        self.assertIn(entry["status"], ("done", "partial"))
        counts = rows.counts_of(entry)
        self.assertGreater(counts["right"], 0)
        self.assertEqual(counts["wrong"], 0)
        text = (self.out / "page.html").read_text()
        self.assertIn("No GPU was used", text)
        self.assertIn(f"{counts['right']} right", text)


class Machines(Case):
    def survey(self, gpus, apps=""):
        tool = self.folder / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\ncase $* in *compute-apps*) printf '{apps}';; *memory.free*) printf '0, 1000\\n';; *) printf '{gpus}';; esac\n")
        tool.chmod(0o755)
        found = machine.Machine()
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            machine.surveyed_gpus(found, 8)
            return found, machine.free_gib(found)

    def test_gpus_that_others_use_are_left_alone(self):
        row = "{}, GPU A, 80000, {}, 345, 1980, 2619, 580.1, Default, {}, 700, GPU-{}\\n"
        gpus = row.format(0, 4, "Disabled", "a") + row.format(1, 30000, "Disabled", "b") + row.format(2, 4, "Enabled", "c") + row.format(3, 4, "[N/A]", "d")
        found, free = self.survey(gpus, "GPU-d, 77, 100\\n")
        self.assertEqual([gpu["index"] for gpu in found.gpus], ["0"])
        self.assertEqual(found.in_use, {"1": "29.3 GiB of its memory are in use", "2": "it is cut into parts (MIG)", "3": "process 77 uses it"})
        self.assertAlmostEqual(free, 1000 / 1024)
        self.assertEqual(machine.child_environment(found)["CUDA_VISIBLE_DEVICES"], "0")
        for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
            self.assertIn(machine.child_environment(found)[name], ("0", "1"))
        self.assertEqual(self.survey("")[0].kind(), "0 cores, no GPU")

    def test_gpus_that_the_environment_hides_are_not_there(self):
        gpus = [{"index": str(i), "uuid": f"GPU-{name}"} for i, name in enumerate(("ab", "cd", "ce"))]
        for listed, wanted in ((None, "012"), ("", ""), ("2,0", "20"), ("1,7,0", "1"), ("-1", ""), ("GPU-ce, 0", "20")):
            with self.subTest(listed=listed):
                self.assertEqual("".join(gpu["index"] for gpu in machine.visible(gpus, listed)), wanted)


class Pages(Case):
    def test_the_page_of_the_sample(self):
        text = page.page(SAMPLE)

        class Parser(html.parser.HTMLParser):
            open, svgs = [], 0

            def handle_starttag(self, tag, attributes):
                self.svgs += tag == "svg"
                if tag not in ("meta", "br", "line", "rect", "circle", "polyline"):
                    self.open.append(tag)

            def handle_endtag(self, tag):
                if tag not in ("line", "rect", "circle", "polyline"):
                    assert self.open.pop() == tag, tag

        parser = Parser()
        parser.feed(text)
        self.assertEqual(parser.open, [])
        self.assertGreaterEqual(parser.svgs, 2)
        for words in ("Imbrex on 1 x NVIDIA H100", "abc1234", "ranks share a card", "1 of 4 rows that have a peer are slower", "5 right", "1 wrong",
                      "1 skipped", "no time: it takes about 60 s", "10.0 %", "driver", "580.159.04", "1980"):
            self.assertIn(words, text)
        # What is slower than a peer comes first.
        self.assertLess(text.index("Rows below a peer"), text.index("<h2>Correctness"))
        self.assertLess(text.index("NVSHMEM"), text.index("<h2>Correctness"))

    def test_a_folder_that_is_no_run(self):
        for make in (lambda: page.main([str(self.folder)]),):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                self.assertEqual(make(), 2)
            self.assertIn("no run.json", errors.getvalue())

    def test_a_result_of_another_kind_is_told(self):
        (self.folder / "topics").mkdir()
        (self.folder / "run.json").write_text((SAMPLE / "run.json").read_text())
        entry = {"topic": "gemm", "status": "done", "reader": "bench", "result": {"rows": [{"what": 1}]}}
        (self.folder / "topics/gemm.json").write_text(json.dumps({"topic": "gemm", "measurements": {"x": entry}}))
        self.assertIn("is not what &#x27;bench&#x27; reads", page.page(self.folder))

    def test_tests_are_counted_once(self):
        lines = ["[ RUN      ] A.b", "[       OK ] A.b (3 ms)", "[  FAILED  ] A.c/0, where GetParam() = 4 (1 ms)", "[  SKIPPED ] A.d (0 ms)",
                 "[----------] 3 tests", "[  FAILED  ] 1 test, listed below:", "[  FAILED  ] A.c/0, where GetParam() = 4", "[  PASSED  ] 1 test."]
        self.assertEqual(rows.counts_of({"reader": "gtest", "result": lines}), {"right": 1, "wrong": 1, "skipped": 1})

    def test_predictions_say_what_they_leave_out(self):
        found, why = predicted.predictable(SAMPLE)
        self.assertEqual([topic for topic, _ in found], ["gemm", "gemm"])
        self.assertIn("shmem", why)
        self.assertEqual(predicted.machine_of(self.folder, "1 x NVIDIA A100")[0], "")
        self.assertEqual(predicted.machine_of(self.folder, "4 x NVIDIA H200")[0], "4xh200")
        (self.folder / "machine-fitted.json").touch()
        self.assertEqual(predicted.machine_of(self.folder, "1 x NVIDIA H100")[0], str(self.folder / "machine-fitted.json"))
        errors = predicted.errors([{"topic": "gemm", "us": 10.0, "predicted_us": 11.0}, {"topic": "gemm", "us": 10.0, "predicted_us": 8.0}])
        self.assertEqual(errors, {"gemm": {"rows": 2, "mean": 0.15, "largest": 0.2}})

    def test_a_plan_is_predicted(self):
        (self.folder / "topics").mkdir()
        problem = {"operator": "gemm_reduce_scatter", "m": 256, "n": 1024, "k": 2048, "ranks": 4, "type": "bf16"}
        knobs = {"tile_m": 128, "tile_n": 128, "transport": "store"}
        plans = [{"name": "sequential", "us": 90.0, "chosen": False}, {"name": "fused", "us": 20.0, "chosen": True, "strategy": "fused", "knobs": knobs}]
        entry = {"topic": "gemm", "status": "done", "reader": "bench", "result": {"rows": [{"problem": problem, "cublas_us": 9.0, "plans": plans}]}}
        plan = ["gemm_reduce_scatter", "--m", "256", "--n", "1024", "--k", "2048", "--strategy", "signaled", "--chunks", "2", "--ranks", "4"]
        ways = {"signaled": {"us": 30.0, "plan": plan}, "fused": {"us": 20.0}, "none": {"us": 1.0, "plan": [*plan, "--chunks", "999999"]}}
        ran = {"topic": "gemm", "status": "done", "reader": "runs", "result": {"set": "signaled", "device": "cuda", "rows": [{"what": "x", "ways": ways}]}}
        (self.folder / "topics/gemm.json").write_text(json.dumps({"topic": "gemm", "measurements": {"x": entry, "y": ran}}))
        with contextlib.redirect_stdout(io.StringIO()):
            predicted.main(["--dir", str(self.folder), "--program", str(PROGRAM), "--out", str(self.folder / "p.json"), "--machine", "4xh200"])
        result = json.loads((self.folder / "p.json").read_text())
        self.assertEqual((len(result["rows"]), result["not_predicted"]), (2, 1))
        self.assertTrue(all(row["predicted_us"] > 1 for row in result["rows"]))

    def test_documents_take_what_ended(self):
        about = json.loads((SAMPLE / "run.json").read_text())
        self.assertEqual(documents.name_of_machine(about), "1xh100")
        entries = {}
        for path in (SAMPLE / "topics").glob("*.json"):
            entries.update(json.loads(path.read_text())["measurements"])
        found = documents.wanted(about, entries)
        names = {str(path.relative_to(documents.RESULTS)) for path in found}
        self.assertEqual(names, {"shmem-1xgpu.json", "product-1xh100.json"})
        self.assertTrue(all(result["commit"] == "abc1234" for result in found.values()))
        self.assertEqual(documents.count({"a": [1, {"b": 2.5, "c": "x"}], "d": None}), 2)

    def test_documents_are_as_their_results_say(self):
        done = subprocess.run([sys.executable, "-B", BENCH / "all/documents.py", "--check"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
