#!/usr/bin/env python3
"""The all-reduces' scripts of bench/: sizes, merged results, tables and plots, on results made up here."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import all_reduce_tables  # noqa: E402
import peers_all_reduce  # noqa: E402

BENCH = {
    "machine": "4 NVIDIA H200", "date": "2026-01-01", "versions": {"nccl": "2.28.3"}, "ranks": 4, "type": "bf16", "rounds": 5,
    "rows": [
        {"bytes": 1024, "microseconds": {"auto": 4.0, "one_shot": 4.0, "nccl": 12.0}},
        {"bytes": 1 << 26, "microseconds": {"auto": 280.0, "int8": 150.0, "int8 ring": 250.0, "int4": 100.0, "nccl": 300.0},
         "errors": {"int8": {"conversions": 2, "largest_error": 0.01, "bound": 0.02, "sqnr_db": 41.04},
                    "int8 ring": {"conversions": 4, "largest_error": 0.015, "bound": 0.03, "sqnr_db": 40.0},
                    "int4": {"conversions": 2, "largest_error": 0.2, "bound": 0.3, "sqnr_db": 17.0}}}],
    "ctas": [{"bytes": 1 << 20, "microseconds": {"exact": {"132": 12.0, "8": 30.0}}},
             {"bytes": 1 << 26, "microseconds": {"exact": {"8": 900.0, "132": 280.0}, "int8": {"132": 150.0, "8": 1500.0}}}],
}
PEERS = {"machine": "4 NVIDIA H200", "date": "2026-01-01", "versions": {"torch": "2.11"},
         "rows": [{"bytes": 1024, "microseconds": {"auto": 4.0, "nccl": 12.0}, "torch": {"nccl": 11.0, "one_shot": 6.0, "two_shot": 9.0}, "torch_by": {}},
                  {"bytes": 1 << 26, "microseconds": {"auto": 270.0, "nccl": 297.0}, "torch": {"nccl": 310.0, "two_shot": 340.0}, "torch_by": {}}]}
ON_TWO = {**BENCH, "machine": "2 NVIDIA H200", "ranks": 2}
DOCUMENT = "".join(f"# {name}\n<!-- made by bench/all_reduce_tables.py {name} -->\nold\n<!-- end -->\n" for name in ("machine", "exact", "quantized", "ring", "ctas", "machine 2xh200", "exact 2xh200", "quantized 2xh200"))


class Tables(unittest.TestCase):
    def test_without_torch_nccl_is_beside(self):
        table = all_reduce_tables.exact_table(BENCH)
        self.assertIn("| 1 KiB | 4.00 | 12.00 | 3.00 |", table)
        self.assertNotIn("torch", "".join(table))
        self.assertEqual(table[-1], "| geometric mean |  |  | 1.79 |")

    def test_torch_has_columns_and_the_better_nccl_counts(self):
        table = all_reduce_tables.exact_table(all_reduce_tables.joined(BENCH, PEERS))
        self.assertIn("| 1 KiB | 4.00 | 11.00 | 6.00 (one_shot) | 2.75 | 1.50 |", table)
        self.assertIn("| 64 MiB | 270.00 | 297.00 | 340.00 (two_shot) | 1.10 | 1.10 |", table)
        self.assertEqual(table[-1], "| geometric mean |  |  |  | 1.74 | 1.28 |")

    def test_codecs_have_ratios(self):
        table = all_reduce_tables.quantized_table(BENCH)
        self.assertEqual(table[0], "| bytes | NCCL us | exact us | `int8` us | `int4` us |")
        self.assertEqual(table[2:], ["| 64 MiB | 300.0 | 280.0 (1.07) | 150.0 (2.00) | 100.0 (3.00) |"])

    def test_rings_are_beside_two_shots(self):
        self.assertEqual(all_reduce_tables.ring_table(BENCH)[2:],
                         ["| 64 MiB | `int8` | two-shot | 2 times | 0.010 | 0.020 | 41.0 | 150.0 |",
                          "| 64 MiB | `int8` | ring | 4 times | 0.015 | 0.030 | 40.0 | 250.0 |"])

    def test_ctas_have_a_table_a_size(self):
        table = all_reduce_tables.ctas_table(BENCH)
        self.assertIn("| exact | 30.0 | 12.0 |", table)
        self.assertIn("| `int8` | 1500.0 | 150.0 |", table)
        self.assertEqual(table.count("| CTAs | 8 | 132 |"), 2)

    def test_the_document_is_filled_and_plots_are_pictures(self):
        files = all_reduce_tables.wanted(all_reduce_tables.joined(BENCH, PEERS), ON_TWO, DOCUMENT)
        document = files.pop(all_reduce_tables.DOCUMENT)
        self.assertNotIn("old", document)
        self.assertIn("4 NVIDIA H200, 2026-01-01; nccl 2.28.3, torch 2.11; bf16;", document)
        self.assertIn("2 NVIDIA H200, 2026-01-01; nccl 2.28.3; bf16;", document)
        self.assertEqual({path.name: len(xml.fromstring(text).findall("{http://www.w3.org/2000/svg}polyline")) for path, text in files.items()},
                         {"all-reduce-exact-4xh200.svg": 2, "all-reduce-quantized-4xh200.svg": 3, "all-reduce-ctas-4xh200.svg": 2})
        for path in files:
            self.assertIn(f"({path.name})", document)
        for text in files.values():
            for curve in xml.fromstring(text).findall("{http://www.w3.org/2000/svg}polyline"):
                across = [float(point.split(",")[0]) for point in curve.get("points").split()]
                self.assertEqual(across, sorted(across))

    def test_only_what_was_measured_is_shown(self):
        plain = {**BENCH, "rows": BENCH["rows"][:1], "ctas": []}
        document = all_reduce_tables.wanted(plain, ON_TWO, DOCUMENT)[all_reduce_tables.DOCUMENT]
        self.assertEqual(document.count("old"), 3)

    def test_the_real_document_has_the_places(self):
        result = all_reduce_tables.joined(BENCH, PEERS)
        all_reduce_tables.wanted(result, ON_TWO, all_reduce_tables.DOCUMENT.read_text())

    def test_results_merge_a_row_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            bench, peers, out = (Path(folder) / name for name in ("bench", "peers", "out"))
            bench.write_text(json.dumps(BENCH))
            peers_all_reduce.write(peers, "4 NVIDIA H200", "2.11", 3, 3, PEERS["rows"])
            all_reduce_tables.write_rows(out, all_reduce_tables.joined(json.loads(bench.read_text()), json.loads(peers.read_text())))
            result = json.loads(out.read_text())
            self.assertLess(len(out.read_text().splitlines()), 30)
        self.assertEqual(result, {**BENCH, "peers": PEERS["rows"], "versions": {"nccl": "2.28.3", "torch": "2.11"}})


class Peers(unittest.TestCase):
    def test_sizes_double(self):
        self.assertEqual(peers_all_reduce.sizes(1024, 5000), [1024, 2048, 4096])
        self.assertEqual(peers_all_reduce.sizes(1 << 10, 1 << 30)[-1], 1 << 30)

    def test_the_command_line(self):
        options = peers_all_reduce.parse(["--out", "x.json", "--most", "2048"])
        self.assertEqual((options.least, options.most, options.turns), (1024, 2048, 3))
        for wrong in ([], ["--out", "x", "--turns", "0"], ["--out", "x", "--least", "100"], ["--out", "x", "--most", "512"]):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                peers_all_reduce.parse(wrong)
            self.assertEqual(ended.exception.code, 2)

    def test_turns_give_medians(self):
        turns = [{"bytes": 8, "microseconds": {"auto": us, "nccl": 9}} for us in (5, 1, 2)]
        turns[0]["microseconds"]["one_shot"] = 3  # failed in the others
        self.assertEqual(peers_all_reduce.median_row(turns), {"bytes": 8, "microseconds": {"auto": 2, "nccl": 9}})

    def test_small_calls_are_led_in_by_many(self):
        timer = object.__new__(peers_all_reduce.AllReduceTimer)
        timer.num_bytes = 1024
        self.assertEqual(timer.counts(10), (30, 20))
        timer.num_bytes = 1 << 30
        self.assertEqual(timer.counts(5000), (1, 2))

    def test_the_bench_is_asked_for_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "all_reduce_bench"
            path.write_text("#!/usr/bin/env python3\nimport json, sys\n"
                            "for line in sys.stdin:\n  print(json.dumps({'line': line, 'arguments': sys.argv[1:]}), flush=True)\n")
            path.chmod(0o755)
            bench = peers_all_reduce.Bench(str(path), 4, 3, 2048)
            self.addCleanup(bench.selector.close)
            self.addCleanup(bench.process.stdout.close)
            answer = bench.measure((2048,))
            bench.close()
        self.assertEqual(answer["line"], "2048\n")
        self.assertEqual(answer["arguments"][:3], ["--serve", "--ranks", "4"])


if __name__ == "__main__":
    unittest.main()
