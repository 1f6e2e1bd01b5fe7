"""A copy of the tree in which one mutant after another is built and tested."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from mutation.rooms import ROOMS

LEAST_LIMIT = 60  # seconds


class Broken(Exception):
    """The tree cannot be tried: the copy, its build or its tests fail without any mutant."""


def run(command, limit=None, **options):
    """Its exit status, None where the limit ended it, and what it said. All that it has started ends with it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True, **options)
    try:
        said, _ = process.communicate(timeout=limit)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


class Trial:
    """Holds the copy in `folder`, a git worktree of `revision`, which is made anew unless it is that already. A copy that was
    kept knows how long its tests may take."""

    def __init__(self, root, folder, revision, jobs, python):
        self.root, self.tree, self.revision, self.jobs, self.python = root, folder / "tree", revision, jobs, python
        self.build, self.stage = self.tree / "build/cpu", self.tree / "build/staged"
        self.times, self.limits = self.tree / "build/limits.json", {}  # of each test, in seconds
        if self.tree.is_dir() and run(["git", "-C", self.tree, "rev-parse", "HEAD"])[1].strip() == revision:
            self.expect(["git", "-C", self.tree, "checkout", "-q", "--", "."], "the copy cannot be set right")
            if self.stage.is_dir():
                shutil.copytree(self.tree / "python/imbrex", self.stage / "imbrex", dirs_exist_ok=True)
            if self.times.is_file():
                self.limits = json.loads(self.times.read_text()).get(str(python), {})
            return
        self.remove()
        self.expect(["git", "-C", root, "worktree", "add", "-q", "--detach", self.tree, revision], "no copy can be made")

    def remove(self):
        run(["git", "-C", self.root, "worktree", "remove", "--force", self.tree])
        shutil.rmtree(self.tree, ignore_errors=True)
        run(["git", "-C", self.root, "worktree", "prune"])

    def expect(self, command, why, **options):
        status, said = run(command, **options)
        if status != 0:
            raise Broken(f"{why}: {' '.join(map(str, command))}\n{said[-3000:]}")

    def prepare(self, room):
        """Builds the room without a mutant, and times its tests: mutants get three times that."""
        print(f"mutate: builds room {room} and runs its tests as they are", file=sys.stderr)
        if not (self.build / "build.ninja").is_file():
            # A file at a time is changed.
            self.expect(["cmake", "--preset", "cpu", "-DIMBREX_CUDA=OFF", "-DIMBREX_UNITY=OFF", "-DIMBREX_WERROR=OFF"], "no build",
                        cwd=self.tree)
        targets = ROOMS[room].tests
        if ROOMS[room].python:
            self.expect(["cmake", "-S", "python", "-B", self.stage / "made", "-G", "Ninja", "-DIMBREX_CUDA=OFF",
                         f"-DIMBREX_BUILD={self.build}"], "no build of the package", cwd=self.tree)
            self.expect(["ninja", "-C", self.stage / "made", f"-j{self.jobs}"], "the package does not compile")
            shutil.copytree(self.tree / "python/imbrex", self.stage / "imbrex", dirs_exist_ok=True)
            self.expect(["cmake", "--install", self.stage / "made", "--prefix", self.stage], "no package")
        else:
            self.expect(["ninja", "-C", self.build, f"-j{self.jobs}", *targets], "the tree does not compile")
        for test in self.tests_of(room):
            begin = time.monotonic()
            status, said = self.run_test(room, test, None)
            if status != 0:
                raise Broken(f"{test} fails without a mutant:\n{said[-3000:]}")
            self.limits[test] = max(LEAST_LIMIT, 3 * (time.monotonic() - begin))
        self.times.parent.mkdir(parents=True, exist_ok=True)
        self.times.write_text(json.dumps({str(self.python): self.limits}))

    def tests_of(self, room):
        return ROOMS[room].tests or ROOMS[room].python

    def run_test(self, room, test, limit):
        if ROOMS[room].python:
            command = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/python/{test}"]
            return run(command, limit, cwd=self.tree, env={**os.environ, "PYTHONPATH": str(self.stage)})
        command = ["ctest", "--test-dir", self.build, "--output-on-failure", "--no-tests=error", "-R", f"^{test}$"]
        return run(command, limit)

    def compiles(self, mutant):
        if ROOMS[mutant.room].python:
            status, _ = run([sys.executable, "-c", f"compile(open({mutant.file!r}).read(), 'mutant', 'exec')"], cwd=self.tree)
            shutil.copyfile(self.tree / mutant.file, self.stage / mutant.file.removeprefix("python/"))
            return status == 0
        return run(["ninja", "-C", self.build, f"-j{self.jobs}", *ROOMS[mutant.room].tests], 3600)[0] == 0

    def judge(self, mutant):
        """What becomes of it: "no mutant" where it does not compile, "survived", or "killed", and by what."""
        path = self.tree / mutant.file
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.after + "\n"
        path.write_text("".join(lines), encoding="utf-8")
        try:
            if not self.compiles(mutant):
                return "no mutant", ""
            for test in self.tests_of(mutant.room):
                status, said = self.run_test(mutant.room, test, self.limits[test])
                if status is None:
                    return "killed", f"{test}, by its limit of {self.limits[test]:.0f} s"
                if status != 0:
                    failed = re.search(r"\[  FAILED  \] ([\w/]+\.[\w/]+)|^FAILED \S+::(\S+)", said, re.M)
                    return "killed", f"{test}: {failed[1] or failed[2]}" if failed else test
            return "survived", ""
        finally:
            path.write_text(text, encoding="utf-8")
            if ROOMS[mutant.room].python:
                shutil.copyfile(path, self.stage / mutant.file.removeprefix("python/"))
