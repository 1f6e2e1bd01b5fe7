#!/usr/bin/env python3
"""Every check of this folder passes on a good little tree and fails on each defect put into it."""

import tempfile
import unittest
from pathlib import Path

import check_docs
import check_names
import check_structure

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
    "cli/CMakeLists.txt": "add_executable(cli main.cpp)\n",
    "cli/main.cpp": '#include "imbrex/ops.hpp"\n#include "commands.hpp"\n',
    "cli/commands.hpp": "#pragma once\n",
    "python/torch_ops.py": "import torch\n",
    "scripts/test": "#!/bin/bash\n",
    "docs/protocols.md": "# Protocols\n\n| constant | value | file |\n|---|---|---|\n"
                         "| `copies` | 2 | `include/imbrex/plan.hpp` |\n",
    "docs/architecture.md": "# House\n\n| folder | what | may include |\n|---|---|---|\n| `src/base` | words | |\n"
                            "| `src/machine` | less | base |\n"
                            "| `src/plan` | more | base |\n| `src/ops` | most | plan, base |\n",
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
        return [f for check in [*check_structure.CHECKS, check_names.check_names, *check_docs.CHECKS] for f in check(root)]


class Checks(unittest.TestCase):
    def test_good_tree_passes(self):
        self.assertEqual(faults_of({}), [])

    def refuse(self, expected, changes):
        faults = faults_of(changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(expected, faults[0])

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
        self.refuse("no module in the table", {"cli/x.hpp": "", "src/plan/plan.hpp": '#include "imbrex/new.hpp"\n'})
        self.refuse("without a module", {"include/imbrex/new.hpp": "#pragma once\n"})
        self.refuse("no row in the table", {"src/extra/x.hpp": "#pragma once\n"})
        self.refuse("belong in a folder", {"src/loose.hpp": "#pragma once\n"})

    def test_arrows_are_the_documents(self):
        name = "docs/architecture.md"
        self.refuse("plan may not include base", {name: GOOD[name].replace("| base |", "| |"), "src/plan/plan.cpp": None,
                                                  "src/plan/CMakeLists.txt": "target_sources(imbrex PRIVATE deep/part.cpp)\n"})
        self.refuse("ops may include gone, which", {name: GOOD[name].replace("plan, base", "plan, gone, base")})
        self.refuse("src/ops has no row", {name: GOOD[name].replace("| `src/ops` | most | plan, base |\n", ""),
                                           "include/imbrex/ops.hpp": None, "cli/main.cpp": '#include "imbrex/plan.hpp"\n'})
        self.assertGreater(len(faults_of({name: None})), 0)

    def test_foreign(self):
        self.refuse("no CUDA header", {"src/plan/plan.hpp": "#include <cuda_runtime.h>\n"})
        self.refuse("no CUDA header", {"src/machine/x.hpp": "#include <nccl.h>\n"})
        self.refuse("holds no CUDA", {"src/plan/x.cuh": ""})
        self.refuse("only under python/", {"include/imbrex/plan.hpp": "#include <torch/all.h>\nint copies = 2;\n"})
        self.refuse("only under python/", {"tests/x.py": "import torch\n"})
        self.refuse("calls getenv", {"src/plan/plan.cpp": 'auto x = ::getenv("X");\n'})
        self.refuse("calls getenv", {"cli/main.cpp": 'auto x = std::getenv ("X");\n'})

    def test_sizes(self):
        self.refuse("501 lines", {"src/plan/plan.hpp": "\n" * 501})
        self.refuse("501 lines", {"scripts/test": "\n" * 501})

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
