#!/usr/bin/env python3
"""What the program writes: full devices, other users' files in the folder, signals, writers side by side."""

import json
import os
import random
import resource
import signal
import subprocess
import threading
import time
import unittest

from program import COMMANDS, PROGRAM, Case

SIZES = ["--m", "8", "--n", "8", "--k", "8"]
RUN = ["run", "gemm_all_reduce", *SIZES, "--device", "cpu", "--ranks", 2]
ALL_REDUCE = ["run", "all_reduce", "--m", 8, "--n", 8, "--device", "cpu", "--ranks", 2]
MACHINE = ["--machine", "4xh200"]
# Every command that needs no GPU, so that it prints something.
PRINTING = [RUN, [*RUN, "--world", "threads"], ALL_REDUCE, ["plan", "gemm_all_reduce", *SIZES], ["check", "plan.json"],
            ["simulate", "gemm_all_reduce", *SIZES, *MACHINE], ["machine", "4xh200"], ["doctor"], ["env"], ["completion", "bash"], ["version"],
            ["trace", "gemm_all_reduce", *SIZES, *MACHINE, "--out", "x.svg"],
            ["trace", "gemm_all_reduce", *SIZES, "--measured", "--device", "cpu", "--out", "x.svg"]]
NO_SPACE = "No space left on device"


def words(arguments):
    return [PROGRAM, *map(str, arguments)]


class Output(Case):
    def setUp(self):
        super().setUp()
        self.run_program("plan", "gemm_all_reduce", *SIZES, "--json", "plan.json")

    def to_full(self, arguments, output="stdout"):
        """The exit code and what the other of the two outputs has."""
        with open("/dev/full", "w") as full:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, output: full}
            result = subprocess.run(words(arguments), cwd=self.folder, text=True, timeout=120, **pipes)
        return result.returncode, result.stderr if output == "stdout" else result.stdout

    def test_every_command_is_here(self):
        self.assertEqual({arguments[0] for arguments in PRINTING} | {"launch", "bench", "tune"}, set(COMMANDS))

    def test_full_standard_output(self):
        helps = [["--help"], *([command, "--help"] for command in COMMANDS)]
        as_json = [*([*arguments, "--json", "-"] for arguments in PRINTING), ["launch", "-n", 1, "--json", "-", "--", "true"]]
        for arguments in [*helps, *PRINTING, *as_json, ["--version"]]:
            code, errors = self.to_full(arguments)
            self.assertEqual(code, 3, f"{arguments}: {errors}")
            self.assertIn(f"standard output cannot be written to: {NO_SPACE}", errors, arguments)

    def test_full_standard_error(self):
        for arguments in PRINTING:
            self.assertEqual(self.to_full(arguments, "stderr")[0], 0, arguments)
        for arguments in ([], ["nonsense"], [*RUN, "--nonsense"], ["check", "absent.json"], ["simulate", "gemm_all_reduce", *SIZES]):
            self.assertEqual(self.to_full(arguments, "stderr")[0], 2, arguments)
        code, out = self.to_full(["version", "--json", "-"], "stderr")
        self.assertEqual((code, set(json.loads(out))), (0, {"version", "compiler", "build_type", "blas", "cuda", "libfabric"}))

    def test_full_files(self):
        """A link leads to the device; parts of --out replace links, so they go to a full file system below."""
        for name in ("full.json", "full.svg"):
            os.symlink("/dev/full", self.path(name))
        launch = ["launch", "-n", 1, "--json", "full.json", "--", "true"]
        for arguments in [*([*arguments, "--json", "full.json"] for arguments in PRINTING), launch]:
            self.refuse(*arguments, code=3, says=f"'full.json' cannot be written: {NO_SPACE}")
        simulate = ["simulate", "gemm_all_reduce", *SIZES, *MACHINE]
        traces = [["trace", "gemm_all_reduce", *SIZES, *MACHINE, "--out"], [*simulate, "--trace"], [*RUN, "--trace"],
                  ["trace", "gemm_all_reduce", *SIZES, "--measured", "--device", "cpu", "--out"]]
        for arguments in traces:
            for name in ("full.json", "full.svg"):
                self.refuse(*arguments, name, code=3, says=f"'{name}' cannot be written: {NO_SPACE}")
        self.refuse("machine", "4xh200", "--out", "full.json", code=3, says=f"'full.json' cannot be written: {NO_SPACE}")
        self.refuse("version", "--json", "/dev/full", code=3, says=f"'/dev/full' cannot be written: {NO_SPACE}")
        self.assertEqual(os.readlink(self.path("full.json")), "/dev/full")

    def test_a_full_file_system(self):
        """Nothing is left there, and what was there stays."""
        os.mkdir(self.path("disk"))
        def inside(arguments, before):
            script = f"mount -t tmpfs -o size=64k tmpfs disk && {before} && \"$@\"; code=$?; ls -A disk; cat disk/* | wc -c; exit $code"
            return subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *arguments],
                                  cwd=self.folder, text=True, capture_output=True, timeout=120)
        try:
            allowed = inside(["true"], "true").returncode == 0
        except FileNotFoundError:
            allowed = False
        if not allowed:
            self.skipTest("no file system may be mounted in a namespace of one's own here")
        big = ["--m", 256, "--n", 256, "--device", "cpu", "--ranks", 2]
        for arguments, name in (
                (["run", "gemm_all_reduce", "--k", 8, *big, "--out", "disk/y"], "disk/y.rank"),
                (["run", "all_reduce", *big, "--out", "disk/y"], "disk/y.rank"),
                (["run", "all_reduce", *big, "--rms-norm", "--out", "disk/y"], "disk/y.rank"),
                (["plan", "gemm_all_reduce", "--m", 2048, "--n", 2048, "--k", 64, "--strategy", "fused", "--json", "disk/x.json"], "disk/x.json"),
                (["machine", "4xh200", "--out", "disk/x.json"], "disk/x.json")):
            full = "head -c 65536 /dev/zero > disk/old" if arguments[0] == "machine" else "echo before > disk/old"
            result = inside(words(arguments), full)
            self.assertEqual(result.returncode, 3, f"{arguments}: {result.stdout}{result.stderr}")
            self.assertRegex(result.stderr, f"'{name}.*' cannot be written: {NO_SPACE}")
            self.assertEqual(result.stdout.split()[-2:], ["old", "65536" if arguments[0] == "machine" else "7"], arguments)

    def test_the_limit_on_file_sizes(self):
        """It is an error as a full disk is, and no signal ends the program."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        result = subprocess.run(words(["machine", "4xh200", "--out", "x.json"]), cwd=self.folder, text=True, capture_output=True,
                                timeout=120, preexec_fn=limit)
        self.assertEqual((result.returncode, result.stderr), (3, "imbrex: 'x.json' cannot be written: File too large\n"))
        self.assertEqual(os.listdir(self.folder), ["plan.json"])

    def test_where_nothing_can_be_written_is_bad_input(self):
        """That is said before anything runs."""
        with open("/dev/null") as unwritable:
            result = subprocess.run(words(["version", "--json", "-"]), stdout=unwritable, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual((result.returncode, result.stderr), (2, "imbrex: --json '-': standard output cannot be written to\n"))
        os.mkdir(self.path("y.rank0.npy"))
        for run in (RUN, ALL_REDUCE):
            self.refuse(*run, "--out", "y", says="--out 'y.rank0.npy': it is a folder")
        self.refuse("machine", "4xh200", "--out", "n" * 300, says="File name too long")


class Others(Case):
    """Another user put links, pipes and files where the program might write."""

    def guess(self, names, victim, kind):
        def set_traps():
            for name in names:
                path = os.path.join(self.folder, name.replace("PID", str(os.getpid())))
                if kind == "link":
                    os.symlink(victim, path)
                elif kind == "pipe":
                    os.mkfifo(path)
                else:
                    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        return set_traps

    def test_traps_under_guessed_names(self):
        self.write("victim", "mine")
        victim = os.path.join(self.folder, "victim")
        for kind in ("link", "pipe", "file"):
            for arguments, target in ((["machine", "4xh200", "--out", "x.json"], "x.json"), (["version", "--json", "x.json"], "x.json"),
                                      (["trace", "gemm_all_reduce", *SIZES, *MACHINE, "--out", "x.svg"], "x.svg")):
                traps = [f"{target}.PID.partial", f"{target}.PID.0.partial", f"{target}.partial", f".{target}.PID"]
                result = subprocess.run(words(arguments), cwd=self.folder, capture_output=True, text=True, timeout=60,
                                        preexec_fn=self.guess(traps, victim, kind))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(self.read("victim"), "mine", (arguments, kind))
                self.assertFalse(os.path.islink(self.path(target)))
                self.assertGreater(len(self.read(target)), 50)
                left = [name for name in os.listdir(self.folder) if name != "victim"]
                self.assertEqual(len(left), 1 + len(traps), left)  # nothing of another's is taken away either
                for name in left:
                    os.remove(self.path(name))

    def test_traps_in_the_place_of_parts(self):
        """The user named none of these files himself: a link or pipe there is replaced."""
        self.write("victim", "mine")
        os.symlink("victim", self.path("y.rank0.npy"))
        os.mkfifo(self.path("y.rank1.npy"))
        for run in (RUN, ALL_REDUCE):
            self.run_program(*run, "--out", "y")
            for rank in (0, 1):
                self.assertEqual(self.read_npy(f"y.rank{rank}.npy")[:2], (8, 8))
        self.assertEqual(self.read("victim"), "mine")
        self.assertEqual(sorted(os.listdir(self.folder)), ["victim", "y.rank0.npy", "y.rank1.npy"])

    def test_another_users_link_and_pipe(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give files to other users")
        os.chmod(self.folder, 0o1777)
        self.write("victim", "mine")
        os.symlink("victim", self.path("x.json"))
        os.mkfifo(self.path("pipe.json"))
        for name in ("x.json", "pipe.json"):
            os.chown(self.path(name), 12345, 12345, follow_symlinks=False)
            for arguments in (["version", "--json", name], ["machine", "4xh200", "--out", name]):
                self.refuse(*arguments, says=[f"'{name}'", "another user's"], timeout=20)
        self.assertEqual(self.read("victim"), "mine")


class Interrupted(Case):
    def test_signals_leave_nothing(self):
        """At any moment, over a file that is there: that one or the new one is there afterwards, whole, and nothing else."""
        random.seed(5)
        parts = ["y.rank0.npy", "y.rank1.npy"]
        kept = ["plan.json", "x.json", *parts]
        for name in kept:
            self.write(name, "before")
        commands = [["machine", "4xh200", "--out", "x.json"], [*RUN, "--out", "y"], [*ALL_REDUCE, "--out", "y", "--world", "threads"],
                    ["plan", "gemm_all_reduce", "--m", 2048, "--n", 2048, "--k", 64, "--strategy", "fused", "--tile-m", 16, "--tile-n", 16,
                     "--json", "plan.json"]]  # of 15 MB
        # The plan is of 15 MB and the same each time: what was found whole once is not read through again.
        whole = {name: {b"before"} for name in kept}
        for number in range(48):
            process = subprocess.Popen(words(commands[number % 4]), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # A temporary name that is to be seen is the moment to choose. A process that has ended gets no signal.
            moment = time.monotonic() + random.random() * (1.5 if number % 4 == 3 else 0.08)
            while time.monotonic() < moment and process.poll() is None and sorted(os.listdir(self.folder)) == kept:
                pass
            process.send_signal(random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
            process.wait(timeout=60)
            time.sleep(0.05)  # ranks end with their parent, but it does not wait for them
            self.assertEqual(sorted(os.listdir(self.folder)), kept, commands[number % 4])
            for name in kept:
                content = self.read(name, "rb")
                if content in whole[name]:
                    continue
                if name in parts:
                    self.assertEqual(self.read_npy(name)[:2], (8, 8))
                else:
                    json.loads(content)
                whole[name].add(content)

    def test_writers_side_by_side(self):
        """One of two that write one file at once wins; who reads it meanwhile sees a whole file."""
        self.run_program("machine", "4xh200", "--name", "w0", "--out", "x.json")
        done, seen, faults = threading.Event(), set(), []
        def read():
            while not done.is_set():
                try:
                    seen.add(json.loads(self.read("x.json"))["name"])
                except (ValueError, OSError) as fault:
                    faults.append(fault)
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(5):
            writers = [subprocess.Popen(words(["machine", "4xh200", "--name", f"w{i}", "--out", "x.json"]), cwd=self.folder, stdout=subprocess.DEVNULL) for i in range(6)]
            self.assertEqual([writer.wait(timeout=60) for writer in writers], [0] * 6)
        done.set()
        reader.join()
        self.assertEqual(faults, [])
        self.assertLessEqual(seen, {f"w{i}" for i in range(6)})
        self.assertEqual(os.listdir(self.folder), ["x.json"])


if __name__ == "__main__":
    unittest.main()
