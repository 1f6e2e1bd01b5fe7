#!/usr/bin/env python3
"""bench/all/runs.py: what a set is there for runs first, and what had no time is named."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/all"))
import rows  # noqa: E402
import runs  # noqa: E402


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_subjects_of_runs_come_first(self):
        for name in ("verify", "operators", "layouts", "codecs", "signaled", "all_reduce", "jacobi"):
            wanted = runs.cases(name, True)
            turns = runs.in_turns(wanted)
            self.assertEqual(sorted(turns), sorted((i, way) for i, case in enumerate(wanted) for way in case.ways))
            needed = {(i, way) for i, case in enumerate(wanted) for way in case.needed()}
            self.assertEqual(set(turns[: len(needed)]), needed, name)
            # What is compared runs one after the other, and a case is whole before the next begins.
            if wanted[0].subject:
                self.assertEqual(turns[:2], [(0, way) for way in wanted[0].needed()], name)

    def test_runs_that_are_cut_off_name_what_is_missing(self):
        program = self.folder / "imbrex"
        program.write_text("#!/bin/sh\nsleep 0.4\necho '{\"seconds\": [1, 2e-6]}'\n")
        program.chmod(0o755)
        out = self.folder / "runs.json"
        words = ["--program", str(program), "--set", "signaled", "--out", str(out), "--device", "cpu", "--seconds"]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(runs.main([*words, "1.1"]), 0)
        told = json.loads(out.read_text())
        done = [(row["what"], way) for row in told["rows"] for way in row["ways"]]
        self.assertIn(done[0], [(told["rows"][0]["what"], "sequential")])
        self.assertIn((told["rows"][0]["what"], "signaled, 2 groups"), done)
        left = told["left_out"]
        self.assertEqual(len(done) + len(left), sum(len(case.ways) for case in runs.cases("signaled", True)))
        self.assertEqual(told["subject_left_out"], [one for one in left if "sequential" in one or "2 groups" in one])
        self.assertEqual(rows.subject_left_out(told), told["subject_left_out"])


if __name__ == "__main__":
    unittest.main()
