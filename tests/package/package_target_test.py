#!/usr/bin/env python3
"""The target that the Python package builds makes everything that `cmake --install` takes from the build folder.

usage: package_target_test.py BUILD NINJA
"""

import re
import subprocess
import sys
from pathlib import Path


def main(build, ninja):
    taken = re.findall(rf'"{re.escape(build)}/((?:installed|lib|bin)/[^"]+)"', Path(build, "cmake_install.cmake").read_text())
    # Versioned names of one library are links to the last one.
    taken = {name for name in taken if not re.search(r"\.so(\.\d+\.\d+)?$", name)}
    made = subprocess.run([ninja, "-C", build, "-t", "commands", "imbrex_package"], capture_output=True, text=True, check=True).stdout
    missing = sorted(name for name in taken if f" -o {name} " not in made)
    script = Path(build, "cmake_install.cmake").read_text()
    # It builds what is not there, before it copies anything.
    first = script.index("--target imbrex_package")
    assert first < script.index("file(INSTALL"), "cmake --install copies before it has built what is missing"
    assert len(taken) >= 2, f"of what is installed only {sorted(taken)} was found"
    assert not missing, f"imbrex_package does not build {missing}, which is installed"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
