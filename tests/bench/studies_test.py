#!/usr/bin/env python3
"""The studies' arithmetic, on numbers made up here, and what the committed results must not say."""

import json
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/studies")]
import claims  # noqa: E402
import common  # noqa: E402
import flash_communication  # noqa: E402
import flashoverlap  # noqa: E402
import flux  # noqa: E402

PROGRAM = os.environ["IMBREX_PROGRAM"]


class Common(unittest.TestCase):
    def test_efficiency_is_none_in_turn_and_all_at_the_gemm(self):
        self.assertEqual(common.efficiency(5.0, 2.0, 5.0), 0)
        self.assertEqual(common.efficiency(2.0, 2.0, 5.0), 1)
        self.assertEqual(common.efficiency(8.0, 2.0, 5.0), -1)

    def test_median_is_of_sizes(self):
        self.assertEqual(common.median_error([-0.3, 0.1, 0.2]), 0.2)
        self.assertNotEqual(common.median_error([]), common.median_error([]))

    def test_a_plan_that_is_refused_has_no_time(self):
        program = common.Program(PROGRAM)
        self.addCleanup(program.folder.cleanup)
        problem = {"operator": "gemm_reduce_scatter", "m": 512, "n": 1024, "k": 1024, "ranks": 4}
        machine = program.machine("a100-pcie-8")
        self.assertIsNone(program.seconds(machine, **problem, strategy="fused"))
        turns = [{"strategy": "fused"}, {"strategy": "sequential"}]
        self.assertEqual(program.least(machine, problem, turns), program.seconds(machine, **problem, strategy="sequential"))
        self.assertIsNone(program.least(machine, problem, turns[:1]))

    def test_a_machine_is_changed(self):
        program = common.Program(PROGRAM)
        self.addCleanup(program.folder.cleanup)
        file = program.machine("h800-8", 16, hosts__devices=8, hosts__bandwidth=1e9, hosts__latency=1e-6, hosts__message=0)
        changed = json.loads(Path(file).read_text())
        self.assertEqual((changed["devices"], changed["hosts"]["bandwidth"]["value"]), (16, 1e9))
        self.assertEqual(program.machine("h800-8", 16, hosts__devices=8, hosts__bandwidth=1e9, hosts__latency=1e-6, hosts__message=0), file)


class Flux(unittest.TestCase):
    POINT = {"machine": "h800-8", "operator": "all_gather_gemm", "m": 1, "gemm_ms": 2.0, "baseline_ms": 5.0, "fused_ms": 2.5}

    def row(self, gemm, sequential, fused):
        return {**self.POINT, "gemm": gemm / 1e3, "sequential": sequential / 1e3, "fused": fused / 1e3}

    def test_errors_of_parts_do_not_cancel(self):
        errors = flux.point_errors([self.row(3.0, 5.0, 2.5)])
        self.assertAlmostEqual(errors["GEMM"][0], 0.5)
        self.assertAlmostEqual(errors["collective"][0], -1 / 3)
        self.assertAlmostEqual(errors["GEMM and collective"][0], 0)

    def test_differences_are_named(self):
        self.assertEqual(flux.why(self.row(2.0, 5.0, 2.5)), "they agree")
        self.assertIn("rate is below", flux.why(self.row(2.4, 5.4, 2.9)))
        self.assertIn("NCCL is faster", flux.why(self.row(2.0, 4.0, 2.5)))
        self.assertIn("hides more", flux.why(self.row(2.0, 5.0, 2.0)))
        self.assertIn("hides less", flux.why(self.row(2.0, 5.0, 4.0)))

    def test_committed_times_hold_together(self):
        data = json.loads((common.RESULTS / "flux.json").read_text())
        self.assertEqual(len(data["points"]), len(common.published("flux")["points"]))
        self.assertEqual(len(data["grid"]), len(flux.MACHINES) * len(flux.SHAPES) * len(flux.ROWS))
        for row in data["points"] + data["grid"] + data["sixteen"]:
            # No plan takes less than its products; times are rounded.
            self.assertGreaterEqual(min(row["sequential"], row["fused"], row["decomposed"]), 0.999 * row["gemm"], row)

    def test_a_trend_can_fail(self):
        data = json.loads((common.RESULTS / "flux.json").read_text())
        for row in data["grid"]:
            row["over_decomposed"] = 0.5
        self.assertFalse(flux.holds(data)[0]["holds"])


class FlashCommunication(unittest.TestCase):
    MACHINE = {"compute": {"memory_bandwidth": {"value": 1e9}}, "collectives": {"all_reduce": {"points": [[1, 1e-9], [1e12, 1e3]]}}}

    def test_codes_take_their_bytes_time_and_passes_over_memory(self):
        exact = flash_communication.all_reduce_seconds(self.MACHINE, 8e6, 4)
        self.assertAlmostEqual(exact, 12e6 / 1e9)
        # The input and its codes, codes and a quarter of them, codes and the result.
        self.assertAlmostEqual(flash_communication.coding_seconds(self.MACHINE, 8e6, 4, 4), (10e6 + 2.5e6 + 10e6) / 1e9)
        self.assertAlmostEqual(flash_communication.all_reduce_seconds(self.MACHINE, 8e6, 4, 4), 3e6 / 1e9 + 22.5e6 / 1e9)

    def test_committed_speed_ups_stay_below_the_bits(self):
        data, bits = json.loads((common.RESULTS / "flash-communication.json").read_text()), flash_communication.wire_bits()
        for row in data["kernels"]:
            for codec in flash_communication.CODECS:
                self.assertLess(row["exact"] / row[codec], 16 / bits[codec])
        for row in data["first_token"] + data["shares"]:
            for codec in flash_communication.CODECS:
                self.assertLess(row[codec], 1 / (1 - row["share"]))


class FlashOverlap(unittest.TestCase):
    def test_one_wave_is_best_where_it_is_as_fast(self):
        rows = [{"one_wave": 1.0, "searched": 1.0}, {"one_wave": 1.5, "searched": 1.0}, {"one_wave": None, "searched": 1.0}]
        best, slower, count = flashoverlap.one_wave(rows)
        self.assertEqual((best, slower, count), (0.5, 0.25, 2))

    def test_nothing_searched_is_slower_than_one_wave(self):
        for row in json.loads((common.RESULTS / "flashoverlap.json").read_text())["shapes"]:
            self.assertLessEqual(row["searched"], 1.001 * row["one_wave"], row)


class Claims(unittest.TestCase):
    def test_rows_are_those_of_the_other_studies(self):
        self.assertEqual(claims.rows(), json.loads((common.RESULTS / "claims.json").read_text())["rows"])

    def test_kinds_stay_apart(self):
        for row in claims.rows():
            # What did not run has no measured figure, and what is not modelled no predicted one.
            self.assertEqual(row["where"].startswith("not run"), row["measured"] == "-", row)
            self.assertFalse(row["predicted"] != "-" and row["machine"] == "-", row)
            self.assertEqual(row["claimed"] == "-", row["whose"] == "-", row)


class Changes(unittest.TestCase):
    def test_every_change_has_a_reason_and_all_figures(self):
        changes = json.loads((common.RESULTS / "changes.json").read_text())["changes"]
        self.assertTrue(changes)
        for change in changes:
            self.assertTrue(change["why"])
            self.assertEqual(change["before"].keys(), change["after"].keys())


if __name__ == "__main__":
    unittest.main()
