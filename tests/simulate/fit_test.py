#!/usr/bin/env python3
"""bench/simulator/fit.py: constants are found again, within their bounds; the machine's file keeps its layout."""

import json
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/simulator"))
import fit  # noqa: E402
import variants  # noqa: E402


class FitTest(unittest.TestCase):
    def setUp(self):
        self.machine = fit.Machine(fit.MACHINE)

    def test_layout(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "machine.json"
            self.machine.write_laid_out(os.environ["IMBREX_PROGRAM"], path)
            self.assertEqual(path.read_text(), fit.MACHINE.read_text())

    def fitted(self, bounds):
        """By times that two constants make: a gap of 2 us, and bytes at 4 TB/s."""

        def errors(program, machine, rows):
            time = [machine.value("compute.launch_gap") + row / machine.value("compute.memory_bandwidth") for row in rows]
            return [math.log(t / (2e-6 + row / 4e12)) for t, row in zip(time, rows)]

        real, fit.errors = fit.errors, errors
        try:
            fit.fit("", self.machine, [1e5, 1e6, 1e7, 1e8, 1e9], bounds, "test")
        finally:
            fit.errors = real
        return [self.machine.value(place) for place in bounds]

    def test_constants_are_found(self):
        gap, bandwidth = self.fitted({"compute.launch_gap": (1e-7, 1e-5), "compute.memory_bandwidth": (1e12, 9e12)})
        self.assertAlmostEqual(gap * 1e6, 2, 1)
        self.assertAlmostEqual(bandwidth / 1e12, 4, 1)
        self.assertEqual(self.machine.node("compute.launch_gap")["source"], "fitted")

    def test_bounds_are_kept(self):
        gap, bandwidth = self.fitted({"compute.launch_gap": (1e-7, 1e-6), "compute.memory_bandwidth": (1e12, 3e12)})
        self.assertEqual(gap, 1e-6)
        self.assertEqual(bandwidth, 3e12)

    def test_curves_do_not_decrease(self):
        self.machine.set_curve("all_gather", [(30, 1e-6), (10, 3e-6), (10, 1e-6), (20, 1.5e-6)], "test")
        self.assertEqual(self.machine.json["collectives"]["all_gather"]["points"], [[10, 2e-6], [20, 2e-6], [30, 2e-6]])


class VariantsTest(unittest.TestCase):
    """What names kernels' tiles names those of the list."""

    def test_machine_file(self):
        tiles = fit.Machine(fit.MACHINE).json["compute"]["tiles"]
        self.assertEqual(sorted((t["tile_m"], t["tile_n"]) for t in tiles), variants.shapes())

    def test_tuned_records(self):
        listed = {(v.type, v.rows, v.columns) for v in variants.variants() if v.hopper}
        count = 0
        for path in sorted((ROOT / "machines/tuned").glob("*.json")):
            for r in json.loads(path.read_text())["records"]:
                if r["strategy"] == "fused":
                    count += 1
                    self.assertIn((r["type"], r["knobs"]["tile_m"], r["knobs"]["tile_n"]), listed, path.name)
        self.assertGreater(count, 100)

    def test_fits(self):
        self.assertEqual(fit.LARGE, [(128, 128), (128, 224), (128, 256)])
        self.assertEqual(fit.PIECES, [(64, 64), (64, 128), (128, 64)])
        with self.assertRaisesRegex(ValueError, "no fitted tile of 64 x 192"):
            variants.shape(64, 192)

    def test_lines(self):
        text = "// IMBREX_SM90(pingpong, 1, 2, x1, bf16)\nIMBREX_SM90(pingpong, 128, 64, k2, e4m3)\nIMBREX_SM80(128, 32, x1, fp16)\n"
        self.assertEqual(variants.variants(text), [(True, 128, 64, "e4m3"), (False, 128, 32, "fp16")])
        lines = [line for line in variants.LIST.read_text().splitlines() if line.startswith("IMBREX_SM")]
        self.assertEqual(len(variants.variants()), len(lines))


if __name__ == "__main__":
    unittest.main()
