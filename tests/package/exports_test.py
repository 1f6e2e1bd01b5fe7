#!/usr/bin/env python3
"""The installed library shows the names that its headers declare and, under a version of their own, what the program's
objects ask it for; no others. It holds nothing of what is the program's or an application's.
usage: exports_test.py LIBRARY INCLUDE"""

import re
import subprocess
import sys
from pathlib import Path

# A function's name stands before its arguments; a template's instance has its result in front.
NAME = re.compile(r"^(?:vtable for |typeinfo for |typeinfo name for |(?:non-virtual|virtual|covariant return) thunk to )?"
                  r"imbrex::(?:device::|shmem::(?:ring::)?)?([A-Za-z_]\w*|operator[^\w\s]+)")
# A name of a room, which is a namespace; of namespace imbrex itself there are functions that no public header has.
INSIDE = re.compile(r"\bimbrex::[a-z]")
# What must not be inside.
FOREIGN = re.compile(r"\bimbrex::(?:program|apps|test|cli)::|cusparse|SoftwareNic|Jacobi|Triangular", re.I)
C_FUNCTION = re.compile(r"^[a-z][^(\n]*[ *](imbrex_[a-z_]+)\(", re.M)
FUNCTION = re.compile(r"^(?!inline|concept|IMBREX_DEVICE|struct|constexpr|template|using|static_assert|friend|return)[A-Za-z_][^(\n]*[ &*]([a-z_]\w*)\(", re.M)


def main(library, include):
    text = "".join(path.read_text() for path in sorted(Path(include).rglob("*.hpp")))
    functions = set(FUNCTION.findall(text))
    c_functions = set(C_FUNCTION.findall("".join((Path(include) / name).read_text() for name in ("c.h", "c/infer.h"))))
    types = set(re.findall(r"\b(?:struct|class|enum class)\s+([A-Z]\w*)", text))
    shown = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    names, found, private = set(), set(), 0
    for line in shown.splitlines():
        name, _, version = line.split(" ", 2)[2].partition("@@")
        if version == "IMBREX_PRIVATE":
            assert INSIDE.search(name), f"{name} is shown to the program, and is of no room of the library"
            private += 1
        elif not re.fullmatch(r"IMBREX_([\d.]+|PRIVATE)", name):  # the versions themselves
            names.add(name)
    held = subprocess.run(["nm", "-C", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert held.count("imbrex::execute") + held.count("imbrex::cuda") > 20, "the library has no names left to look at"
    foreign = [line for line in held.splitlines() if FOREIGN.search(line)]
    assert not foreign, f"the library holds {foreign[:5]}, and {len(foreign)} such names in all"
    missing = c_functions - names
    assert not missing, f"c.h declares {sorted(missing)}, which the library does not show"
    assert len(c_functions) > 30, f"only {len(c_functions)} functions were found in c.h"
    for name in sorted(names - c_functions):
        match = NAME.match(name)
        assert match, f"{name} is shown, and is not of namespace imbrex"
        assert match[1] in functions | types or match[1].startswith("operator"), f"{name} is shown; no header declares it"
        found.add(match[1])
    missing = functions - found
    assert not missing, f"headers declare {sorted(missing)}, which the library does not show"
    assert len(functions) > 50, f"only {len(functions)} functions were found in the headers"
    assert private > 3, f"only {private} functions are shown to the program"
    print(f"{len(names)} names, {len(functions)} functions among them; {private} more for the program")


if __name__ == "__main__":
    main(*sys.argv[1:])
