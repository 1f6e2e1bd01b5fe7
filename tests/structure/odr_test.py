#!/usr/bin/env python3
"""The flags that the shipped build is linked with refuse two types of one name, and nothing else.

usage: odr_test.py COMPILER COMPILE_FLAGS LINK_FLAGS
"""

import subprocess
import sys
import tempfile
from pathlib import Path

FIRST = "struct Refused { int why; ~Refused(); }; Refused::~Refused() {} void other(); int main() { Refused r{1}; other(); }"
SECOND = "#include <string>\nstruct %s { std::string why; %s(); }; %s::%s() {} void other() { %s r; }"


def links(compiler, compile_flags, link_flags, name):
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for file, text in {"first": FIRST, "second": SECOND.replace("%s", name)}.items():
            source, target = Path(folder, f"{file}.cpp"), Path(folder, f"{file}.o")
            source.write_text(text)
            subprocess.run([compiler, "-O2", *compile_flags.split(), "-c", source, "-o", target], check=True)
            objects.append(target)
        run = subprocess.run([compiler, *link_flags.split(), *objects, "-o", Path(folder, "program")],
                             stderr=subprocess.PIPE, text=True)
        return run.returncode == 0, run.stderr


def main(compiler, compile_flags, link_flags):
    good, message = links(compiler, compile_flags, link_flags, "Other")
    assert good, message
    good, message = links(compiler, compile_flags, link_flags, "Refused")
    assert not good, "two types of one name were linked"
    assert "Refused" in message and "One Definition Rule" in message, message


if __name__ == "__main__":
    main(*sys.argv[1:])
