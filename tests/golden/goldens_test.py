#!/usr/bin/env python3
"""The goldens' program names each line that differs, and in what.

usage: goldens_test.py PROGRAM ROOT
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, ROOT = sys.argv[1], Path(sys.argv[2])
RECORDS = (ROOT / "tests/golden/records.txt").read_text()
NAME = "4xh200 gemm_all_reduce bf16 64x8192x28672"


class Goldens(unittest.TestCase):
    def run_with(self, records, *options):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(records)
            file.flush()
            done = subprocess.run([PROGRAM, ROOT, "--records", file.name, *options], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def changed(self, change, *options):
        """With the line of NAME, its fields changed."""
        lines = RECORDS.splitlines()
        [at] = [i for i, line in enumerate(lines) if line.startswith(NAME + " |")]
        lines[at] = " | ".join(change(lines[at].split(" | ")))
        return self.run_with("\n".join(lines) + "\n", "--only", NAME, *options)

    def test_same(self):
        code, text = self.run_with(RECORDS, "--only", NAME)
        self.assertEqual((code, text), (0, "goldens: 1 plans made, 0 lines differ\n"))

    def test_each_field(self):
        for at, field in enumerate(("tasks", "digest", "seconds", "kernel"), 1):
            def change(fields):
                other = repr(float(fields[at]) * (1 + 1e-8)) if field == "seconds" else "1" + fields[at]
                return [*fields[:at], other, *fields[at + 1:]]
            code, text = self.changed(change)
            self.assertEqual(code, 1, field)
            self.assertRegex(text, f"^{NAME}: {field} [^,]*( ?[^,]*) -> [^,]*\n", field)
            self.assertIn("1 lines differ", text)
            self.assertIn("write_goldens", text)

    def test_rounding(self):
        code, text = self.changed(lambda f: [*f[:3], repr(float(f[3]) * (1 + 1e-12)), f[4]])
        self.assertEqual(code, 0, text)

    def test_lines(self):
        code, text = self.run_with(RECORDS.replace(NAME + " |", "no such plan |"))
        self.assertEqual(code, 1)
        self.assertIn(f"{NAME}: has no line\n", text)
        self.assertIn("no such plan: is no plan any more\n", text)
        self.assertIn("2 lines differ", text)

    def test_refused(self):
        self.assertEqual(self.run_with("words\n")[0], 2)
        self.assertEqual(self.run_with(RECORDS + RECORDS)[0], 2)
        self.assertEqual(self.run_with(RECORDS, "--only", "no such plan")[0], 2)
        self.assertEqual(self.run_with(RECORDS, "--only", NAME, "--write")[0], 2)
        self.assertEqual(self.run_with(RECORDS, "--writ")[0], 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
