#!/usr/bin/env python3
"""bench/simulator/fit.py: constants are found again, within their bounds; the machine's file keeps its layout."""

import math
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/simulator"))
import fit  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
