#!/usr/bin/env python3
"""Where the address space is limited, every command ends in time, with a message, and with an exit code of its own."""

import resource
import subprocess
import time
import unittest

from program import PROGRAM, Case

MIB = 1 << 20
SIZES = ["--m", "64", "--n", "64", "--k", "64", "--ranks", "2"]
WAIT_LIMIT = 2
# The wait limit, 5 s for ranks that do not end on their own, and time to start on a busy machine.
MOST_SECONDS = WAIT_LIMIT + 5 + 8


def run(megabytes, arguments, folder):
    """Exit code, output and seconds of the program with that much address space."""
    begin = time.monotonic()
    limit = megabytes * MIB
    result = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60,
                            env={"IMBREX_WAIT_LIMIT": str(WAIT_LIMIT)},
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    return result.returncode, result.stdout + result.stderr, time.monotonic() - begin


class AddressSpace(Case):
    def setUp(self):
        super().setUp()
        if "Sanitizer" in run(1000, ["version"], self.folder)[1]:
            self.skipTest("a sanitizer takes the whole address space")

    def scan(self, arguments, sizes, enough):
        """With `enough` megabytes the command succeeds; with each of `sizes` it ends as it should."""
        for size in [*sizes, enough]:
            with self.subTest(arguments=arguments, megabytes=size):
                code, text, seconds = run(size, arguments, self.folder)
                self.assertNotEqual(text, "")
                self.assertLess(seconds, MOST_SECONDS)
                if code == 127:  # the system's own loader finds no room for the program
                    self.assertLess(size, 66)
                    self.assertIn("error while loading shared libraries", text)
                else:
                    self.assertIn(code, (0, 3), text)
                    self.assertEqual(code == 3, "imbrex: " in text.replace("imbrex: running", ""), text)
                    self.assertNotIn("terminate called", text)
                if size == enough:
                    self.assertEqual(code, 0, text)

    def test_a_run_ends(self):
        self.scan(["run", "gemm_reduce_scatter", *SIZES, "--device", "cpu", "--verify"], [*range(20, 60, 4), *range(60, 400, 20)], 1000)

    def test_ranks_that_are_threads_end(self):
        self.scan(["run", "gemm_all_reduce", *SIZES, "--device", "cpu", "--world", "threads"], range(30, 400, 30), 2000)

    def test_other_commands_end(self):
        self.scan(["launch", "-n", "2", "--", PROGRAM, "version"], range(30, 200, 20), 1000)
        self.scan(["run", "all_reduce", "--m", "8", "--n", "512", "--ranks", "2", "--device", "cpu"], range(30, 400, 30), 1000)
        self.scan(["version"], range(20, 60, 4), 1000)


if __name__ == "__main__":
    unittest.main()
