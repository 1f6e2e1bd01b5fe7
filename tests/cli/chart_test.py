#!/usr/bin/env python3
"""Plots and tables that the program writes: no text on another, axes that say what they are, a line at 1, numbers as they are."""

import csv
import io
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from program import Case

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from svg_text import boxes, overlaps  # noqa: E402

CHARTS = os.environ["IMBREX_CHARTS"]
SWEEP = ["simulate", "gemm_reduce_scatter", "--n", 1024, "--k", 2048, "--machine", "4xh200"]


class Boxes(unittest.TestCase):
    def test_texts_that_lie_on_another_are_found(self):
        svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100" font-size="12">{}</svg>'
        text = '<text x="{}" y="{}"{}>words</text>'
        apart = svg.format(text.format(10, 20, "") + text.format(10, 40, "") + text.format(60, 20, ""))
        self.assertEqual(overlaps(apart), [])
        for other in (text.format(30, 22, ""), text.format(45, 20, ' text-anchor="middle"'), text.format(25, 48, ' transform="rotate(-90 25 48)"')):
            self.assertEqual(len(overlaps(svg.format(text.format(10, 20, "") + other))), 1, other)
        for x, y in ((180, 20), (10, 5), (10, 99)):
            self.assertEqual(overlaps(svg.format(text.format(x, y, ""))), ["'words' leaves the picture"])


class Pictures(unittest.TestCase):
    def test_those_of_the_documents(self):
        listed = [path for folder in ("docs", "bench/results") for path in sorted((ROOT / folder).rglob("*.svg"))]
        self.assertGreater(len(listed), 10)
        for path in listed:
            with self.subTest(path=path.name):
                self.assertEqual(overlaps(path.read_text()), [])

    def test_plots_of_results_say_what_their_axes_are(self):
        for path in sorted((ROOT / "bench/results").glob("*.svg")):
            if "timeline" in path.name:
                continue
            with self.subTest(path=path.name):
                svg = path.read_text()
                self.assertIn("rotate(-90", svg)
                self.assertRegex(svg, r'y="404" text-anchor="middle">[^<]{4,}<')


class Charts(Case):
    def setUp(self):
        super().setUp()
        subprocess.run([CHARTS, self.folder], check=True, timeout=60)

    def test_no_text_lies_on_another(self):
        listed = sorted(Path(self.folder).glob("*.svg"))
        self.assertEqual(len(listed), 63)
        for path in listed:
            with self.subTest(path=path.name):
                self.assertEqual(overlaps(path.read_text()), [])

    def test_bench_shows_what_was_chosen_and_tune_the_fastest(self):
        for name, gains in (("bench", ["1.5", "0.5", "1"]), ("tune", ["2", "1", "1"])):
            rows = list(csv.DictReader(io.StringIO(self.read(f"{name}.csv"))))
            self.assertEqual([row["speed_up_over_sequential"] for row in rows], gains)
            self.assertEqual([row["m"] for row in rows], ["512", "64", "64"])
            self.assertEqual({row["gpu"] for row in rows}, {'A GPU, "quoted"'})
            self.assertEqual(rows[0]["roofline_us"], "10.00")
            svg = self.read(f"{name}.svg")
            words = [box[0] for box in boxes(svg)]
            for wanted in ("cuBLAS, then NCCL: 1", "M, rows of A", "speed-up over cuBLAS, then NCCL", "gemm_reduce_scatter 8192x4096",
                           "all_gather_gemm 4096x4096", 'GEMMs with collectives, 4 x A GPU, "quoted"'):
                self.assertIn(wanted, words)
            self.assertEqual(len(re.findall("<polyline", svg)), 2)


class Refused(Case):
    """Before a GPU is looked for."""

    def test_files_that_cannot_be_written(self):
        for command in ("bench", "tune"):
            self.refuse(command, "--csv", "x.txt", says="--csv 'x.txt': the name must end in .csv")
            self.refuse(command, "--plot", "x.png", says="--plot 'x.png': the name must end in .svg")
            self.refuse(command, "--plot", "absent/x.svg", says="absent")

    def test_what_has_no_such_table(self):
        about = "is about operators with a GEMM"
        self.refuse("tune", "--ops", "all_reduce", "--csv", "x.csv", says=f"--csv {about}")
        self.refuse("tune", "--products", "--plot", "x.svg", says=f"--plot {about}")
        self.refuse("tune", "--card", "--csv", "x.csv", says="--csv: --card measures")
        self.refuse("bench", "--serve", "--csv", "x.csv", says="--csv: --serve answers on standard output only")
        self.refuse("bench", "embedding_all_to_all", "--plot", "x.svg", says=f"--plot {about}")


class Sweep(Case):
    def test_a_table_with_a_plot_and_csv(self):
        output, _ = self.run_program(*SWEEP, "--sweep", "m=512:4096:x2", "--csv", "s.csv", "--plot", "s.svg")
        rows = [line.split() for line in output.splitlines() if re.match(r" +\d+ ", line)]
        self.assertEqual([row[0] for row in rows], ["512", "1024", "2048", "4096"])
        # The numbers are those of single predictions.
        for row in rows:
            for strategy, text in zip(("sequential", "decomposed", "signaled", "fused"), row[1:5], strict=True):
                alone = self.json_of(*SWEEP, "--m", row[0], "--strategy", strategy)["seconds"]
                self.assertEqual(text, f"{alone * 1e6:.1f}")
            auto = self.json_of(*SWEEP, "--m", row[0])
            self.assertEqual((row[5], row[7]), (f"{auto['seconds'] * 1e6:.1f}", auto["strategy"]))
            self.assertAlmostEqual(float(row[6].rstrip("x")), float(row[1]) / float(row[5]), delta=0.01)
        table = list(csv.DictReader(io.StringIO(self.read("s.csv"))))
        self.assertEqual(len(table), 4 * 5)
        self.assertEqual({row["strategy"] for row in table}, {"sequential", "decomposed", "signaled", "fused", "auto"})
        self.assertEqual({row["speed_up_over_sequential"] for row in table if row["strategy"] == "sequential"}, {"1.0000"})
        svg = self.read("s.svg")
        self.assertEqual(overlaps(svg), [])
        words = [box[0] for box in boxes(svg)]
        for wanted in ("M, rows of A", "speed-up over cuBLAS, then NCCL", "cuBLAS, then NCCL: 1", "fused", "what auto takes", "512", "4096"):
            self.assertIn(wanted, words)

    def test_other_sizes_and_lists(self):
        result = self.json_of("simulate", "gemm_all_reduce", "--m", 512, "--n", 1024, "--k", 2048, "--machine", "a100-nvlink-8",
                              "--sweep", "ranks=2,4,8", "--strategy", "fused")
        self.assertEqual([row["problem"]["ranks"] for row in result["rows"]], [2, 4, 8])
        self.assertEqual({tuple(row["seconds"]) for row in result["rows"]}, {("sequential", "fused", "auto")})
        result = self.json_of("simulate", "gemm_all_reduce", "--m", 512, "--n", 1024, "--machine", "4xh200", "--sweep", "k=1024:3072:+1024")
        self.assertEqual([row["problem"]["k"] for row in result["rows"]], [1024, 2048, 3072])

    def test_what_a_machine_refuses_is_left_out_and_said(self):
        output, _ = self.run_program("simulate", "gemm_all_reduce", "--n", 1024, "--k", 2048, "--machine", "a100-pcie-8", "--sweep", "m=512,1024")
        self.assertIn("fused is left out where m = 512: ", output)
        self.assertRegex(output, r"\n +512 .* - ")

    def test_what_is_no_sweep(self):
        for text, says in (("q=1:2:x2", "'q' is no size; it must be one of m, n, k, ranks"), ("rank=2,4", "did you mean ranks?"), ("m", "values are missing"),
                           ("m=1:2", "a range is FIRST:LAST"), ("m=8:4:x2", "4 is below 8"), ("m=1:8:x1", "a factor of 1"),
                           ("m=0:8:x2", "'0' is not an integer"), ("m=1:9:*2", "a range is"), ("m=4,2", "above the one before"),
                           ("m=1:100000:+1", "more than 200 values"), ("m=a", "'a' is not an integer")):
            self.refuse(*SWEEP, "--sweep", text, says=says)
        self.refuse(*SWEEP, "--m", 512, "--sweep", "m=1,2", says="--m does not go with --sweep")
        self.refuse(*SWEEP, "--m", 512, "--csv", "x.csv", says="--csv is about --sweep")
        self.refuse(*SWEEP, "--sweep", "m=512", "--plot", "x.png", says="the name must end in .svg")
        self.refuse("simulate", "embedding_all_to_all", "--machine", "4xh200", "--sweep", "m=512", says="not embedding_all_to_all")
        self.refuse("simulate", "--machine", "4xh200", "--sweep", "m=512", says="--sweep needs an operator")


if __name__ == "__main__":
    unittest.main()
