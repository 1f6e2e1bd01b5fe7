#!/usr/bin/env python3
"""Programs that close descriptors which they did not open: they leave their world soon, and losses are noticed.

usage: closed_test.py IMBREX CLOSED
"""

import concurrent.futures
import os
import subprocess
import sys
import time
import unittest

IMBREX, CLOSED = sys.argv[1:3]
LIMIT = 5


class Closed(unittest.TestCase):
    def launch(self, pes, how, when, detection="auto"):
        begin = time.monotonic()
        done = subprocess.run([IMBREX, "launch", "-n", str(pes), "--", CLOSED, how, when], timeout=60, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "IMBREX_WAIT_LIMIT": str(LIMIT), "IMBREX_LOSS_DETECTION": detection})
        return done.returncode, done.stdout, time.monotonic() - begin

    def cases(self):
        for pes in (2, 3):
            for how in ("close", "over"):
                yield pes, how

    def test_they_leave(self):
        for pes, how in self.cases():
            for when in ("leave", "work"):
                with self.subTest(pes=pes, how=how, when=when):
                    code, said, _ = self.launch(pes, how, when)
                    self.assertEqual((code, said), (0, "PE left, and its files are untouched\n" * pes))

    def test_losses_are_noticed(self):
        for pes, how in self.cases():
            with self.subTest(pes=pes, how=how):
                code, said, seconds = self.launch(pes, how, "kill")
                self.assertEqual(code, 3, said)
                for pe in (0, 2)[: pes - 1]:
                    self.assertRegex(said, rf"(?m)^imbrex: PE {pe}: shmem_barrier_all: rank 1 \(pid \d+\) was lost")
                self.assertLess(seconds, LIMIT, said)

    def test_waits_are_bounded(self):
        """Both at once: what they do is wait."""
        hows = ("close", "over")
        with concurrent.futures.ThreadPoolExecutor(len(hows)) as pool:
            for code, said, _ in pool.map(lambda how: self.launch(2, how, "stuck"), hows):
                self.assertEqual(code, 3, said)
                self.assertRegex(said, rf"(?m)^imbrex: PE 0: shmem_barrier_all: rank 0 waited {LIMIT} s")

    def test_without_locks_the_world_fails(self):
        """By record locks, which go with their file's descriptor, the rank itself says what is wrong."""
        why = r"rank \d failed: the program closed file descriptor \d+ of its world, or replaced it"
        for pes, how in self.cases():
            with self.subTest(pes=pes, how=how):
                code, said, seconds = self.launch(pes, how, "work", "lock")
                self.assertEqual(code, 3, said)
                self.assertRegex(said, rf"(?m)^imbrex: PE \d: (\w+: )?{why}")
                self.assertNotIn("was lost", said)
                self.assertLess(seconds, LIMIT, said)
                # Too soon for anybody to notice, or noticed: it ends, and soon.
                code, said, seconds = self.launch(pes, how, "leave", "lock")
                self.assertIn(code, (0, 3), said)
                if code == 3:
                    self.assertRegex(said, why)
                self.assertLess(seconds, LIMIT, said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
