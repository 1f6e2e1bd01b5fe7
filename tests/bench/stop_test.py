#!/usr/bin/env python3
"""bench/all: signals that end a run."""

import os
import signal
import sys
import time
import unittest
import unittest.mock
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench/all")]
import measure  # noqa: E402


class Dropping:
    """Gets a signal where Python drops what its handler raises."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)


class Stopping(unittest.TestCase):
    def setUp(self):
        for number in (signal.SIGTERM, signal.SIGALRM):
            self.addCleanup(signal.signal, number, signal.signal(number, measure.stop))
        self.addCleanup(measure._asked.clear)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)

    def test_a_signal_that_python_drops_comes_again(self):
        dropped = []
        with unittest.mock.patch.object(sys, "unraisablehook", dropped.append):
            Dropping()
        with self.assertRaises(measure.Stopped) as caught:
            time.sleep(20)
        self.assertEqual((len(dropped), caught.exception.number), (1, signal.SIGTERM))


if __name__ == "__main__":
    unittest.main()
