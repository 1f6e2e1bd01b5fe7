#!/usr/bin/env python3
"""Checks the contributors' documents: the files and names of their lists, how many words they have, and how long sentences are.

usage: check_dev.py [ROOT]      prints each fault as file: rule; exits 1 if there is one
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_docs import long_sentences, prose_of  # noqa: E402

FOLDER = "docs/dev"
MOST_WORDS = 14000  # of prose in all pages but derivations
# Pages in which a file exists for each row of a table `| file | look for | ...`, and holds what the row says.
EVERY = re.compile(r"<!-- every file with (\w+) in ([\w ]+) -->")
SHOWN = re.compile(r"<!-- shown by (\S+): ([\w ]+) -->")


def words_of(text):
    """Words of prose: without blocks of code, tables and marks for tests."""
    return len(re.findall(r"\S*\w\S*", " ".join(prose_of(text))))


def pages(root):
    return [path for path in sorted((root / FOLDER).rglob("*.md")) if "derivations" not in path.relative_to(root / FOLDER).parts]


def check_words(root):
    count = sum(words_of(path.read_text(encoding="utf-8")) for path in pages(root))
    return [f"{FOLDER}: {count} words of prose; at most {MOST_WORDS}, without tables, code and derivations"] if count > MOST_WORDS else []


def check_sentences(root):
    contributing = root / "CONTRIBUTING.md"
    return long_sentences(root, [*([contributing] if contributing.is_file() else []), *sorted((root / FOLDER).rglob("*.md"))])


def files_with(root, word, folders):
    return {path.relative_to(root).as_posix() for folder in folders for path in (root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
            and re.search(rf"\b{word}\b", path.read_text(encoding="utf-8", errors="replace"))}


def tables(text):
    """Tables of files: the line of text before each, and its rows, cells as they are."""
    lines, rows, before = text.split("\n"), None, ""
    for number, line in enumerate([*lines, ""]):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if rows is None and cells[:2] == ["file", "look for"]:
            rows, before = [], lines[number - 1]
        elif rows is not None and line.startswith("|"):
            rows += [] if set(line) <= set("|- ") else [[cell.strip("`") for cell in cells]]
        elif rows is not None:
            yield before, rows
            rows = None


def check_lists(root):
    faults = []
    for path in pages(root):
        where = path.relative_to(root)
        for before, rows in tables(path.read_text(encoding="utf-8")):
            for file, word, *_ in rows:
                if not (root / file).is_file():
                    faults.append(f"{where}: lists {file}, which does not exist")
                elif not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", (root / file).read_text(encoding="utf-8")):
                    faults.append(f"{where}: {file} has no {word}")
            if every := EVERY.match(before):
                listed, found = {row[0] for row in rows}, files_with(root, every[1], every[2].split())
                faults += [f"{where}: lacks {file}, which has {every[1]}" for file in sorted(found - listed)]
            if shown := SHOWN.match(before):
                faults += check_shown(root, where, shown[1], shown[2].split(), {row[1] for row in rows})
    return faults


def check_shown(root, where, example, words, listed):
    """An example takes the listed steps, and no file of the library knows it."""
    if not (root / example).is_file():
        return [f"{where}: is shown by {example}, which does not exist"]
    text = (root / example).read_text(encoding="utf-8")
    faults = [f"{where}: lists {word}, which {example} does not show" for word in sorted(listed ^ set(words))]
    faults += [f"{where}: {example} has no {word}" for word in words if not re.search(rf"\b{word}\b", text)]
    known = files_with(root, Path(example).stem, ["include", "src", "cli", "python"])
    return faults + [f"{where}: {file} knows {example}, which is to need no change of it" for file in sorted(known)]


CHECKS = [check_words, check_sentences, check_lists]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = [fault for check in CHECKS for fault in check(root)]
    print("\n".join(faults) if faults else "contributors' documents: true")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
