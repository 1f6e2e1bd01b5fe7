#!/usr/bin/env python3
"""bench/all/children.py: what it starts ends with it, in time and whole, however it ends itself."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH / "all")]
import children  # noqa: E402
import measure  # noqa: E402
from marked import left_of, processes_marked, runs_on  # noqa: E402
from measurement import Measurement  # noqa: E402


class Children(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_session_ends_with_all_that_it_started(self):
        warden = children.Children()
        mark = f"mark-session-{os.getpid()}"
        script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{mark}']); time.sleep(0.2)"
        ended = warden.run([sys.executable, "-c", script], dict(os.environ), 10, self.folder / "a", self.folder / "b")
        self.assertEqual((ended.code, ended.timed_out, processes_marked(mark)), (0, False, []))
        warden.close()

    def test_jobs_that_run_together_end_each_in_its_own_way(self):
        warden = children.Children()
        python = [sys.executable, "-c"]
        commands = [([*python, "import time; time.sleep(0.6)"], 10), (["/nowhere/program"], 10), ([*python, "import time; time.sleep(60)"], 0.3),
                    ([*python, "import sys, time; time.sleep(0.6); sys.exit(3)"], 10)]
        begin = time.monotonic()
        ended = warden.run_together([children.Job(command, dict(os.environ), seconds, self.folder / f"{i}.out", self.folder / f"{i}.err")
                                     for i, (command, seconds) in enumerate(commands)])
        whole = time.monotonic() - begin
        self.assertIsInstance(ended[1], OSError)
        self.assertEqual([(one.code, one.timed_out) for one in (ended[0], ended[2], ended[3])], [(0, False), (-signal.SIGTERM, True), (3, False)])
        # One after the other they would take what they take together.
        self.assertLess(whole, 0.9 * sum(ended[i].seconds for i in (0, 2, 3)))
        warden.close()

    def test_what_takes_one_gpu_has_company(self):
        small = [Measurement(f"small{i}", "gemm", 10 + i, 5, ["x"], one_gpu=True) for i in range(6)]
        long, late, large = (Measurement("long", "gemm", 99, 1000, ["x"], one_gpu=True), Measurement("late", "gemm", 98, 5, ["x"], one_gpu=True, phase=2),
                             Measurement("large", "gemm", 97, 5, ["x"]))
        every = [*small, long, late, large]
        for mode, count, one, names in (("gpus", 4, small[0], ["small0", "small5", "small4", "small3"]), ("gpus", 2, small[5], ["small5", "small4"]),
                                        ("gpus", 4, large, ["large"]), ("shared", 1, small[0], ["small0"])):
            run = types.SimpleNamespace(mode=mode, open=lambda: every, left=lambda: 100.0, timed=[], machine=types.SimpleNamespace(gpus=[{}] * count))
            self.assertEqual([m.name for m in measure.Run.company(run, one)], names)

    def test_the_warden_ends_a_run_that_hangs(self):
        mark = f"mark-warden-{os.getpid()}"
        script = (f"import sys, time; sys.path.insert(0, {str(BENCH / 'all')!r}); import children, subprocess; warden = children.Children(1.5)\n"
                  f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{mark}'], start_new_session=True)\n"
                  "warden._tell(f'+{child.pid}')\ntime.sleep(600)")
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-B", "-c", script], timeout=400)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertEqual(left_of(mark), [])
        self.assertLess(time.monotonic() - begin, 300)  # the others would sleep for 600

    def test_a_fork_that_a_look_does_not_see_is_ended_too(self):
        # Forks and ends as soon as it may, between the listing of /proc and the reading of it.
        script = ("import os, subprocess, sys, time\n"
                  "folder, mark, group = sys.argv[1:]\n"
                  "if group == 'other' and os.fork(): os._exit(0)\n"
                  "if group == 'other': os.setpgid(0, 0)\n"
                  "open(folder + '/ready', 'w').write(str(os.getpid()))\n"
                  "os.rename(folder + '/ready', folder + '/pid')\n"
                  "while not os.path.exists(folder + '/go'): time.sleep(0.002)\n"
                  "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', mark])\n")
        plain = os.listdir
        for group in ("own", "other"):
            with self.subTest(group=group):
                folder, mark = self.folder / group, f"mark-fork-{group}-{os.getpid()}"
                folder.mkdir()
                child = subprocess.Popen([sys.executable, "-c", script, folder, mark, group], start_new_session=True)
                self.addCleanup(child.wait)
                while not (folder / "pid").exists():
                    time.sleep(0.005)
                pid = int((folder / "pid").read_text())

                def listed(path):
                    entries = plain(path)
                    if path == "/proc" and not (folder / "go").exists():
                        (folder / "go").touch()
                        while runs_on(pid):
                            time.sleep(0.005)
                    return entries

                with unittest.mock.patch.object(os, "listdir", listed):
                    self.assertEqual(children.end_sessions({child.pid}, signal.SIGKILL, 60), set())
                self.assertEqual(left_of(mark), [])

    def test_a_process_whose_first_thread_has_ended_is_there(self):
        script = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); ctypes.CDLL(None).pthread_exit(None)"
        child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        while runs_on(child.pid):
            time.sleep(0.005)
        self.assertEqual(children.members({child.pid}), [(child.pid, child.pid)])
        self.assertEqual(children.end_sessions({child.pid}, signal.SIGKILL, 60), set())
        self.assertEqual(child.wait(20), -signal.SIGKILL)

    def test_a_session_that_is_left_is_the_wardens(self):
        warden = children.Children()
        self.addCleanup(warden.close)
        for left in (True, False):
            told = []
            with unittest.mock.patch.object(children, "end_sessions", lambda sessions, *_: sessions if left else set()), \
                    unittest.mock.patch.object(warden, "_tell", told.append):
                warden.run(["true"], dict(os.environ), 10, self.folder / "a", self.folder / "b")
            self.assertEqual([line[0] for line in told], ["?"] if left else ["?", "-"])  # "+" is told by the child, in its copy

    def test_what_the_warden_knows(self):
        for text, sessions, folders in ((b"", set(), set()), (b"?\n+7\n?\n+8\n-7\n", {8}, set()), (b"?\n+7\n?\n+8\n!\n", {7}, set()),
                                        (b"?\n+7\n?\n!\n", {7}, set()), (b"m/a\xff\x85b\nm/c\nn/c\n?\n+7\n-7\n?\n+7\n", {7}, {os.fsdecode(b"/a\xff\x85b")})):
            self.assertEqual(children.told(text), (sessions, folders), text)

    def test_a_start_that_fails_leaves_no_session(self):
        warden = children.Children()
        self.addCleanup(warden.close)
        lines = self.folder / "lines"
        with open(lines, "ab", buffering=0) as file, unittest.mock.patch.object(warden, "_tell", lambda line: file.write(f"{line}\n".encode())):
            for command, folder in (["/nowhere/program"], self.folder), (["true"], self.folder / "nowhere"):
                with self.assertRaises(OSError):
                    warden.run(command, dict(os.environ), 10, folder / "a", folder / "b")
        self.assertEqual(lines.read_text().count("+"), 1)
        self.assertEqual(children.told(lines.read_bytes()), (set(), set()))

    def test_the_warden_tries_until_none_is_left(self):
        mark = f"mark-tries-{os.getpid()}"
        # Its first tries end nothing: as if the machine stood still for their seconds, or looking failed.
        script = (f"import os, signal, sys; sys.path.insert(0, {str(BENCH / 'all')!r}); import children; from pathlib import Path\n"
                  "whole, tries = children.end_sessions, []\n"
                  "def end_sessions(sessions, *more):\n"
                  "    tries.append(1)\n"
                  "    if len(tries) == 1: raise OSError('no memory')\n"
                  "    return sessions if len(tries) < 4 else whole(sessions, *more)\n"
                  "children.end_sessions = end_sessions\n"
                  f"job = [sys.executable, '-c', 'import os, time; os.kill({{}}, 9); time.sleep(600)'.format(os.getpid()), '{mark}']\n"
                  "children.Children().run(job, dict(os.environ), 60, Path(os.devnull), Path(os.devnull))\n")
        done = subprocess.run([sys.executable, "-B", "-c", script], timeout=400)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertEqual(left_of(mark), [])

    def test_a_child_that_the_warden_learns_of_late_ends_too(self):
        mark = f"mark-late-{os.getpid()}"
        # The warden's time is over while a child has not told its session yet.
        script = (f"import os, sys, time; sys.path.insert(0, {str(BENCH / 'all')!r}); import children; from pathlib import Path\n"
                  "warden = children.Children(0.5)\n"
                  "tell = warden._tell\n"
                  "warden._tell = lambda line: (time.sleep(1.5 if line[0] == '+' else 0), tell(line))\n"
                  f"job = [sys.executable, '-c', 'import time; time.sleep(600)', '{mark}']\n"
                  "warden.run(job, dict(os.environ), 60, Path(os.devnull), Path(os.devnull))\n")
        done = subprocess.run([sys.executable, "-B", "-c", script], timeout=400)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        time.sleep(1.5)  # it may not have begun
        self.assertEqual(left_of(mark), [])

    def test_closed_input_and_output_are_no_pipe_of_the_wardens(self):
        mark = f"mark-closed-{os.getpid()}"
        script = (f"import os, sys; sys.path.insert(0, {str(BENCH / 'all')!r}); import children; from pathlib import Path\n"
                  f"job = [sys.executable, '-c', 'import os, time; os.kill({{}}, 9); time.sleep(600)'.format(os.getpid()), '{mark}']\n"
                  "children.Children().run(job, dict(os.environ), 60, Path(os.devnull), Path(os.devnull))\n")
        for closed in ((0,), (1, 2), (0, 1, 2)):
            with self.subTest(closed=closed):
                done = subprocess.run([sys.executable, "-B", "-c", script], timeout=60, preexec_fn=lambda: [os.close(number) for number in closed])
                self.assertEqual(done.returncode, -signal.SIGKILL)
                self.assertEqual(left_of(mark), [])

    def test_ranks_end_with_the_first_that_fails(self):
        script = "import os, sys, time; r = int(os.environ['RANK']); assert os.environ['WORLD_SIZE'] == '3'; time.sleep(0 if r == 1 else 600); sys.exit(7)"
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-B", BENCH / "all/ranks.py", "3", sys.executable, "-c", script], timeout=400)
        self.assertEqual(done.returncode, 7)
        self.assertLess(time.monotonic() - begin, 300)  # the others would sleep for 600


if __name__ == "__main__":
    unittest.main()
