#!/usr/bin/env python3
"""Every check of this folder passes on a good little tree and fails on each defect put into it."""

import json
import tempfile
import unittest
from pathlib import Path

import check_dev
import check_docs
import check_names
import check_structure
import check_words

ARROWS = check_structure.ARROWS
ROOMS = {"base": [], "machine": ["base"], "plan": ["base"], "ops": ["plan", "base"]}
PUBLIC = {"error.hpp": "base", "plan.hpp": "plan", "ops.hpp": "ops"}
GOOD = {
    "include/imbrex/error.hpp": "#pragma once\n",
    "include/imbrex/plan.hpp": '#pragma once\n#include "imbrex/error.hpp"\ninline constexpr int copies = 2;\n',
    "include/imbrex/ops.hpp": '#pragma once\n#include "imbrex/plan.hpp"\n',
    "src/base/CMakeLists.txt": "target_sources(imbrex PRIVATE environment.cpp)\n",
    "src/base/check.hpp": '#include "imbrex/error.hpp"\n',
    "src/base/environment.cpp": "#include <cstdlib>\nauto x = std::getenv(\"X\");\n",
    "src/machine/machine.hpp": "#pragma once\n",
    "src/plan/CMakeLists.txt": "target_sources(imbrex PRIVATE plan.cpp deep/part.cpp)\n",
    "src/plan/plan.cpp": '#include "imbrex/plan.hpp"\n#include "base/check.hpp"\n// getenv( in a comment\n',
    "src/plan/deep/part.cpp": '#include "../plan.hpp"\n',
    "src/plan/plan.hpp": "#pragma once\n",
    "src/ops/ops.hpp": '#include "imbrex/plan.hpp"\n',
    "program/run.hpp": '#include "ops/ops.hpp"\n',
    "cli/CMakeLists.txt": "add_executable(cli main.cpp)\n",
    "cli/main.cpp": '#include "imbrex/ops.hpp"\n#include "program/run.hpp"\n#include "commands.hpp"\n',
    "cli/commands.hpp": "#pragma once\n",
    "python/torch_ops.py": "import torch\n",
    "scripts/test": "#!/bin/bash\n",
    "docs/protocols.md": "# Protocols\n\n| constant | value | file |\n|---|---|---|\n"
                         "| `copies` | 2 | `include/imbrex/plan.hpp` |\n",
    "docs/dev/architecture.md": "# House\n\n| folder | what |\n|---|---|\n| `src/base` | words |\n| `src/machine` | less |\n"
                            "| `src/plan` | more |\n| `src/ops` | most |\n",
    check_words.WORDS: json.dumps([{"say": "L2", "avoid": ["second-level cache"]}, {"say": "the noun", "begins": ["the same for"]}]),
    ARROWS: json.dumps({"rooms": ROOMS, "users": {"program": ["ops", "base"], "cli": [], "python": []}, "public": PUBLIC}),
    "README.md": "Run `scripts/test`; see [protocols](docs/protocols.md#protocols) and `src/plan`, not `build/bin/x`.\n"
                 "[outside](https://example.org/x)\n",
}


def faults_of(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in {**GOOD, **changes}.items():
            if text is None:
                continue
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return [f for check in [*check_structure.CHECKS, check_names.check_names, *check_docs.CHECKS, *check_dev.CHECKS,
                                  *check_words.CHECKS] for f in check(root)]


class Checks(unittest.TestCase):
    def test_good_tree_passes(self):
        self.assertEqual(faults_of({}), [])

    def refuse(self, expected, changes, count=1):
        faults = faults_of(changes)
        self.assertEqual(len(faults), count, faults)
        self.assertIn(expected, "\n".join(faults))

    def test_names(self):
        twice = "namespace imbrex::plan {\nstruct Node final : Other<int> {\n  int x;\n};\n}\n"
        self.refuse("imbrex::plan::Node is defined at src/machine/machine.hpp:2 too",
                    {"src/machine/machine.hpp": twice, "src/plan/plan.hpp": twice})
        self.refuse("imbrex::Node belongs into its room's namespace",
                    {"src/plan/plan.hpp": "namespace imbrex {\nenum class Node : unsigned char { a };\n}\n"})
        own = ("namespace imbrex::plan {\nstruct Node;\ntemplate <class T> void f() { struct Node { int x; }; }\n"
               "namespace {\nclass Node {\n};\n}\n// struct Node {\n}\n")
        self.assertEqual(faults_of({"src/machine/machine.hpp": own, "src/plan/plan.hpp": own}), [])

    def test_arrows(self):
        self.refuse("base may not include plan", {"src/base/check.hpp": '#include "plan/plan.hpp"\n'})
        self.refuse("base may not include plan", {"src/base/check.hpp": '#include "../plan/plan.hpp"\n'})
        self.refuse("base may not include plan", {"src/base/check.hpp": "#include <imbrex/plan.hpp>\n"})
        self.refuse("plan may not include ops", {"src/plan/plan.hpp": '  #  include "imbrex/ops.hpp"\n'})
        self.refuse("plan may not include ops", {"include/imbrex/plan.hpp": '#include "imbrex/ops.hpp"\nint copies = 2;\n'})
        self.refuse("cli may include public", {"cli/commands.hpp": '#include "base/check.hpp"\n'})
        self.refuse("cli may include public", {"cli/commands.hpp": '#include "../src/base/check.hpp"\n'})
        self.refuse("program may include public headers and ops and base only", {"program/commands.hpp": '#include "plan/plan.hpp"\n'})
        self.refuse("python may include public headers only", {"python/x.cpp": '#include "ops/ops.hpp"\n',
                                                               "python/CMakeLists.txt": "add_library(x x.cpp)\n"})
        self.refuse("in no room of", {"cli/x.hpp": "", "src/plan/plan.hpp": '#include "imbrex/new.hpp"\n'})
        self.refuse("public header in no room", {"include/imbrex/new.hpp": "#pragma once\n"})
        self.refuse("belong in a folder", {"src/loose.hpp": "#pragma once\n"})

    def house(self, rooms={}, **changes):
        return json.dumps({"rooms": {**ROOMS, **rooms}, "users": {"program": ["ops", "base"], "cli": [], "python": []}, "public": PUBLIC, **changes})

    def test_arrows_are_the_data_files(self):
        self.refuse("plan may not include base", {ARROWS: self.house({"plan": []}), "src/plan/plan.cpp": None,
                                                  "src/plan/CMakeLists.txt": "target_sources(imbrex PRIVATE deep/part.cpp)\n"})
        self.refuse("ops may include gone, which is no room", {ARROWS: self.house({"ops": ["plan", "gone", "base"]})})
        self.refuse("cli may include gone, which is no room", {ARROWS: self.house(users={"cli": ["gone"]})})
        self.refuse("new.hpp does not exist", {ARROWS: self.house(public={**PUBLIC, "new.hpp": "plan"})})
        self.refuse("error.hpp is of gone", {ARROWS: self.house(public={**PUBLIC, "error.hpp": "gone"}),
                                             "src/base/check.hpp": "", "include/imbrex/plan.hpp": "int copies = 2;\n"})
        self.refuse("base stands before plan", {ARROWS: self.house({"base": ["plan"]})})
        self.refuse("it must hold rooms", {ARROWS: "{"})
        self.refuse("it must hold rooms", {ARROWS: None})

    def test_rooms_are_the_documents(self):
        name = "docs/dev/architecture.md"
        self.refuse("src/: extra is no room", {"src/extra/x.hpp": "#pragma once\n"})
        self.assertEqual([f.split()[0] for f in faults_of({ARROWS: self.house({"extra": []})})], ["src/:", f"{name}:"])
        self.refuse("docs/dev/architecture.md: lacks ops", {name: GOOD[name].replace("| `src/ops` | most |\n", "")})
        self.refuse("docs/dev/architecture.md: extra is no room", {name: GOOD[name] + "| `src/extra` | none |\n", "src/extra/x": ""}, 2)
        self.assertGreater(len(faults_of({name: None})), 0)

    def test_casts(self):
        cast = "auto* x = dynamic_cast<Plan*>(y);  // dynamic_cast\n"
        self.refuse("src/plan/plan.hpp: has a dynamic_cast", {"src/plan/plan.hpp": cast})
        self.assertEqual(faults_of({"src/plan/plan.hpp": "// dynamic_cast<Plan*>(y)\n", "cli/commands.hpp": cast}), [])

    def test_makers(self):
        made = "const auto executor = make_cuda_executor(world, options);\n"
        for path in ("program/run.hpp", "program/measure/x.hpp", "cli/run.hpp", "bench/new.hpp", "bench/versions/x.hpp"):
            self.refuse(f"{path}: makes an executor", {path: made})
        self.assertEqual(faults_of({"src/ops/x.hpp": made, "program/x.hpp": "// make_cpu_executor(world)\n"}), [])

    def test_foreign(self):
        self.refuse("no CUDA header", {"src/plan/plan.hpp": "#include <cuda_runtime.h>\n"})
        self.refuse("no CUDA header", {"src/machine/x.hpp": "#include <nccl.h>\n"})
        self.refuse("holds no CUDA", {"src/plan/x.cuh": ""})
        self.refuse("only under python/", {"include/imbrex/plan.hpp": "#include <torch/all.h>\nint copies = 2;\n"})
        self.refuse("only under python/", {"tests/x.py": "import torch\n"})
        self.refuse("calls getenv", {"src/plan/plan.cpp": 'auto x = ::getenv("X");\n'})
        self.refuse("calls getenv", {"cli/main.cpp": 'auto x = std::getenv ("X");\n'})
        for call in ('setenv("X", "1", 0)', 'unsetenv ("X")', "putenv(text)"):
            self.refuse("changes the environment", {"src/plan/plan.cpp": f"int x = {call};\n"})
        setter = {"program/nccl_environment.cpp": 'int x = setenv("X", "1", 0);\n'}
        self.assertEqual(faults_of({**setter, "program/CMakeLists.txt": "target_sources(imbrex PRIVATE nccl_environment.cpp)\n"}), [])

    def test_narrowing(self):
        self.refuse("base::narrow checks", {"src/plan/plan.hpp": "int f(long x) { return static_cast<int>(x); }\n"})
        self.refuse("plan.cpp:2: casts", {"src/plan/plan.cpp": "\nauto y = static_cast<std::uint32_t>(x);\n"})
        self.assertEqual(faults_of({"src/plan/plan.hpp": "// static_cast<int>(x)\nlong f(int x) { return static_cast<long>(x); }\n",
                                    "src/ops/ops.hpp": "int f(long x) { return static_cast<int>(x); }\n"}), [])

    def test_writers(self):
        self.refuse("only src/base/files/file.cpp may", {"cli/main.cpp": 'std::ofstream file("x");\n'})
        self.refuse("only src/base/files/file.cpp may", {"src/plan/plan.cpp": 'auto f = std::fopen("x", "w");\n'})
        self.refuse("only src/base/files/file.cpp may", {"bench/x.hpp": "int f = ::open(path, O_WRONLY | O_CREAT, 0666);\n"})

    def test_sizes(self):
        self.refuse("501 lines", {"src/plan/plan.hpp": "\n" * 501})
        self.refuse("501 lines", {"scripts/test": "\n" * 501})

    def test_sentences(self):
        begin = "O" "f"  # not to be found in this file
        for name, text in (("src/plan/plan.hpp", f"/// {begin} a plan.\n"), ("docs/x.md", f"Words. {begin} these some.\n"),
                           ("cli/main.cpp", f'auto text = "{begin} all";\n'), ("scripts/test", f"# Words.\n# {begin} one.\n"),
                           ("bench/x.py", f'"""{begin} each."""\n'), ("README.md", f"See\n{begin}\nthese.\n")):
            with self.subTest(name=name):
                self.refuse("names its subject", {name: text})
        self.assertEqual(faults_of({"src/plan/plan.hpp": "/// Some of a plan, and offset, Offset, OfMany.\n"}), [])

    def test_listed(self):
        self.refuse("in no CMakeLists.txt", {"src/plan/orphan.cpp": ""})
        self.refuse("in no CMakeLists.txt", {"src/plan/an.cpp": ""})  # plan.cpp is listed, an.cpp is not
        self.refuse("in no CMakeLists.txt", {"cli/CMakeLists.txt": "# main.cpp\n"})
        self.assertEqual(faults_of({"tests/CMakeLists.txt": "add_executable(x ../bench/x.cpp ${CMAKE_SOURCE_DIR}/bench/y.cpp)\n",
                                    "bench/x.cpp": "", "bench/y.cpp": ""}), [])

    def test_links(self):
        self.refuse("which does not exist", {"docs/x.md": "[gone](gone.md)\n"})
        self.refuse("which does not exist", {"docs/x.md": "![gone](gone.svg)\n"})
        self.refuse("no such heading", {"docs/x.md": "[part](protocols.md#nowhere)\n"})

    def test_paths(self):
        self.refuse("names scripts/gone", {"README.md": "Run `scripts/gone`.\n"})
        self.refuse("names scripts/gone", {"README.md": "```\nscripts/gone   # fresh machine\n```\n"})
        self.refuse("docs/other.md: names src/gone.cpp", {"docs/other.md": "See `src/gone.cpp`.\n"})
        self.refuse("README.md: missing", {"README.md": None})
        self.refuse("src/plan/plan.hpp: names docs/gone.md, which does not exist", {"src/plan/plan.hpp": "// docs/gone.md tells.\n"})

    def test_options(self):
        files = {"bench/x.py": 'parser.add_argument("--out-file")\n', "cli/main.cpp": 'app.add_option("-n,--ranks");\n'}
        for good in ("`bench/x.py --out-file y`, `imbrex run --ranks 4`", "    imbrex launch --ranks 2 -- program --any\n",
                     "    imbrex run \\\n      --ranks 4\n", "`bench/gone --x` is none"):
            self.assertEqual([f for f in faults_of({**files, "docs/x.md": good}) if "option" in f], [], good)
        for bad, fault in (("    bench/x.py --out-file build/bin/y --out y\n", "gives bench/x.py the option --out,"),
                           ("    bench/x.py --out y\n", "gives bench/x.py the option --out,"),
                           ("`imbrex run --ranks 4 --rank 3`", "gives imbrex the option --rank,"),
                           ("    imbrex run \\\n      --rank 3\n", "gives imbrex the option --rank,"),
                           ("    build/bin/any --rank 3\n", "gives build/bin/any the option --rank,")):
            self.refuse(fault, {**files, "docs/x.md": bad})

    def test_quotes(self):
        quote = "<!-- from scripts/quoted -->\n```sh\n{}\n```\n"
        files = {"scripts/quoted": "first\nsecond\nthird\n"}
        self.assertEqual([f for f in faults_of({**files, "docs/x.md": quote.format("first\nsecond")}) if "quotes" in f], [])
        self.refuse("docs/x.md: quotes what scripts/quoted does not say: first", {**files, "docs/x.md": quote.format("first\nthird")})
        self.refuse("docs/x.md: quotes else/gone, which does not exist",
                    {"docs/x.md": quote.format("first").replace("scripts/quoted", "else/gone")})

    def test_words(self):
        cache = "second-" + "level cache"
        broken = cache.replace(" ", "\n// ")
        for name, text in (("src/plan/plan.hpp", f"/// In the {cache}.\n"), ("cli/commands.hpp", f'auto text = "the {cache}";\n'),
                           ("src/machine/machine.hpp", f"// In the\n// {broken}.\n"), ("docs/x.md", f"The {cache.title()}\nserves it.\n"),
                           ("src/ops/ops.hpp", f'auto text = "second-" \\\n"level\tcache";\n'.replace('-" \\\n"', "-").replace("\t", " ")),
                           ("scripts/test", f"#!/bin/bash\n# The {cache}.\n"), ("bench/x.py", f'"""The {cache}."""\n'),
                           ("python/torch_ops.py", f'import torch\nraise_it("the {cache}")\n')):
            with self.subTest(name=name):
                self.refuse('avoid "second-level cache"; say L2', {name: text})
        self.refuse('src/plan/plan.hpp:2: avoid "the same for"; say the noun', {"src/plan/plan.hpp": "#pragma once\n/// The same for two.\n"})
        for name, text in (("bench/x.py", f'print("the {cache}")\n'), ("docs/x.md", f"`{cache}` and [that](#{'x'})\n\n# x\n"),
                           ("src/plan/plan.hpp", 'auto text = "the same for all";  // It is the same for all.\n'),
                           ("src/ops/ops.hpp", f"// the {cache}s, a {cache}-line\n")):
            with self.subTest(name=name):
                self.assertEqual([f for f in faults_of({name: text}) if "avoid" in f], [])
        names = json.dumps([{"say": "quantized", "names": ["coded", "one_step"], "kept": ["own_coded"]}])
        for name, code in (("CodedArgs", "struct CodedArgs;\n"), ("is_coded", "bool is_coded;\n"), ("OneStepKernel", "class OneStepKernel;\n"),
                           ("one_steps_", None), ("decoded", None), ("own_coded", None)):
            files = {check_words.WORDS: names, "src/plan/plan.hpp": "#pragma once\n" + (code or f"int {name};  // coded\n")}
            with self.subTest(name=name):
                if code:
                    self.refuse(f"src/plan/plan.hpp:2: {name}: no name has", files)
                else:
                    self.assertEqual([f for f in faults_of(files) if "no name has" in f], [])
        told = {check_words.WORDS: json.dumps([{"say": "the number of", "told": ["so many"]}])}
        for name, text in (("docs/x.md", "So\nmany.\n"), ("include/imbrex/error.hpp", "#pragma once\n/// so many\n"),
                           ("cli/commands.hpp", 'auto text = "so many";\n'), ("python/torch_ops.py", '"""So many."""\n')):
            with self.subTest(name=name):
                self.refuse('avoid "so many"; say the number of', {**told, name: text})
        self.assertEqual(faults_of({**told, "src/plan/plan.hpp": "// so many\n", "bench/x.py": '"""So many."""\n'}), [])
        for words in ("{", '["second"]', '[{"avoid": ["x"]}]', None):
            self.refuse("it must hold a list of objects", {check_words.WORDS: words})

    def test_every_phrase_is_found(self):
        root = Path(__file__).resolve().parents[2]
        words = json.loads((root / check_words.WORDS).read_text(encoding="utf-8"))
        phrases = [phrase for entry in words for key in ("avoid", "told", "begins") for phrase in entry.get(key, [])]
        text = "".join(f"int x;  // {phrase.capitalize()} x.\n" for phrase in phrases)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in ((check_words.WORDS, json.dumps(words)), ("include/x.hpp", text)):
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_text(content)
            found = {int(fault.split(":")[1]) for fault in check_words.check_words(Path(folder)) if fault.startswith("include/x.hpp")}
        self.assertEqual([phrase for line, phrase in enumerate(phrases, 1) if line not in found], [])

    def test_contributors_lists(self):
        table = "| file | look for | change |\n|---|---|---|\n"
        row = "| `include/imbrex/plan.hpp` | `copies` | 2 |\n"
        self.assertEqual(faults_of({"docs/dev/x.md": table + row}), [])
        self.refuse("lists src/gone.cpp, which does not exist", {"docs/dev/x.md": table + "| src/gone.cpp | `x` | y |\n"})
        self.refuse("plan.hpp has no copy", {"docs/dev/x.md": table + row.replace("copies", "copy")})
        every = "<!-- every file with copies in include src -->\n" + table
        self.assertEqual(faults_of({"docs/dev/x.md": every + row}), [])
        self.refuse("lacks src/plan/plan.hpp, which has copies",
                    {"docs/dev/x.md": every + row, "src/plan/plan.hpp": "int copies;\n"})
        shown = "<!-- shown by tests/toy.cpp: copies -->\n" + table + row
        toy = {"docs/dev/x.md": shown, "tests/toy.cpp": "int copies;\n", "tests/CMakeLists.txt": "add_executable(x toy.cpp)\n"}
        self.assertEqual(faults_of(toy), [])
        self.refuse("tests/toy.cpp has no copies", {**toy, "tests/toy.cpp": "int x;\n"})
        self.refuse("is shown by tests/gone.cpp", {**toy, "docs/dev/x.md": shown.replace("toy", "gone")})
        self.refuse("lists copies, which tests/toy.cpp does not show",
                    {**toy, "docs/dev/x.md": shown.replace(": copies", ": int"), "tests/toy.cpp": "int copies;\n"}, 2)
        self.refuse("knows tests/toy.cpp", {**toy, "src/ops/ops.hpp": '#include "imbrex/plan.hpp"  // toy\n'})

    def test_contributors_words(self):
        words = "word. " * 3000
        self.refuse("14001 words of prose", {"docs/dev/x.md": words * 4 + "word. " * 2000})
        self.assertEqual(faults_of({"docs/dev/x.md": words * 4 + f"\n    {words}\n| {words} |\n```\n{words}\n```\n",
                                    "docs/dev/derivations/x.md": words * 5}), [])

    def test_long_sentences(self):
        long = " ".join(["word"] * 36) + "."
        short = " ".join(["word"] * 20)
        for page in ("docs/reference/cpp/x.md", "bench/results/x.md", "README.md", "docs/dev/derivations/x.md", "CONTRIBUTING.md"):
            self.refuse("words, at most 35 are allowed", {page: long})
        for page in ("docs/x.md", "docs/dev/x.md"):
            for text in (f"Short. {long} Short.\n", f"- {long}\n", f"1. Short.\n2. {short}\n   {short}\n", f"{long[:80]}\n{long[80:]}\n",
                         f"[{short}](https://x) {short}.\n"):
                with self.subTest(page=page, text=text):
                    self.refuse("words, at most 35 are allowed", {page: text})
            for text in (f"# {long}\n", f"```\n{long}\n```\n", f"| {long} |\n", f"    {long}\n\n        {long}\n", f"- {short}\n- {short}\n",
                         f"{short}\n\n{short}\n", f"{short}\n| {short} |\n{short}\n", f"`{long}`\n", f"[short](https://x/{short.replace(' ', '/')}) {short}\n"):
                with self.subTest(page=page, text=text):
                    self.assertEqual([f for f in faults_of({page: text}) if "words, at most" in f], [])

    def test_constants(self):
        table = "| constant | value | file |\n|---|---|---|\n"
        self.refuse("quoted as 3", {"docs/x.md": table + "| `copies` | 3 | `include/imbrex/plan.hpp` |\n"})
        self.refuse("gives absent no value", {"docs/x.md": table + "| `absent` | 3 | `include/imbrex/plan.hpp` |\n"})
        self.refuse("does not exist", {"docs/x.md": table + "| `copies` | 2 | include/imbrex/gone.hpp |\n"})
        self.refuse("fewer than three", {"docs/x.md": table + "| `copies` | 2 |\n"})
        self.assertTrue(check_docs.same_value("0x100", "0x100u"))
        self.assertTrue(check_docs.same_value("0.001", "1e-3"))
        self.assertFalse(check_docs.same_value("30", "31"))


if __name__ == "__main__":
    unittest.main()
