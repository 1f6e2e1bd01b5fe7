#!/usr/bin/env python3
"""The scripts of bench/: grids, medians over turns, tables and plots, and checks of results, on results made up here."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree as xml
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = map(str, (BENCH, BENCH / "codec", BENCH / "python", BENCH / "shmem", BENCH / "signaled", BENCH / "simulator"))
import check as codec_check  # noqa: E402
import gpu_accuracy  # noqa: E402
import gpu_tables  # noqa: E402
import jacobi  # noqa: E402
import knob_plots  # noqa: E402
import peers_torch  # noqa: E402
import product_tables  # noqa: E402
import random_cells  # noqa: E402
import progress  # noqa: E402
import report  # noqa: E402
import theory  # noqa: E402


def row(op="gemm_reduce_scatter", m=512, us=(50.0, 40.0), peers=None, **more):
    plans = [{"name": "sequential", "us": us[0], "chosen": False}, {"name": "fused", "us": us[1], "chosen": True}]
    result = {"problem": {"operator": op, "m": m, "n": 8, "k": 8, "ranks": 4, "type": "bf16"}, "cublas_us": 30.0, "wire_us": 20.0,
              "plans": plans, **more}
    return {**result, "peers": peers} if peers else result


class Jacobi(unittest.TestCase):
    def test_a_row_says_what_falls_short(self):
        row = jacobi.row_of(1024, {"kernel_boundaries": [15.0, 13.0, 14.0], "graph": [9.0, 11.0, 12.0], "in_kernel": [10.0, 10.0, 10.0]})
        self.assertEqual((row["us"]["kernel_boundaries"], row["ratios"]["graph"]["median"], row["ratios"]["graph"]["least"]), (14.0, 1.1, 0.9))
        self.assertEqual(row["short"], [])
        self.assertEqual(jacobi.row_of(1024, {"kernel_boundaries": [13.9], "in_kernel": [10.0]})["short"], ["kernel_boundaries"])
        self.assertEqual(jacobi.row_of(4096, {"graph": [9.9], "overlapped": [10.0], "in_kernel": [10.0]})["short"], ["graph"])
        self.assertEqual(jacobi.row_of(512, {"ring": [11.4], "in_kernel": [10.0]})["short"], ["ring"])
        self.assertEqual(jacobi.row_of(2048, {"ring": [10.1], "in_kernel": [10.0]})["short"], [])
        self.assertEqual(jacobi.table_of([row]).count("\n"), 3)
        self.assertEqual(jacobi.microseconds({"seconds": [9.0, 2e-3, 4e-3, 3e-3], "problem": {"sweeps": 100}}), 30.0)


class Report(unittest.TestCase):
    def test_a_section_is_replaced(self):
        document = "before\n<!-- made by x -->\nold\n<!-- end -->\nbetween\n<!-- made by y -->\nother\n<!-- end -->\n"
        self.assertEqual(report.with_section(document, "x", "new\n"), document.replace("old", "new"))
        self.assertEqual(report.with_section(document, "y", "new\n"), document.replace("other", "new"))
        with self.assertRaises(ValueError):
            report.with_section(document, "z", "new\n")

    def test_a_check_fails_where_a_file_differs(self):
        with tempfile.TemporaryDirectory(dir=report.ROOT / "build" if (report.ROOT / "build").is_dir() else report.ROOT) as folder:
            path = Path(folder) / "x"
            with self.assertRaises(SystemExit):
                report.write_or_check({path: "text"}, True, "x")
            report.write_or_check({path: "text"}, False, "x")
            report.write_or_check({path: "text"}, True, "x")
            path.write_text("other")
            with self.assertRaises(SystemExit):
                report.write_or_check({path: "text"}, True, "x")

    def test_turns_give_medians(self):
        joined = report.joined([row(us=(50, 40)), row(us=(60, 30)), row(us=(10, 35))])
        self.assertEqual([plan["us"] for plan in joined["plans"]], [50, 35])
        other = row()
        other["plans"][1]["name"] = "another"
        with self.assertRaises(ValueError):
            report.joined([row(), other])


class Checks(unittest.TestCase):
    def test_of_codecs_finds_what_differs(self):
        row = {"codec": "int8", "algorithm": "ring", "distribution": "gelu", "wire_bits": 8.5, "sqnr_db": 40.0, "largest_error": 0.5, "bound": 1.0}
        self.assertEqual(list(codec_check.differences([row], [row])), [])
        for change in ({"codec": "int6"}, {"wire_bits": 8.25}, {"sqnr_db": 39.9}, {"largest_error": 0.25}, {"bound": 2.0}):
            self.assertEqual(len(list(codec_check.differences([row], [{**row, **change}]))), 1, change)
        self.assertEqual(len(list(codec_check.differences([{**row, "bound": 0.4}], [{**row, "bound": 0.4}]))), 1)
        self.assertEqual(len(list(codec_check.differences([row], []))), 1)

    def test_of_predictions_finds_what_differs(self):
        committed = json.loads(gpu_accuracy.RESULT.read_text())
        first = committed["2xh200"][0]

        def faults(rows, program=None, largest_m=0):
            return len(list(gpu_accuracy.differences(program, {**committed, "2xh200": rows}, largest_m)))

        def changed(**change):
            return [{**first, **change}, *committed["2xh200"][1:]]

        self.assertEqual(faults(committed["2xh200"]), 0)
        for change in ({"strategy": "other"}, {"measured_us": first["measured_us"] + 1}, {"error": first["error"] + 0.01},
                       {"predicted_us": 2 * first["predicted_us"]}):  # this one's error is another
            self.assertEqual(faults(changed(**change)), 1, change)
        self.assertEqual(faults(committed["2xh200"][:-1]), 1)
        # An error that belongs to a prediction, where the program predicts something else.
        twice = changed(predicted_us=2 * first["predicted_us"], error=round(2 * first["predicted_us"] / first["measured_us"] - 1, 4))
        self.assertEqual(faults(twice), 0)
        self.assertEqual(faults(twice, os.environ["IMBREX_PROGRAM"], first["m"]), 1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Shown(unittest.TestCase):
    def test_progress_has_share_and_time_left_in_place(self):
        now = iter([0, 10, 30])
        stream = Terminal()
        shown = progress.Progress("work", 4, stream, lambda: next(now))
        shown.show(0, "first")
        shown.show(1)
        shown.clear()
        shown.clear()
        self.assertEqual(stream.getvalue(), "\rwork: 0 of 4 done (0 %), 10 s so far: first\033[K"
                         "\rwork: 1 of 4 done (25 %), 30 s so far, about 90 s left\033[K\r\033[K")

    def test_files_get_none(self):
        stream = io.StringIO()
        shown = progress.Progress("work", 4, stream)
        shown.show(1, "next")
        shown.clear()
        self.assertEqual(stream.getvalue(), "")


class Tables(unittest.TestCase):
    def test_peers_have_columns_where_there_are_any(self):
        plain = gpu_tables.table({"rows": [row()]})
        self.assertNotIn("torch", plain)
        self.assertIn("| gemm_reduce_scatter | 512 x 8 x 8 | 30.0 | 50.0 | 40.0 | 0.75 | 1.25 | fused |", plain)
        both = gpu_tables.table({"rows": [row(peers={"cuBLAS+NCCL": 52.0, "fused": 38.0}), row(m=1024)]})
        self.assertIn("| 30.0 | 50.0 | 38.0 (fused) | 40.0 | 0.75 | 1.25 | 0.95 | fused |", both)
        self.assertIn("| 30.0 | 50.0 | - | 40.0 | 0.75 | 1.25 | 1.25 | fused |", both)
        self.assertIn("| all | 2 | 0.750 | 1.250 | 1.25 | 1.090 | 0.95 |", both)

    def test_the_faster_of_two_baselines_counts(self):
        # Torch's cuBLAS+NCCL took less than cuBLAS alone here, which is no roofline then.
        r = row(us=(50.0, 28.0), peers={"cuBLAS+NCCL": 27.9, "fused": 38.0})
        table = gpu_tables.table({"rows": [r]})
        self.assertIn("| 27.9 | 27.9 | 27.9 (cuBLAS+NCCL) | 28.0 | 1.00 | 1.00 | 1.00 | fused |", table)
        self.assertIn("| all | 1 | 0.996 | 0.996 | 0.99 | 0.996 | 0.99 |", table)  # the least is rounded down
        cube = {**row(m=8, us=(80.0, 40.0))}
        unseen = {"commit": "def", "date": "E", "rows": [row(us=(30.0, 20.0)), row(m=1024, us=(20.0, 30.0))]}
        text = gpu_tables.sum_of({"commit": "abc", "date": "D", "rows": [r, cube]}, [("two H200s", unseen, False), ("four H100s", unseen, True)])
        self.assertIn("| `gemm_reduce_scatter` | 1 | 1.00x (slowest 0.99x) | 1.00x (slowest 0.99x) |\n| all | 1 |", text)  # without the cube
        self.assertIn("commit abc, D: ", text)
        self.assertIn("**: two H200s, commit def, E; four H100s, commit def, E. H100s ran", text)
        self.assertIn("|\n| two H200s | all | 2 | 1.00x (slowest 0.66x) | not measured |\n", text)
        self.assertIn("|\n| four H100s | `gemm_reduce_scatter` | 2 | 1.00x (slowest 0.66x) | not measured |\n", text)
        summary = gpu_tables.summary({"commit": "abc", "machine": "M", "date": "D", "rows": [r, cube, row(m=64, us=(30.0, 20.0))]})
        self.assertIn("| `gemm_reduce_scatter` | up to 256 | 1 | 1.50 | 1.50 | 1.50 |", summary)
        self.assertIn("| all | all | 2 |", summary)
        self.assertIn("M, D, commit abc.", summary)

    def test_a_run_counts_what_ended(self):
        entries = {"gemm-a": {"status": "done", "result": {"rows": [row()]}}, "gemm-b": {"status": "partial", "result": {"rows": [row(m=64)]}},
                   "gemm-c": {"status": "left out", "result": None}, "bench-e4m3": {"status": "done", "result": {"rows": [row(m=128)]}}}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "topics").mkdir()
            (folder / "run.json").write_text(json.dumps({"date": "D", "commit": "abc"}))
            (folder / "topics/gemm.json").write_text(json.dumps({"topic": "gemm", "measurements": entries}))
            result = gpu_tables.of_run(folder)
        self.assertEqual(([r["problem"]["m"] for r in result["rows"]], result["date"], result["commit"]), ([512], "D", "abc"))

    def test_products_count_the_fastest_tile_shape(self):
        def product(m, us):
            plans = [{"name": name, "us": time, "chosen": i == 1} for i, (name, time) in enumerate(us)]
            return {"problem": {"m": m, "n": 8, "k": 8}, "cublas_us": 30.0, "plans": plans}
        table = product_tables.table({"rows": [
            product(64, [("sequential", 10.0), ("fused 128x128x2 store", 50.0), ("fused 64x64x1 store", 40.0)]),
            product(2048, [("sequential", 10.0), ("fused 128x256x2 store", 24.0)])]})
        self.assertIn("| 64 x 8 x 8 | 30.0 | 40.0 | 0.75 | 64x64x1 |", table)
        self.assertIn("| all | 2 | 0.968 | 0.75 | 0.866 | 0.60 |", table)  # chosen beforehand: 30 / 50, 30 / 24
        self.assertIn("| from 2048 on | 1 | 1.250 | 1.25 | 1.250 | 1.25 |", table)

    def test_results_join(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, r in enumerate([row(), row(m=64, peers={"fused": 3.0})]):
                paths.append(os.path.join(folder, f"{i}.json"))
                Path(paths[-1]).write_text(json.dumps({"date": "2026-01-01", "rows": [r]}))
            out = os.path.join(folder, "out.json")
            gpu_tables.merge(out, "some machine", paths)
            result = json.loads(Path(out).read_text())
            with self.assertRaisesRegex(ValueError, "measured more than once"):
                gpu_tables.merge(out, "some machine", [paths[0], paths[0]])
        self.assertEqual((result["machine"], [r["problem"]["m"] for r in result["rows"]]), ("some machine", [512, 64]))
        self.assertEqual(result["rows"][1]["peers"], {"fused": 3.0})


class Knobs(unittest.TestCase):
    def test_commands_measure_what_is_plotted(self):
        *benches, merge, _ = knob_plots.commands()
        self.assertEqual(len(benches), len(knob_plots.PROBLEMS))
        self.assertIn("--try transport=push,comm_rows=1024 ", benches[1])
        self.assertIn("--try transport=push,comm_rows=128", benches[1])
        self.assertNotIn("comm_rows=64", benches[1])
        for i in range(len(benches)):
            self.assertIn(f"knobs-{i}.json", benches[i])
            self.assertIn(f"knobs-{i}.json", merge)

    def test_tries_are_knobs_that_the_program_knows(self):
        # It reads them before it looks for GPUs; an unknown one is what it complains about.
        changes = [c for op, m, _, _ in knob_plots.PROBLEMS for group in knob_plots.tries(op, m).values() for c in group]
        options = [word for change in changes for word in ("--try", change)]
        result = subprocess.run([os.environ["IMBREX_PROGRAM"], "bench", "--try", "grupp=1", *options], capture_output=True, text=True)
        self.assertIn("'grupp'", result.stderr)
        result = subprocess.run([os.environ["IMBREX_PROGRAM"], "bench", *options, "--try", "grupp=1"], capture_output=True, text=True)
        self.assertIn("'grupp'", result.stderr)

    def test_plots_are_pictures(self):
        rows = []
        for op, m, _, _ in knob_plots.PROBLEMS:
            changes = [c for group in knob_plots.tries(op, m).values() for c in group if "pull" not in c]
            plans = [{"name": "fused", "us": 40.0 + i, "chosen": False, "try": change} for i, change in enumerate(changes)]
            rows.append({**row(op, m), "plans": plans, "refused": [{"try": "transport=pull", "why": "no"}]})
        for name in knob_plots.TITLES:
            picture = xml.fromstring(knob_plots.plot(name, {"rows": rows}))
            lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
            self.assertEqual(len(lines), 2 if name == "comm-rows" else 4)
            words = " ".join(text.text for text in picture.findall("{http://www.w3.org/2000/svg}text"))
            self.assertIn({"order": "shift 24", "transport": "pull", "comm-rows": "128"}[name], words)


class Theory(unittest.TestCase):
    CURVE = {"points": [[1000, 1e-5], [4000, 1e-5], [16000, 4e-5]]}

    def test_curves_are_read_in_logarithms(self):
        for size, us in ((1, 10), (2000, 10), (8000, 20), (16000, 40), (160000, 400)):
            self.assertAlmostEqual(theory.collective_us(self.CURVE, size), us, places=9)

    def test_a_perfect_overlap_has_a_head_or_a_tail(self):
        machine = {"compute": {"sms": {"value": 3}}, "collectives": {"reduce_scatter": self.CURVE, "all_reduce": self.CURVE}}
        # Eight tiles in three waves, the last of two; half of 64 x 32 bf16 on the wire, at best 400 bytes a us.
        bound = lambda gemm, kind: theory.perfect(gemm, (16, 16), machine, kind, 64, 32, 2)
        for gemm in (3.0, 60.0):
            found = bound(gemm, "reduce_scatter")
            self.assertAlmostEqual(found["head_us"], gemm / 3)
            self.assertAlmostEqual(found["tail_us"], 2048 * 2 / 8 / 400)
            self.assertAlmostEqual(found["collective_us"], 10)
            self.assertAlmostEqual(found["perfect_us"], 11 if gemm == 3 else 60 + 1.28)
        self.assertAlmostEqual(bound(3.0, "all_reduce")["collective_us"], theory.collective_us(self.CURVE, 4096))

    def test_nothing_committed_beats_a_perfect_overlap(self):
        rows = json.loads(theory.RESULT.read_text())["rows"]
        self.assertEqual([theory.key_of(r) for r in rows], list(theory.problems()))
        for r in rows:
            self.assertLessEqual(r["perfect_us"], min(r[f"{s}_us"] for s in ("sequential", "decomposed", "signaled")), r)
            self.assertGreaterEqual(r["perfect_us"], max(r["gemm_us"], r["collective_us"]), r)
            self.assertAlmostEqual(r["fraction"], r["perfect_us"] / r["signaled_us"], delta=2e-4)
            self.assertAlmostEqual(r["speedup"], r["sequential_us"] / r["signaled_us"], delta=2e-4)

    def test_a_check_finds_what_differs(self):
        rows = json.loads(theory.RESULT.read_text())["rows"]
        first, program = rows[0], os.environ["IMBREX_PROGRAM"]
        size = first["m"] * first["n"] * first["k"]
        self.assertLessEqual(size, theory.CHECKED)

        def faults(rows, largest=0):
            return list(theory.differences(program, rows, largest))

        self.assertEqual(faults(rows), [])
        self.assertEqual(len(faults(rows[1:])), 1)
        with unittest.mock.patch.object(theory, "problems", lambda: [theory.key_of(first)]):
            self.assertEqual(faults([first], size), [])
            for change in ({"signaled_us": first["signaled_us"] * 1.01}, {"groups": [1, *first["groups"]]}, {"fraction": 0.5}):
                self.assertEqual(len(faults([{**first, **change}], size)), 1, change)


class Peers(unittest.TestCase):
    def test_the_grid(self):
        grid = peers_torch.grid()
        self.assertIn(("gemm_all_reduce", 1, 8192, 28672), grid)
        self.assertIn(("gemm_reduce_scatter", 8192, 8192, 8192), grid)
        self.assertEqual(len(set(grid)), len(grid))
        self.assertFalse([p for p in grid if p[1] == 1 and p[0] != "gemm_all_reduce"])
        self.assertEqual(peers_torch.grid(["all_gather_gemm"], [64]),
                         [("all_gather_gemm", 64, n, k) for n, k in peers_torch.LAYERS["all_gather_gemm"]])

    def test_the_command_line(self):
        options = peers_torch.parse(["--out", "x.json", "--rows", "64", "--ops", "gemm_all_reduce"])
        self.assertEqual((options.rows, options.ops, options.turns), ([64], ["gemm_all_reduce"], 5))
        for wrong in (["--rows", "64"], ["--out", "x", "--turns", "0"], ["--out", "x", "--rows", "0"], ["--out", "x", "--ops", "gemm"]):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                peers_torch.parse(wrong)
            self.assertEqual(ended.exception.code, 2)

    def test_ranks_without_a_launcher_or_a_gpu_are_told_so(self):
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda: 1))
        for variables, says in (({}, "start this by torchrun"), ({"LOCAL_RANK": "1"}, "rank 1 needs a GPU of its own, and torch sees 1")):
            with unittest.mock.patch.dict(os.environ, variables), self.assertRaisesRegex(SystemExit, says):
                if not variables:
                    os.environ.pop("LOCAL_RANK", None)
                peers_torch.join(torch, None, 1)

    def test_turns_that_come_first_do_not_count(self):
        nothing = types.SimpleNamespace(barrier=lambda group: None, cuda=types.SimpleNamespace(synchronize=lambda: None))

        class Timer(peers_torch.Timer):
            def __init__(self, scale):
                self.torch = self.dist = self.meeting = nothing
                self.scale, self.order = scale, []

            def prepare(self, call):
                return None if call == "fails" else ("lead " + call, "replay " + call, 8, "graph")

            def time_of(self, replay, calls, lead):
                self.order.append(replay[len("replay "):])
                assert (lead, calls) == ("lead " + self.order[-1], 8)
                return self.scale * len(self.order)

        for scale, first in ((1, 1), (100, 3)):
            timer, turns = Timer(scale), []
            options = types.SimpleNamespace(turns=2, rounds=1)
            medians, how, measured = peers_torch.by_turns({"x": "a", "y": "b", "z": "fails"}, timer, options, lambda: turns.append(0) or len(turns))
            self.assertEqual("".join(timer.order), "abba" * ((first + 2) // 2) + "ab" * ((first + 2) % 2))
            self.assertEqual((len(turns), measured), (first + 2, [first + 1, first + 2]))
            self.assertEqual(how, {"x": "graph", "y": "graph"})
            self.assertEqual(medians["x"], scale * (2 * first + 2.5))  # of the last two turns

    def test_random_cells_keep_their_rules(self):
        seed = random.randrange(2**31)
        for ranks in (2, 4):
            cells = random_cells.draw(seed, 400, ranks)
            self.assertEqual(cells, random_cells.draw(seed, 400, ranks), seed)
            self.assertEqual({cell[0] for cell in cells}, set(peers_torch.OPERATORS), seed)
            self.assertEqual({cell[4] for cell in cells}, {False, True}, seed)
            for operator, m, n, k, _ in cells:
                self.assertTrue(16 <= m <= 16384 and 1024 <= min(n, k) <= max(n, k) <= 65536 and m % 8 == n % 8 == k % 8 == 0, (seed, m, n, k))
                # An exchange's product is not split.
                self.assertLessEqual(2 * m * n * k, 12e12 * (1 if operator == "gemm_all_to_all" else ranks), (seed, operator, m, n, k))
        self.assertGreater(sum(cell[1] > 2048 for cell in cells), 40, seed)

    def test_random_cells_are_summed_up(self):
        def row(operator, m, ours, best, again=None):
            times = {"Imbrex": ours, "product": 1.0, "cuBLAS+NCCL": best * 2, "fused": best}
            row = {"operator": operator, "m": m, "us": times, "gain": random_cells.gain(times), "ceiling_us": ours / 2, "right": ours != 7, "ran": "x"}
            return row if again is None else row | {"gain_again": again}

        told = random_cells.summary([row("gemm_all_reduce", 4096, 10, 20), row("gemm_all_reduce", 16, 10, 5, again=0.9), row("all_gather_gemm", 8, 7, 7)])
        self.assertEqual((told["cells"], told["geometric_mean"], told["least"], told["least_of_both"], told["of_ceiling"]), (3, 1.0, 0.5, 0.9, 0.5))
        self.assertEqual((told["gemm_all_reduce"], told["gemm_all_reduce above 2048 rows"], told["all_gather_gemm"]), (1.0, 2.0, 1.0))
        self.assertNotIn("all_gather_gemm above 2048 rows", told)
        self.assertEqual((told["wrong"], told["ran"]), (1, {"x": 3}))
        self.assertEqual(random_cells.percentile(range(100), 0.05), 5)

    def server(self, script):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "imbrex"
        path.write_text("#!/usr/bin/env python3\n" + script)
        path.chmod(0o755)
        imbrex = peers_torch.Imbrex(str(path), 4, 3)
        self.addCleanup(imbrex.process.wait)
        self.addCleanup(imbrex.selector.close)
        self.addCleanup(imbrex.process.stdout.close)
        return imbrex

    def test_imbrex_answers_line_by_line(self):
        imbrex = self.server("import os, sys, json\n"
                             "for line in sys.stdin:\n"
                             "  print(json.dumps({'line': line, 'rank': os.environ.get('RANK'), 'arguments': sys.argv[1:]}), flush=True)\n")
        for m in (64, 128):
            answer = imbrex.measure(("gemm_all_reduce", m, 8, 16))
            self.assertEqual(answer["line"], f"gemm_all_reduce {m} 8 16\n")
        self.assertEqual(answer["arguments"], ["bench", "--serve", "--ranks", "4", "--rounds", "3"])
        self.assertIsNone(answer["rank"])
        imbrex.close()

    def test_its_errors_and_its_end_are_said(self):
        imbrex = self.server("import sys\nsys.stdin.readline()\nprint('{\"error\": \"M = 3\"}', flush=True)\nsys.stdin.readline()\nsys.exit(3)\n")
        with self.assertRaisesRegex(RuntimeError, "M = 3"):
            imbrex.measure(("all_gather_gemm", 3, 8, 16))
        with self.assertRaisesRegex(RuntimeError, "ended with 3"):
            imbrex.measure(("all_gather_gemm", 4, 8, 16))
        imbrex.process.stdin.close()


if __name__ == "__main__":
    unittest.main()
