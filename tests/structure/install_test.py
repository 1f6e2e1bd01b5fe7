#!/usr/bin/env python3
"""What scripts/install-dependencies would install, and which options scripts/build refuses. Programs that stand in say what
they are given. usage: install_test.py ROOT
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
STAND_INS = {
    "dpkg-query": "exit 1",  # nothing is installed
    "apt-get": 'echo "$@" >>"$IMBREX_TOLD"',
    "sudo": 'exec "$@"',
    "cmake": "echo cmake version 3.25.1",
    "ninja": "exit 0",
    "python3": 'exit "$IMBREX_NO_VENV"',
}


class Install(unittest.TestCase):
    def install(self, no_venv):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for program, text in STAND_INS.items():
                (folder / program).write_text(f"#!/bin/sh\n{text}\n")
                (folder / program).chmod(0o755)
            environment = {**os.environ, "PATH": f"{name}:{os.environ['PATH']}", "IMBREX_TOLD": f"{name}/told", "IMBREX_NO_VENV": str(no_venv)}
            environment.pop("IMBREX_WITH_CUTLASS", None)
            subprocess.run([ROOT / "scripts/install-dependencies"], env=environment, capture_output=True, check=True)
            return (folder / "told").read_text().split()

    def test_virtual_environments(self):
        """Debian's python3 makes none without its package; a python3 from elsewhere needs no package."""
        self.assertIn("python3-venv", self.install(no_venv=1))
        self.assertNotIn("python3-venv", self.install(no_venv=0))

    def test_what_is_there_already(self):
        told = self.install(no_venv=0)
        self.assertIn("libfmt-dev", told)
        for package in ("cmake", "ninja-build", "python3"):
            self.assertNotIn(package, told)


class Build(unittest.TestCase):
    def test_options(self):
        done = subprocess.run([ROOT / "scripts/build", "--without-cude"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--without-cude is not an option; usage: scripts/build [--without-cuda]", done.stderr)
        done = subprocess.run([ROOT / "scripts/build", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("usage: scripts/build", done.stdout)


if __name__ == "__main__":
    unittest.main()
