#!/usr/bin/env python3
"""What scripts/mutate draws, refuses and says: on a small tree, with stand-ins for cmake, ninja and ctest."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from mutation.drawing import draw, mutants_of  # noqa: E402
from mutation.rooms import ROOMS, sources_of  # noqa: E402

RULE = """// Three lines count: mutants of the first are seen, of the second none compiles, of the third all survive.
bool seen = a < b;
int born = 1;
int unseen = 1;
"""
# In the copy, ninja and ctest look at the text alone.
STUBS = {
    "cmake": "#!/bin/sh\nmkdir -p build/cpu && touch build/cpu/build.ninja\n",
    "ninja": '#!/bin/sh\ngrep -q "born = 1" "$2/../../src/codec/rule.cpp"\n',
    "ctest": '#!/bin/sh\necho "$*" >> "$2/../tests-run"\necho "[  FAILED  ] Rule.Holds (1 ms)"\ngrep -q "a < b" "$2/../../src/codec/rule.cpp"\n',
}


def afters(line, operator, name="x.cpp"):
    return [one.after.strip() for one in mutants_of("codec", name, line + "\n") if one.operator == operator]


class Drawing(unittest.TestCase):
    def test_operators(self):
        self.assertEqual(afters("if (a <= b) return;", "boundary"), ["if (a < b) return;"])
        self.assertEqual(afters("std::vector<int> a = b << 2;", "boundary"), [])
        self.assertEqual(afters("int a = b + 1;", "off_by_one"), ["int a = b;", "int a = b - 1;"])
        self.assertEqual(afters("int a = b + 10;", "off_by_one"), [])
        self.assertEqual(afters("if (!a && (b || c)) f(d);", "condition"),
                         ["if ((b || c)) f(d);", "if (!a) f(d);", "if (!a && (c)) f(d);", "if (!a && (b)) f(d);"])
        self.assertEqual(afters("    return of(a, b) == c &&", "condition"), ["return"])
        self.assertEqual(afters("ok = ok && a;", "condition"), ["ok = a;", "ok = ok;"])
        self.assertEqual(afters("a = std::min(b, c);", "extreme"), ["a = std::max(b, c);"])
        self.assertEqual(afters("  queue.post(a, f(b));", "call"), ["{}"])
        for kept in ("return f(a);", "if (a) f(b);", "a = f(b);", "f(a) + g(b);", "static_assert(sizeof(T) == 4);"):
            self.assertEqual(afters(kept, "call"), [])
        self.assertEqual(afters("if (f(a) == 3) return;", "negation"), ["if (f(a) != 3) return;", "if (!(f(a) == 3)) return;"])
        self.assertEqual(afters("a = 0x1p-15f;", "constant"), ["a = 0x1p-14f;"])
        self.assertEqual(afters("f(2, true, b1, 0.5f);", "constant"),
                         ["f(3, true, b1, 0.5f);", "f(1, true, b1, 0.5f);", "f(2, true, b1, 1.0f);", "f(2, false, b1, 0.5f);"])

    def test_python(self):
        self.assertEqual(afters("if a < b and c is None:", "condition", "x.py"), ["if c is None:", "if a < b:"])
        self.assertEqual(afters("if a is None:", "negation", "x.py"), ["if a is not None:", "if not (a is None):"])
        self.assertEqual(afters("group.join(a)  # a < b", "call", "x.py"), ["pass  # a < b"])
        self.assertEqual(afters('"""a < 2 and b"""', "boundary", "x.py"), [])

    def test_what_is_no_code(self):
        for text in ("// a < b", "/* a < b\n a < b */", 'f("a < b");', "#if a < b", "#define X \\\n  a < b",
                     "#if defined(__CUDA_ARCH__)\nf(a < b);\n#endif"):
            self.assertEqual([one for one in mutants_of("codec", "x.hpp", text) if one.operator == "boundary"], [], text)
        text = "#ifdef __CUDA_ARCH__\nf(a < b);\n#else\nf(c < d);\n#endif\n#if !defined(__CUDACC__)\nf(e < g);\n#endif\n"
        self.assertEqual([one.line for one in mutants_of("codec", "x.hpp", text) if one.operator == "boundary"], [4, 7])

    def test_one_seed_one_draw(self):
        sources = {"codec": {"rule.cpp": RULE}}
        self.assertEqual(list(draw(sources, 1)), list(draw(sources, 1)))
        self.assertNotEqual(list(draw(sources, 1)), list(draw(sources, 2)))
        self.assertEqual(set(draw(sources, 1)), set(draw(sources, 2)))

    def test_every_room_has_sources_and_tests(self):
        paths = [path.relative_to(ROOT).as_posix() for folder in ("src", "include", "python") for path in (ROOT / folder).rglob("*.*")]
        programs = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
        for room, about in ROOMS.items():
            found = sources_of(room, paths)
            self.assertTrue(found, room)
            self.assertFalse([path for path in found if "/cuda/" in path or path.endswith(".cu")])
            for test in about.tests:
                self.assertIn(f"imbrex_test({test}", programs.replace("\n", " "))
            for test in about.python:
                self.assertTrue((ROOT / "tests/python" / test).is_file(), test)


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree, bin_folder = Path(folder.name, "tree"), Path(folder.name, "bin")
        (self.tree / "src/codec").mkdir(parents=True)
        bin_folder.mkdir()
        (self.tree / "src/codec/rule.cpp").write_text(RULE)
        (self.tree / ".gitignore").write_text("build/\n")
        shutil.copytree(ROOT / "scripts/mutation", self.tree / "scripts/mutation", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "scripts/mutate", self.tree / "scripts/mutate")
        for name, text in STUBS.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "tree"]):
            subprocess.run(["git", *command], cwd=self.tree, check=True)

    def mutate(self, *arguments, fails=False):
        done = subprocess.run([sys.executable, "scripts/mutate", *arguments], cwd=self.tree, env=self.environment, capture_output=True, text=True,
                              timeout=100, check=False)
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done.stderr if fails else done.stdout

    def calls_of_ctest(self):
        return (self.tree / "build/mutate/tree/build/tests-run").read_text().splitlines()

    def report(self, name):
        return json.loads((self.tree / name).read_text())

    def test_judges_each_mutant(self):
        said = self.mutate("--seed", "5", "--count", "100", "--rooms", "codec")
        report = self.report("build/mutate/5.json")
        results = {(one["line"], one["result"], one["by"]) for one in report["mutants"]}
        self.assertEqual(results, {(2, "killed", "codec_test: Rule.Holds"), (3, "no mutant", ""), (4, "survived", "")})
        self.assertIn("1 of 2 survived:\nsrc/codec/rule.cpp:4 constant\n  - int unseen = 1;\n  + int unseen = 2;", said)
        # The tree is as it was, and no worktree is left.
        self.assertEqual((self.tree / "src/codec/rule.cpp").read_text(), RULE)
        listed = subprocess.run(["git", "worktree", "list"], cwd=self.tree, capture_output=True, text=True, check=True).stdout
        self.assertEqual(len(listed.splitlines()), 1)
        self.assertFalse((self.tree / "build/mutate/tree").exists())

    def test_goes_on_where_it_ended(self):
        asked = ["--seed", "5", "--rooms", "codec", "--keep", "--report", "found.json"]
        self.mutate(*asked, "--count", "1")
        first = self.report("found.json")["mutants"]
        self.assertTrue((self.tree / "build/mutate/tree").is_dir())
        self.mutate(*asked, "--count", "2")
        second = self.report("found.json")["mutants"]
        self.assertEqual(second[: len(first)], first)
        self.assertEqual(sum(one["result"] != "no mutant" for one in second), 2)
        self.assertIn("found.json is about seed 5, not 6", self.mutate("--seed", "6", *asked[2:], fails=True))
        (self.tree / "found.json").write_text("[]")
        self.assertIn("found.json is no report of this script", self.mutate(*asked, fails=True))

    def test_parts_are_the_whole_draw(self):
        asked = ["--seed", "5", "--rooms", "codec", "--count", "100", "--keep"]
        whole = self.mutate(*asked)
        for mine in ("1", "2"):
            self.mutate(*asked, "--part", f"{mine}/2")
        names = ["build/mutate/5-1-of-2.json", "build/mutate/5-2-of-2.json"]
        first, second = (self.report(name)["mutants"] for name in names)
        lines = [one["after"] for one in self.report("build/mutate/5.json")["mutants"]]
        self.assertEqual([one["after"] for one in first], lines[::2])
        self.assertEqual([one["after"] for one in second], lines[1::2])
        joined = self.mutate("--join", *reversed(names))
        self.assertTrue(joined.startswith("\n1 of 2 survived:"), joined)
        self.assertTrue(whole.endswith(joined), whole)
        self.assertIn("are about the same part", self.mutate("--join", names[0], names[0], fails=True))
        self.assertIn("are not about parts of one draw", self.mutate("--join", names[0], "build/mutate/5.json", fails=True))
        self.assertIn("none.json cannot be read", self.mutate("--join", "none.json", fails=True))
        self.assertIn("is about part [1, 2], not [1, 1]", self.mutate(*asked, "--report", names[0], fails=True))

    def test_a_kept_copy_knows_its_limits(self):
        asked = ["--seed", "5", "--rooms", "codec", "--keep", "--count"]
        self.mutate(*asked, "1")
        times = self.tree / "build/mutate/tree/build/limits.json"
        self.assertEqual(list(json.loads(times.read_text()).values()), [{"codec_test": 60, "all_reduce_test": 60}])
        self.mutate(*asked, "2")
        mutants = self.report("build/mutate/5.json")["mutants"]
        self.assertEqual(sorted(one["result"] for one in mutants if one["result"] != "no mutant"), ["killed", "survived"])
        # A mutant that is killed has one test; one that survives, and the tree as it is, have two.
        self.assertEqual(len(self.calls_of_ctest()), 2 + 1 + 2)

    def test_lists_and_touches_nothing(self):
        said = self.mutate("--seed", "5", "--count", "2", "--rooms", "codec", "--list")
        self.assertEqual(said.count("src/codec/rule.cpp:"), 2)
        self.assertFalse((self.tree / "build").exists())

    def test_refuses_bad_input(self):
        for arguments, says in (
            ([], "one of the arguments --seed --join is required"),
            (["--seed", "-1"], "--seed"),
            (["--seed", "1", "--count", "0"], "'0': a number from 1 to 100000 is needed"),
            (["--seed", "1", "--rooms", "codec,moon"], "'moon' is no room; there are checker, "),
            (["--seed", "1", "--part", "3"], "'3': I/N is needed, as 2/4"),
            (["--seed", "1", "--part", "3/2"], "'3': a number from 1 to 2 is needed"),
            (["--seed", "1", "--join", "a.json"], "not allowed with"),
            (["--seed", "1", "--rooms", "codec,codec"], "room codec is named twice"),
            (["--seed", "1", "--revision", "nowhere"], "'nowhere' is no commit of "),
            (["--seed", "1", "--rooms", "torch", "--python", "/bin/false"], "/bin/false has no torch or no pytest"),
            (["--seed", "1", "--sed"], "unrecognized arguments: --sed"),
        ):
            self.assertIn(says, self.mutate(*arguments, fails=True))

    def test_runs_alone(self):
        (self.tree / "build/mutate").mkdir(parents=True)
        with (self.tree / "build/mutate/lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another run uses", self.mutate("--seed", "5", "--rooms", "codec", fails=True))

    def test_says_what_fails_without_a_mutant(self):
        (self.tree / "src/codec/rule.cpp").write_text(RULE.replace("a < b", "b < a"))
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "broken"], cwd=self.tree, check=True)
        self.assertIn("mutate: codec_test fails without a mutant", self.mutate("--seed", "5", "--rooms", "codec", fails=True))


if __name__ == "__main__":
    unittest.main()
