#!/usr/bin/env python3
"""The installed library shows the names that its headers declare and, under a version of their own, the program's jobs and
what it hands to them; no others. usage: exports_test.py LIBRARY INCLUDE"""

import re
import subprocess
import sys
from pathlib import Path

# A function's name stands before its arguments; a template's instance has its result in front.
NAME = re.compile(r"^(?:vtable for |typeinfo for |typeinfo name for |(?:non-virtual|virtual|covariant return) thunk to )?"
                  r"imbrex::(?:device::|shmem::)?([A-Za-z_]\w*|operator[^\w\s]+)")
C_FUNCTION = re.compile(r"^[a-z][^(\n]*[ *](imbrex_[a-z_]+)\(", re.M)
FUNCTION = re.compile(r"^(?!inline|concept|IMBREX_DEVICE|struct|constexpr|template|using|static_assert|friend|return)[A-Za-z_][^(\n]*[ &*]([a-z_]\w*)\(", re.M)


def main(library, include):
    text = "".join(path.read_text() for path in sorted(Path(include).rglob("*.hpp")))
    functions = set(FUNCTION.findall(text))
    c_functions = set(C_FUNCTION.findall("".join((Path(include) / name).read_text() for name in ("c.h", "c_infer.h"))))
    types = set(re.findall(r"\b(?:struct|class|enum class)\s+([A-Z]\w*)", text))
    shown = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    names, found, private = set(), set(), 0
    for line in shown.splitlines():
        name, _, version = line.split(" ", 2)[2].partition("@@")
        if version == "IMBREX_PRIVATE":
            own = r"imbrex::(jobs::[a-z_]+\W|plan::GivenKnobs::)"
            assert re.match(own, name), f"{name} is shown, and is neither a function of jobs nor what they are handed"
            private += 1
        elif not re.fullmatch(r"IMBREX_([\d.]+|PRIVATE)", name):  # the versions themselves
            names.add(name)
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
