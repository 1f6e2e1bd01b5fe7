"""What the documents hold for tests: blocks of code, files that a page says to save, and commands."""

import re
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```[ \t]*$", re.M | re.S)
NAMED = re.compile(r"`([\w./-]+)`:\s*$")


def documents(root):
    """README and users' pages."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def blocks(text):
    """[(language, code, text between the block before and this one)]"""
    found, at = [], 0
    for match in BLOCK.finditer(text):
        found.append((match.group(1), match.group(2), text[at:match.start()]))
        at = match.end()
    return found


def is_program(language, code):
    return language in ("c", "cpp") and re.search(r"\bint main\(", code) is not None


def is_quoted(before):
    """The block behind `<!-- from FILE -->` is compared with FILE by check_docs.py."""
    return re.search(r"<!-- from \S+ -->\s*$", before) is not None


def commands(text):
    """[(commands, output, files)]: the lines of each block of shell, without comments; the output that the next block of text
    says; and the files that the page tells to save before: a block behind a line that ends in `NAME`:"""
    listed = blocks(text)
    found, files = [], {}
    for index, (language, code, before) in enumerate(listed):
        if match := NAMED.search(before):
            files[match.group(1)] = code
        if language != "sh":
            continue
        lines = [re.sub(r"\s+# .*$", "", line).strip() for line in code.replace("\\\n", " ").split("\n")]
        shown = ""
        if index + 1 < len(listed) and listed[index + 1][0] == "text" and not listed[index + 1][2].strip():
            shown = listed[index + 1][1]
        found.append(([line for line in lines if line and not line.startswith("#")], shown, dict(files)))
    return found


def read(path):
    return Path(path).read_text(encoding="utf-8")
