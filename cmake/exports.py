#!/usr/bin/env python3
"""Writes the version script of the library that is installed: its public names, and under IMBREX_PRIVATE what the program's
objects ask it for besides.

usage: exports.py NM VERSION PUBLIC OBJECTS OUT      PUBLIC: the first part of the script; OBJECTS: a file of paths, a line each
"""

import re
import subprocess
import sys
from pathlib import Path

# Namespaces of what is linked into the program itself.
OWN = re.compile(r"imbrex::(?:program|apps)::")
# What the command line, whose objects are not read, hands to the program's.
HANDED = ("imbrex::plan::GivenKnobs::*",)


def asked_for(nm, objects, *options):
    """Names that the objects have no definition of, in their order."""
    said = subprocess.run([nm, "-u", "-p", *options, *objects], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line.split(None, 1)[1] for line in said.splitlines() if re.match(r"\s+[Uvw] ", line)]


def regular(pattern):
    """A pattern of the linker's as a regular expression."""
    return "".join({"*": ".*", "?": "."}.get(char, char if char in "[]!^-" else re.escape(char)) for char in pattern).replace("[!", "[^")


def main(nm, version, public, objects, out):
    text = Path(public).read_text()
    shown = re.compile("|".join(regular(line.strip(" ;")) for line in text.splitlines() if line.endswith(";") and "::" in line))
    paths = Path(objects).read_text().split()
    names = dict(zip(asked_for(nm, paths), asked_for(nm, paths, "-C")))
    private = sorted(name for name, readable in names.items()
                     if "6imbrex" in name and not shown.fullmatch(readable) and not OWN.search(readable.split("(")[0]))
    Path(out).write_text(f"IMBREX_{version} {{\n  global:\n{text}  local: *;\n}};\nIMBREX_PRIVATE {{\n  global:\n"
                         + "".join(f"    {name};\n" for name in private)
                         + '    extern "C++" {\n' + "".join(f"      {name};\n" for name in HANDED) + "    };\n};\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
