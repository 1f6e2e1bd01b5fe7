#!/usr/bin/env python3
"""The checks of pages, and what makes the reference: each is given something wrong, and must find it."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scripts/reference")]
import check_pages  # noqa: E402
import commands_test  # noqa: E402
import headers  # noqa: E402
import machines  # noqa: E402
import python_api  # noqa: E402
import samples  # noqa: E402

ROOT = HERE.parents[1]
LONG = " ".join(["word"] * 36) + "."
GOOD = {
    "README.md": "# House\n\nSee [pages](docs/README.md).\n",
    "docs/README.md": "Read [one](one.md), and `code.` too. Version 1. 5 is short.\n\n| a | table | of words |\n",
    "docs/one.md": "The answer is 42.\n\n```cpp\n" + LONG + "\n```\n\n    " + LONG + "\n",
    "docs/dev/deep.md": "Short.\n",
    "tests/documents/questions.json": json.dumps([{"question": "What?", "route": ["docs/README.md", "docs/one.md"], "answer": "is 42"}]),
}


def faults_of(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {**GOOD, **changes}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return [fault for check in check_pages.CHECKS for fault in check(root)]


class Pages(unittest.TestCase):
    def refuse(self, expected, changes):
        faults = faults_of(changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(expected, faults[0])

    def test_good_pages_pass(self):
        self.assertEqual(faults_of({}), [])

    def test_budgets(self):
        many = "\n".join(["a b c d e f g."] * 2200)
        self.refuse("docs/*.md: 154", {"docs/long.md": many})
        self.refuse("docs/studies/*.md: 154", {"docs/studies/long.md": many})
        self.assertEqual(faults_of({"docs/dev/deep.md": many, "docs/reference/long.md": many}), [])
        self.refuse("README.md: 203 lines", {"README.md": GOOD["README.md"] + "\n" * 200})

    def test_questions(self):
        def ask(**changes):
            return {"tests/documents/questions.json": json.dumps(
                [{"question": "What?", "route": ["docs/README.md", "docs/one.md"], "answer": "is 42", **changes}])}

        self.refuse("does not say 'is 43'", ask(answer="is 43"))
        self.refuse("README.md: does not link to docs/one.md", ask(route=["docs/one.md"]))
        self.refuse("docs/gone.md does not exist", ask(route=["docs/README.md", "docs/gone.md"]))
        ring = {"docs/one.md": GOOD["docs/one.md"] + "[back](README.md)\n"}
        self.refuse("4 steps from README.md", {**ring, **ask(route=["docs/README.md", "docs/one.md", "docs/README.md", "docs/one.md"])})


class Samples(unittest.TestCase):
    def test_commands(self):
        text = "Save as `a.txt`:\n\n```json\n{}\n```\n\n```sh\nimbrex run \\\n  x   # why\n# nothing\n```\n\n```text\nout 1\n```\n"
        self.assertEqual(samples.commands(text), [(["imbrex run    x"], "out 1\n", {"a.txt": "{}\n"})])
        self.assertEqual(samples.commands("```sh\na\n```\n`a.txt`:\n```json\n{}\n```\n"), [(["a"], "", {})])
        self.assertEqual(samples.commands("```sh\na\n```\nwords\n```text\nout\n```\n"), [(["a"], "", {})])

    def test_programs_of_the_tree_start(self):
        self.assertTrue(commands_test.cannot_start("README.md --check"))
        self.assertFalse(commands_test.cannot_start("scripts/docs --check"))
        self.assertFalse(commands_test.cannot_start("imbrex doctor"))

    def test_masks(self):
        self.assertEqual(commands_test.mask("took  1.5e-3 s,  4 of 7"), commands_test.mask("took ... s, 44 of 2"))
        self.assertNotEqual(commands_test.mask("right: 1"), commands_test.mask("WRONG: 1"))

    def test_programs(self):
        self.assertTrue(samples.is_program("cpp", "int main() {}"))
        self.assertFalse(samples.is_program("python", "int main() {}"))
        self.assertTrue(samples.is_quoted("words\n<!-- from examples/x.cu -->\n"))


class Reference(unittest.TestCase):
    def test_every_header_is_on_a_page(self):
        kept = headers.GROUPS["c"]
        headers.GROUPS["c"] = ("C", [])
        try:
            with self.assertRaisesRegex(SystemExit, "public headers on no page: c.h, c/infer.h"):
                headers.pages(ROOT)
            headers.GROUPS["c"] = ("C", ["c.h", "c/infer.h", "gone.h"])
            with self.assertRaisesRegex(SystemExit, "but not there: gone.h"):
                headers.pages(ROOT)
        finally:
            headers.GROUPS["c"] = kept

    def test_declarations(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / headers.INCLUDE / "x.hpp"
            path.parent.mkdir(parents=True)
            path.write_text("// What x is.\n#pragma once\n#include <x>\nnamespace imbrex {\nnamespace detail { int hidden(); }\nclass Later;\n"
                            "/// A struct.\nstruct S {\n  int a = 0;  ///< a field\n  int f() const { return a; }\n private:\n  int secret;\n};\n"
                            "/// Adds.\nint add(int a, int b = '}');\nint add(int a);\ninline int two() { return 2; }\n"
                            "enum class E : int { one, two };\nint S::g() { return 1; }\ninline constexpr int limit = 3;  ///< at most\n}\n")
            text, names = headers.header_section(Path(folder), "x.hpp")
        self.assertEqual(names, ["S", "add", "add", "two", "E", "limit"])
        self.assertIn("What x is.", text)
        self.assertIn("struct S {\n  int a = 0;  ///< a field\n  int f() const;\n};", text)
        self.assertIn("int add(int a, int b = '}');\nint add(int a);\n```", text)
        self.assertIn("inline int two();", text)
        self.assertIn("enum class E : int { one, two };", text)
        self.assertIn("inline constexpr int limit = 3; ///< at most", text)
        self.assertNotIn("hidden", text)
        self.assertNotIn("secret", text)

    def test_python(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / python_api.PACKAGE
            package.mkdir(parents=True)
            (package / "__init__.py").write_text('from ._x import f\n__all__ = ["f"]\n')
            (package / "_x.py").write_text('def f(a, *, b=1):\n    """\n    Does.\n\n    Args:\n        a: one,\n            or more.\n\n    Example:\n        >>> f(1)\n    """\n')
            (name, node), = python_api.names(Path(folder), "imbrex", "__init__.py")
            self.assertEqual((name, python_api.signature(node)), ("f", "f(a, *, b=1)"))
            self.assertEqual(python_api.docstring(node), "Does.\n\n*Args*\n\n- `a`: one,\n  or more.\n\n*Example*\n\n```python\n>>> f(1)\n```")
            (package / "within").mkdir()
            (package / "within/__init__.py").write_text('from .._x import f\n__all__ = ["f"]\n')
            self.assertEqual([name for name, _ in python_api.names(Path(folder), "imbrex.within", "within/__init__.py")], ["f"])
            (package / "__init__.py").write_text('from ._x import f\n__all__ = ["f", "within"]\n')
            self.assertEqual([name for name, _ in python_api.names(Path(folder), "imbrex", "__init__.py")], ["f"])
            (package / "__init__.py").write_text('from ._x import f\n__all__ = ["f", "gone"]\n')
            with self.assertRaisesRegex(SystemExit, "exports gone"):
                python_api.names(Path(folder), "imbrex", "__init__.py")

    def test_machines(self):
        page = machines.machine_page(ROOT)
        source = (ROOT / "src/machine/json.cpp").read_text()
        for place in ("compute.sms", "links.latency", "hosts.message", "collectives.own_coded", "compute.short_rows"):
            self.assertIn(f"| `{place}` |", page)
        self.assertIn('"hosts"', source)


if __name__ == "__main__":
    unittest.main()
