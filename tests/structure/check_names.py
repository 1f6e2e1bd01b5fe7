#!/usr/bin/env python3
"""Checks that no two types of the library or the program share a name, and that internal ones keep out of `imbrex`.

A type that two files define under one name, with different members, makes the linker keep one of two destructors: what
runs depends on the build. The compiler sees one file at a time, so this reads all of them.

usage: check_names.py [ROOT]      prints each fault as file:line: rule; exits 1 if there is one
"""

import re
import sys
from pathlib import Path

FOLDERS = ("include", "src", "cli")
CODE = {".cpp", ".hpp", ".cu", ".cuh", ".h"}
# What cannot hold a definition is blanked: comments, literals, directives.
BLANK = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|'
                   r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M | re.S)
TOKEN = re.compile(r"[{};]|namespace\b[^;{=]*(?=\{)|\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\b[^;{}()=]*(?=\{)")
TYPE = re.compile(r"^(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\s*\S+\s+|\[\[.*?\]\]\s*)*"
                  r"([A-Za-z_]\w*)\s*(?:final\s*)?(?::(?!:).*)?$", re.S)


def blanked(text):
    return BLANK.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def types_of(text):
    """(line, namespace, name) of each type with external linkage that `text` defines outside other types and functions."""
    text = blanked(text)
    scopes, head = [], None  # of each open brace: its namespace's name; "" without a name; None: no namespace
    for token in TOKEN.finditer(text):
        word = token.group().strip()
        if word == "{":
            scopes.append(head)
            head = None
        elif word == "}":
            if scopes:
                scopes.pop()
            head = None
        elif word == ";":
            head = None
        elif word.startswith("namespace"):
            head = re.sub(r"^(inline\s+)?namespace\s*", "", word).strip()
        else:
            head = None
            found = TYPE.match(word)
            if found and None not in scopes and "" not in scopes:
                line = text.count("\n", 0, token.start()) + 1
                yield line, "::".join(scopes), found.group(1)


def check_names(root):
    faults, first = [], {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")) if (root / folder).is_dir() else []:
            if path.suffix not in CODE:
                continue
            where = path.relative_to(root)
            for line, namespace, name in types_of(path.read_text(encoding="utf-8", errors="replace")):
                place, full = f"{where}:{line}", f"{namespace}::{name}"
                if full in first:
                    faults.append(f"{place}: {full} is defined at {first[full]} too")
                first.setdefault(full, place)
                if folder == "src" and namespace in ("", "imbrex"):
                    faults.append(f"{place}: {full} belongs into its room's namespace, or into one without a name")
    return faults


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = check_names(root)
    print("\n".join(faults) if faults else "names: sound")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
