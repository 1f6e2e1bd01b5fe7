#!/usr/bin/env python3
"""The installed libimbrex_shmem.so shows the functions that shmem.h declares and nothing else; libimbrex.so none of them.

usage: shmem_exports_test.py LIBRARY SHMEM_LIBRARY INCLUDE COMPILER
"""

import re
import subprocess
import sys
from pathlib import Path


def shown(library):
    lines = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line.split(" ", 2)[2].partition("@@")[0] for line in lines.splitlines()}


def main(library, shmem_library, include, compiler):
    header = Path(include) / "imbrex/shmem.h"
    text = subprocess.run([compiler, "-E", "-P", "-x", "c++", f"-I{include}", header], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    declared = set(re.findall(r"\b(shmem_\w+)\s*\(", text))
    names = {name for name in shown(shmem_library) if not name.startswith("IMBREX_SHMEM_")}  # the version itself
    declared.add("imbrex::shmem::heap()")
    assert names == declared, f"shown only: {sorted(names - declared)}, declared only: {sorted(declared - names)}"
    assert len(names) > 1500, f"only {len(names)} functions were found in shmem.h"
    here = {name for name in shown(library) if name.startswith("shmem_")}
    assert not here, f"libimbrex shows {sorted(here)}, which another OpenSHMEM has, too"
    print(f"{len(names)} functions")


if __name__ == "__main__":
    main(*sys.argv[1:])
