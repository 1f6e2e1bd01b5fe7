#!/usr/bin/env python3
"""Writes the C and C++ code of a document to FOLDER: each complete program (a block with a main) to sample<i>.c or .cpp, and all
other blocks of C++, each as the body of a function, to fragments.cpp. Prints the names of the programs, then of that file.

usage: extract_samples.py DOCUMENT FOLDER
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from samples import blocks, is_program, is_quoted, read  # noqa: E402

HEAD = '#include "fragments.hpp"\n\nusing namespace given;\n\nnamespace {\n'


def write(path, text):
    """Where it changes, so that nothing is compiled anew for nothing."""
    if not path.exists() or read(path) != text:
        path.write_text(text, encoding="utf-8")
    return str(path)


def main(argv):
    document, folder = Path(argv[1]), Path(argv[2])
    listed = blocks(read(document))
    folder.mkdir(parents=True, exist_ok=True)
    programs = [(language, code) for language, code, _ in listed if is_program(language, code)]
    names = [write(folder / f"sample{number}.{language}", code) for number, (language, code) in enumerate(programs)]
    fragments = [code for language, code, before in listed if language == "cpp" and not is_program(language, code) and not is_quoted(before)]
    if fragments:
        bodies = "".join(f"\n[[maybe_unused]] void fragment{number}() {{\n{code}}}\n" for number, code in enumerate(fragments))
        names.append(write(folder / "fragments.cpp", HEAD + bodies + "\n}  // namespace\n"))
    print(";".join(names), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
