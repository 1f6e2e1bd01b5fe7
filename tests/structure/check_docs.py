#!/usr/bin/env python3
"""Checks that the documents tell the truth about the tree: links, paths, options, and what they quote from the code.

usage: check_docs.py [ROOT]           prints each fault as file: rule; exits 1 if there is one
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)[^)]*\)")
PATH = re.compile(r"`(?:\./)?([\w.+-]+(?:/[\w.+-]+)+/?)`|(?:^|\s)(scripts/[\w-]+)")
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)
SCRIPT = re.compile(r"(?:\./)?((?:bench|scripts|tests)/[\w./-]+)")
PROGRAM = re.compile(r"imbrex|build/bin/\w+")
OPTION = re.compile(r"--[a-z][\w-]*")
QUOTE = re.compile(r"^<!-- from (\S+) -->\n```\w*\n(.*?)^```", re.M | re.S)
ROW = re.compile(r"^\|(.+)\|[ \t]*$")
DOCUMENT = re.compile(r"\b(?:docs|bench/results)/[\w/-]+\.md\b")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s")
MOST_IN_SENTENCE = 35  # words; contributors' pages have the same limit, in check_dev.py
FOR_USERS = ("README.md", "docs/*.md", "docs/reference/**/*.md", "docs/studies/*.md", "bench/results/*.md", "machines/**/*.md", "examples/**/*.md")


def documents(root):
    paths = sorted(root.glob("*.md"))
    for folder in ("docs", "examples", "machines", "bench", "python", "tests", "scripts"):
        paths += sorted((root / folder).rglob("*.md")) if (root / folder).is_dir() else []
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def slugs(text):
    """Anchors that GitHub makes of the headings."""
    result = set()
    for heading in re.findall(r"^#+[ \t]+(.+?)[ \t]*#*$", FENCE.sub("", text), re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (slug := f"{plain}-{number}" if number else plain) in result:
            number += 1
        result.add(slug)
    return result


def check_links(root):
    faults = []
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        for match in LINK.finditer(FENCE.sub("", text)):
            link = match.group(1) or match.group(2)
            if re.match(r"[a-z][a-z+.-]*:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name) if name else path
            if not target.exists():
                faults.append(f"{where}: links to {link}, which does not exist")
            elif anchor and target.suffix == ".md" and anchor not in slugs(target.read_text(encoding="utf-8")):
                faults.append(f"{where}: links to {link}; there is no such heading")
    return faults


def check_paths(root):
    """A path that a document names exists, if its first folder does; what a build or a run makes is left out."""
    faults = [] if (root / "README.md").is_file() else ["README.md: missing"]
    for path in documents(root):
        for match in PATH.finditer(path.read_text(encoding="utf-8")):
            name = match.group(1) or match.group(2)
            first = name.split("/")[0]
            if first in ("build", "out") or not (root / first).is_dir():
                continue
            if not (root / name).exists() and not (root / "include" / name).exists():
                faults.append(f"{path.relative_to(root)}: names {name}, which does not exist")
    return faults


def options_given(text):
    """Pairs of a script or program and an option, in order. What an option takes is no command; behind `--` another's begin."""
    for line in re.split(r"[`\n]", text.replace("\\\n", " ")):
        command = before = None
        for word in line.split():
            if word == "--":
                command = None
            elif (SCRIPT.fullmatch(word) or PROGRAM.fullmatch(word)) and not (before and OPTION.fullmatch(before)):
                command = word.removeprefix("./")
            elif command and (option := OPTION.match(word)):
                yield command, option.group()
            before = word


def check_options(root):
    """The options that documents give a script stand in it; those of programs, in some program's source."""
    programs = "".join(path.read_text(encoding="utf-8") for folder in ("cli", "bench", "examples")
                       for path in sorted((root / folder).rglob("*.cpp")))
    faults = []
    for path in documents(root):
        for command, option in options_given(path.read_text(encoding="utf-8")):
            script = root / command
            if SCRIPT.fullmatch(command) and not script.is_file():
                continue
            source = script.read_text(encoding="utf-8") if SCRIPT.fullmatch(command) else programs
            if not re.search(rf"{option}(?![\w-])", source):
                faults.append(f"{path.relative_to(root)}: gives {command} the option {option}, which it does not have")
    return faults


def constant_in(text, name):
    """Values that `name = value` or `name{value}` gives in code, as written, without digit separators."""
    code = re.sub(r"//[^\n]*", "", text)
    found = re.findall(rf"\b{re.escape(name)}\s*(?:=|\{{)\s*([^;,}}\n]+)", code)
    return {value.strip().replace("'", "") for value in found}


def same_value(quoted, written):
    if quoted == written:
        return True
    try:
        number = re.compile(r"[uUlLfF]+$")
        return float.fromhex(quoted) == float.fromhex(number.sub("", written)) if "0x" in quoted.lower() else \
            float(quoted) == float(number.sub("", written))
    except ValueError:
        return False


def check_constants(root):
    """Tables headed `| constant | value | file |`: each row's value is the one in the named file."""
    faults = []
    for path in documents(root):
        where = path.relative_to(root)
        in_table = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            row = ROW.match(line)
            if not row:
                in_table = False
                continue
            cells = [cell.strip().strip("`") for cell in row.group(1).split("|")]
            if [cell.lower() for cell in cells[:3]] == ["constant", "value", "file"]:
                in_table = True
                continue
            if not in_table or set(line) <= set("|-: "):
                continue
            if len(cells) < 3:
                faults.append(f"{where}:{number}: a row of the constants has fewer than three cells")
                continue
            name, value, file = cells[:3]
            if not (root / file).is_file():
                faults.append(f"{where}:{number}: {name} is said to be in {file}, which does not exist")
                continue
            written = constant_in((root / file).read_text(encoding="utf-8"), name)
            if not written:
                faults.append(f"{where}:{number}: {file} gives {name} no value")
            elif not all(same_value(value, w) for w in written):
                faults.append(f"{where}:{number}: {name} is quoted as {value}; {file} has {', '.join(sorted(written))}")
    return faults


def check_quotes(root):
    """A block of code behind `<!-- from FILE -->` stands in that file as it is."""
    faults = []
    for path in documents(root):
        for file, text in QUOTE.findall(path.read_text(encoding="utf-8")):
            where = path.relative_to(root)
            if not (root / file).is_file():
                faults.append(f"{where}: quotes {file}, which does not exist")
            elif text not in (root / file).read_text(encoding="utf-8"):
                faults.append(f"{where}: quotes what {file} does not say: {text.strip().splitlines()[0]}")
    return faults


def check_comments(root):
    """A document that a comment, a message or a script names exists."""
    faults = []
    for folder in ("include", "src", "cli", "python", "examples", "tests", "bench", "scripts", "cmake"):
        for path in sorted((root / folder).rglob("*")) if (root / folder).is_dir() else []:
            if not path.is_file() or path.suffix in (".json", ".md", ".svg", ".npy", ".npz", ".pyc") or path.name in ("checks_test.py", "check_docs.py"):
                continue
            for name in sorted(set(DOCUMENT.findall(path.read_text(encoding="utf-8", errors="replace")))):
                if not (root / name).is_file():
                    faults.append(f"{path.relative_to(root)}: names {name}, which does not exist")
    return faults


def prose_of(text):
    """Lines; those of blocks of code, tables and marks for tests are empty."""
    listed = False
    for line in FENCE.sub("\n", text).split("\n"):
        listed = bool(ITEM.match(line)) or (listed and line.startswith("  "))
        yield "" if line.lstrip().startswith(("|", "<!--")) or (line.startswith("    ") and not listed) else line


def sentences_of(text):
    """Sentences of paragraphs and of items of lists, without their marks; code in a sentence is one word."""
    parts = [[]]
    for line in prose_of(text):
        if not line.strip() or line.startswith("#") or ITEM.match(line):
            parts.append([])
        if not line.startswith("#"):
            parts[-1].append(ITEM.sub("", line, count=1).strip())
    for part in parts:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", " ".join(part))).replace("**", "")
        yield from (one for one in re.split(r"(?<=[.!?])\s+", plain) if one.strip())


def long_sentences(root, paths):
    faults = []
    for path in paths:
        for sentence in sentences_of(path.read_text(encoding="utf-8")):
            if (count := len(sentence.split())) > MOST_IN_SENTENCE:
                faults.append(f"{path.relative_to(root)}: a sentence of {count} words, at most {MOST_IN_SENTENCE} are allowed: {sentence}")
    return faults


def check_sentences(root):
    return long_sentences(root, sorted({path for pattern in FOR_USERS for path in root.glob(pattern)}))


CHECKS = [check_links, check_paths, check_options, check_constants, check_quotes, check_comments, check_sentences]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = [fault for check in CHECKS for fault in check(root)]
    print("\n".join(faults) if faults else "documents: true")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
