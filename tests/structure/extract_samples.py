#!/usr/bin/env python3
"""Writes each complete C++ program of a document (a ```cpp block with a main) to FOLDER/sample<i>.cpp; prints their names.

usage: extract_samples.py DOCUMENT FOLDER       fails where a document has none
"""

import re
import sys
from pathlib import Path


def samples_of(text):
    return [block for block in re.findall(r"^```cpp\n(.*?)^```", text, re.M | re.S) if re.search(r"\bint main\(", block)]


def main(argv):
    document, folder = Path(argv[1]), Path(argv[2])
    samples = samples_of(document.read_text(encoding="utf-8"))
    if not samples:
        print(f"{document}: no complete C++ program in a ```cpp block", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, sample in enumerate(samples):
        path = folder / f"sample{number}.cpp"
        if not path.exists() or path.read_text(encoding="utf-8") != sample:
            path.write_text(sample, encoding="utf-8")
        names.append(str(path))
    print(";".join(names), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
