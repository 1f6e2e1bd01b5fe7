#!/usr/bin/env python3
"""Checks that documents, comments and messages use the field's words: words.json lists what to avoid, and what to say.

An entry's "avoid" are phrases that are found anywhere; its "told", phrases that are found in what users read: documents,
messages, docstrings and comments of public headers. Its "begins" are phrases with which no comment begins, since they lack the
noun. Words that have an everyday or an API's sense besides stand there inside phrases only. Its "names" are words that no
identifier of C++ has, alone or in a row; "kept" are identifiers that a file format or an API has given.

usage: check_words.py [ROOT]      prints each fault as file:line: what to avoid; what to say; exits 1 if there is one
"""

import io
import json
import re
import sys
import tokenize
from pathlib import Path

WORDS = "tests/structure/words.json"
FOLDERS = ("include", "src", "program", "apps", "cli", "python", "examples", "tests", "bench", "scripts", "cmake", "docs", "machines")
MESSAGES = ("include", "src", "program", "apps", "cli", "python")  # here string literals are read too: they are what users see
C_FAMILY = {".cpp", ".hpp", ".cu", ".cuh", ".c", ".h", ".def", ".inc"}
SHELL = {".cmake", ".sh", ".txt", ""}

C_TOKEN = re.compile(r'(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|'
                     r'"(?P<string>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*", re.M)
MARKS = re.compile(r"^[ \t]*(?://[/!]?|/?\*+/?|#)[ \t]?", re.M)
# A document without what it quotes: names in backquotes, and where links lead.
QUOTED = re.compile(r"^(```|~~~).*?^\1[ \t]*$|`[^`\n]+`|\]\([^)\s]+\)", re.M | re.S)
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
HASH_COMMENT = re.compile(r"(?:^|[ \t])#(?!!)[^\n]*", re.M)


def blank(match):
    """Stands for what was taken out: as many lines, and no word."""
    return " ` " + "\n" * match.group().count("\n")


def joined(pieces, text):
    """(line, words) of pieces (begin, end, words): those with nothing but white space between are one."""
    groups, last = [], None
    for begin, end, words in pieces:
        if last is not None and not text[last:begin].strip():
            groups[-1][1] += "\n" * text.count("\n", last, begin) + words
        else:
            groups.append([text.count("\n", 0, begin) + 1, words])
        last = end
    return groups


def c_texts(text, messages):
    text = DIRECTIVE.sub(lambda m: " " * len(m.group()), text)
    comments, strings = [], []
    for token in C_TOKEN.finditer(text):
        if token["comment"] is not None:
            comments.append((token.start(), token.end(), token["comment"]))
        elif messages and (words := token["raw"] if token["raw"] is not None else token["string"]) is not None:
            strings.append((token.start(), token.end(), words.replace("\\n", " ")))
    yield from ((*piece, True) for piece in joined(comments, text))
    yield from ((*piece, False) for piece in joined(strings, text))


def python_texts(text, messages):
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    comments, strings, statement = [], [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        place = lines[token.start[0] - 1] + token.start[1], lines[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.COMMENT:
            comments.append((*place, token.string))
        elif token.type == tokenize.STRING:
            if messages or statement:  # a string that begins a statement documents something
                strings.append((*place, re.sub(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string)))
        elif messages and token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            strings.append((*place, token.string))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    yield from ((*piece, True) for piece in joined(comments, text))
    yield from ((*piece, False) for piece in joined(strings, text))


def texts_of(path, messages):
    """(line, text, is it a comment) of all in a file that people read: its documents, comments and, if `messages`, strings."""
    text = path.read_text(encoding="utf-8", errors="replace")
    name = path.name.removesuffix(".in")
    suffix = "" if name == "CMakeLists.txt" else Path(name).suffix
    if suffix == ".md":
        yield 1, QUOTED.sub(blank, text), False
    elif suffix in C_FAMILY:
        yield from c_texts(text, messages)
    elif suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        yield from python_texts(text, messages)
    elif suffix in SHELL:
        comments = [(m.start(), m.end(), m.group().strip()) for m in HASH_COMMENT.finditer(text)]
        yield from ((*piece, True) for piece in joined(comments, text))


def pattern_of(say):
    """Finds any of the phrases: whole words, whatever white space lies between."""
    if not say:
        return re.compile(r"(?!)")
    found = (r"\s+".join(map(re.escape, phrase.split())) for phrase in sorted(say, key=len, reverse=True))
    return re.compile(rf"(?<![\w`-])(?:{'|'.join(found)})(?![\w`-])", re.I)


def names_in(path):
    """(line, identifier, its words) of the code of a file of C++, without comments and strings."""
    if Path(path.name.removesuffix(".in")).suffix not in C_FAMILY:
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    code = C_TOKEN.sub(lambda m: "\n" * m.group().count("\n"), DIRECTIVE.sub(lambda m: "", text))
    for number, line in enumerate(code.split("\n"), 1):
        for name in IDENTIFIER.findall(line):
            yield number, name, "_".join(part.lower() for part in PART.findall(name))


def is_told(where, is_comment):
    """Whether users read it."""
    return where.suffix == ".md" or where.parts[0] == "include" or (not is_comment and where.parts[0] in MESSAGES)


def matches_of(text, anywhere, begins, is_comment):
    yield from anywhere.finditer(text)
    if is_comment and (match := begins.match(text, len(text) - len(text.lstrip()))):
        yield match


def check_words(root):
    try:
        words = json.loads((root / WORDS).read_text(encoding="utf-8"))
        avoid, told, begin = ({phrase.lower(): entry["say"] for entry in words for phrase in entry.get(key, [])}
                              for key in ("avoid", "told", "begins"))
        anywhere, for_users, begins = pattern_of(avoid), pattern_of({**avoid, **told}), pattern_of(begin)
        names = {word: entry["say"] for entry in words for word in entry.get("names", [])}
        kept = {name for entry in words for name in entry.get("kept", [])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{WORDS}: {error!r}; it must hold a list of objects with say, and avoid, told or begins"]
    faults = []
    paths = sorted(root.glob("*.md")) + [path for folder in FOLDERS if (root / folder).is_dir()
                                         for path in sorted((root / folder).rglob("*")) if path.is_file()]
    for path in paths:
        where = path.relative_to(root)
        if any(part.startswith(".") or part in ("__pycache__", "corpus") for part in where.parts):
            continue
        for line, name, parts in names_in(path):
            faults += [f'{where}:{line}: {name}: no name has "{word}"; say {say}' for word, say in names.items()
                       if name not in kept and f"_{word}_" in f"_{parts}_"]
        for line, text, is_comment in texts_of(path, where.parts[0] in MESSAGES):
            text = MARKS.sub(lambda m: " " * len(m.group()), text)
            for match in matches_of(text, for_users if is_told(where, is_comment) else anywhere, begins, is_comment):
                found = " ".join(match.group().split()).lower()
                say = avoid.get(found) or told.get(found) or begin[found]
                faults.append(f'{where}:{line + text.count(chr(10), 0, match.start())}: avoid "{found}"; say {say}')
    return faults


CHECKS = [check_words]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = check_words(root)
    print("\n".join(faults) if faults else "words: the field's")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
