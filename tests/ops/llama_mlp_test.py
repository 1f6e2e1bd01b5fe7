#!/usr/bin/env python3
"""The demo: right on whatever it ran on, and what it says and draws of overlapping is what was simulated."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ["LLAMA_MLP"]
LINE = re.compile(r"^  (.+?) +([\d.]+) us in sequence, +([\d.]+) us as chosen \(([\d.]+)x\); communication takes ([\d.]+) us, (none|[\d.]+ us) of it hidden$", re.M)


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.result = subprocess.run([PROGRAM, "--out", folder.name], capture_output=True, text=True, timeout=280)
        cls.text = cls.result.stdout

    def test_it_is_right(self):
        self.assertEqual((self.result.returncode, self.result.stderr), (0, ""), self.text)
        self.assertRegex(self.text, r"ran on .+ in [\d.]+ ms, .*: right\n")

    def test_only_what_is_hidden_is_called_so(self):
        layers = LINE.findall(self.text)
        self.assertEqual(len(layers), 3, self.text)
        for name, sequence, chosen, ratio, sent, hidden in layers:
            with self.subTest(layer=name):
                sequence, chosen, sent = float(sequence), float(chosen), float(sent)
                hidden = 0 if hidden == "none" else float(hidden.split()[0])
                self.assertLessEqual(hidden, sent)
                self.assertLessEqual(chosen, sequence * 1.001)
                self.assertAlmostEqual(float(ratio), sequence / chosen, delta=0.01)
        # At the last one overlapping pays: most of the communication is hidden, and the layer is faster for it.
        name, sequence, chosen, _, sent, hidden = layers[-1]
        self.assertIn("70B", name)
        self.assertGreater(float(hidden.split()[0]), 0.5 * float(sent))
        self.assertGreater(float(sequence), 1.05 * float(chosen))

    def test_the_picture_in_readme_is_this_one(self):
        there = Path(__file__).resolve().parents[2] / "docs/pictures/overlap.svg"
        drawn = (self.folder / "predicted.svg").read_text(encoding="utf-8")
        self.assertEqual(there.read_text(encoding="utf-8"), drawn, f"copy the demo's predicted.svg to {there}")

    def test_the_picture_shows_one_above_the_other(self):
        svg = (self.folder / "predicted.svg").read_text(encoding="utf-8")
        runs = re.findall(r'y="([\d.]+)" class="run">(in sequence|overlapped)[^<]*: ([\d.]+) (µs|ms)<', svg)
        self.assertEqual([run[1] for run in runs], ["in sequence", "overlapped"], svg[:2000])
        self.assertLess(float(runs[0][0]), float(runs[1][0]))
        self.assertEqual(runs[0][3], runs[1][3])
        self.assertGreater(float(runs[0][2]), 1.05 * float(runs[1][2]))
        self.assertLess(svg.count("\n"), 20000, "too much for one glance")
        self.assertIn("<svg", (self.folder / "measured.svg").read_text(encoding="utf-8"))

    def test_what_it_does_not_take(self):
        for arguments, says in ((["--nonsense"], "--nonsense is not an option"), (["--ranks"], "--ranks needs a value"),
                                (["--ranks", "5"], "--ranks 5: it must be from 1 to 4"), (["--device", "tpu"], "--device 'tpu'")):
            result = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, cwd=self.folder)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(says, result.stderr)


if __name__ == "__main__":
    unittest.main()
