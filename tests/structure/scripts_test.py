#!/usr/bin/env python3
"""What scripts/demo and scripts/test would build, one after the other, in one build folder on a machine without a GPU.

The scripts run on a copy of the tree; Ninja only says what it would do. usage: scripts_test.py ROOT; exits with 77 where
there is no nvcc.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
STUB = """#!/usr/bin/env bash
# Builds are only told.
case " $* " in
  *" --build "*) exec {cmake} "$@" -- -n -d explain >>"$IMBREX_TOLD" ;;
esac
exec {cmake} "$@"
"""


def write_program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def told_by(tree, script, env, told):
    told.write_text("")
    run = subprocess.run([f"scripts/{script}"], cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)  # the demo's program is not there to run
    return told.read_text() + run.stdout


def main(root):
    root = Path(root).resolve()
    nvcc = shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if Path("/usr/local/cuda/bin/nvcc").exists() else None)
    if nvcc is None:
        print("no nvcc: what the scripts build of the CUDA parts was not looked at")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        tree, bin_folder, told = Path(folder, "tree"), Path(folder, "bin"), Path(folder, "told")
        shutil.copytree(root, tree, ignore=lambda path, names: [
            n for n in names if Path(path) == root and (n in ("build", "out", ".git", ".cache") or n.startswith("build-"))])
        if (root / ".cache").is_dir():
            (tree / ".cache").symlink_to(root / ".cache")
        bin_folder.mkdir()
        write_program(bin_folder / "cmake", STUB.format(cmake=shutil.which("cmake")))
        write_program(bin_folder / "ctest", "#!/bin/sh\nexit 0\n")
        write_program(tree / "scripts/install-dependencies", "#!/bin/sh\n")
        write_program(tree / "scripts/has-gpu", "#!/bin/sh\nexit 1\n")
        # It installs the library that is built before, and an installation builds what is not there.
        write_program(tree / "scripts/test-python", "#!/bin/sh\n")
        env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "IMBREX_TOLD": str(told)}

        demo = told_by(tree, "demo", env, told)
        assert "llama_mlp.cpp.o" in demo, demo[-2000:]
        assert ".cu.o" not in demo, "scripts/demo compiles kernels on a machine without a GPU"
        assert "gtest" not in demo.lower() and "_test.cpp.o" not in demo, "scripts/demo compiles tests"

        test = told_by(tree, "test", env, told)
        # The sources that lie there, and those that the build makes of the lines of lists.
        kernels = sorted(f"/{path.parent.name}/{path.name}.o" for path in (tree / "src").rglob("*.cu"))
        cutlass = (root / ".cache/cutlass").is_dir()
        missing = [k for k in kernels if k not in test and (cutlass or "/sm80/" not in k)]
        assert kernels and not missing, f"scripts/test after scripts/demo leaves out {missing}"
        variants = [line for line in (tree / "src/execute/cuda/products/variants.def").read_text().splitlines()
                    if line.startswith("IMBREX_SM90(")]
        sources = {path.name: path.read_text() for path in (tree / "build/src/execute/cuda/products/sm90").glob("*.cu")}
        if cutlass:
            left = [line for line in variants if sum(text.count(line) for text in sources.values()) != 1]
            assert len(variants) > 3 and not left, f"variants that are in no source, or in several: {left}"
        quantized = re.findall(r"^IMBREX_QUANTIZED\((\w+),", (tree / "src/collectives/cuda/quantized/quantized_entries.def").read_text(), re.M)
        assert len(quantized) > 3
        unbuilt = [name for name in [*sources, *(f"quantized_{name}.cu" for name in quantized)] if f"/{name}.o" not in test]
        assert not unbuilt, f"scripts/test leaves out {unbuilt}"
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
