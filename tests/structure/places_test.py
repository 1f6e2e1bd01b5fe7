#!/usr/bin/env python3
"""Tests that read paths pass wherever a clone lies: in a folder of the project's own name, as git calls it, in one with a blank,
and with a home and a folder for temporary files that are new. They run on copies of the tree; nothing is built.
usage: places_test.py ROOT PROGRAM
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT, PROGRAM = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
# Each with what it is given beside the copy's root.
TESTS = {
    "tests/structure/check_structure.py": ["{root}"],
    "tests/structure/check_names.py": ["{root}"],
    "tests/structure/check_docs.py": ["{root}"],
    "tests/structure/check_dev.py": ["{root}"],
    "tests/structure/check_words.py": ["{root}"],
    "tests/structure/checks_test.py": [],
    "tests/structure/test_script_test.py": ["{root}"],
    "tests/structure/install_test.py": ["{root}"],
    "tests/documents/check_pages.py": ["{root}"],
    "tests/documents/checks_test.py": [],
    "tests/messages/messages_test.py": [],
    "tests/bench/bench_scripts_test.py": [],
    "bench/model/tables.py": ["--check"],
}


def copy(root, tree):
    """What a clone has: no builds, nothing that was fetched or written there."""
    shutil.copytree(root, tree, symlinks=True, ignore=lambda path, names: [
        name for name in names if name in ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache") or
        (Path(path) == root and (name in ("build", "out", "venv", ".git", ".cache") or name.startswith("build-")))])


def run(tree, test, environment):
    arguments = [one.format(root=tree) for one in TESTS[test]]
    return test, subprocess.run([sys.executable, "-B", tree / test, *arguments], cwd=tree, capture_output=True, text=True,
                                env={**os.environ, **environment}, timeout=240)


def failures(tree, tests=tuple(TESTS), **environment):
    """What the tests that fail there say. The program is one of that place, too."""
    program = tree.parent / "bin of this place" / "imbrex"
    program.parent.mkdir()
    program.symlink_to(PROGRAM)
    environment["IMBREX_PROGRAM"] = str(program)
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda test: run(tree, test, environment), tests))
    return [f"{test}: {done.stdout[-2000:]}{done.stderr[-2000:]}" for test, done in runs if done.returncode != 0]


class Places(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def place(self, *names):
        tree = Path(self.folder.name, *names)
        tree.parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT, tree)
        return tree

    def test_of_the_projects_name(self):
        """As git clone makes it, in another of that name."""
        self.assertEqual(failures(self.place("imbrex", "imbrex")), [])

    def test_with_a_blank_and_of_another_user(self):
        """The home is empty; temporary files lie in a folder with a blank, too."""
        tree = self.place("a folder", "a clone")
        home, temporary = tree.parent / "a home", tree.parent / "temporary files"
        home.mkdir()
        temporary.mkdir()
        self.assertEqual(failures(tree, HOME=str(home), TMPDIR=str(temporary), USER="another", LOGNAME="another"), [])

    def test_finds_a_test_that_takes_its_place_for_granted(self):
        tree = self.place("imbrex")
        guilty = tree / "tests/documents/checks_test.py"
        guilty.write_text("import sys\nsys.exit('imbrex' in __file__)\n")
        self.assertEqual(len(failures(tree, ("tests/documents/checks_test.py", "tests/documents/check_pages.py"))), 1)


if __name__ == "__main__":
    unittest.main()
