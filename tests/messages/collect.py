#!/usr/bin/env python3
"""Collects what the program, the library and the Python package can say of what they cannot do, from their sources.

usage: collect.py [ROOT]           prints each message as file:line: text, with ... for what is filled in
"""

import ast
import re
import sys
from pathlib import Path

FOLDERS = ("src", "program", "apps", "include", "cli", "python", "examples")
SUFFIXES = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".in"}
# What makes an error: its message is the first argument that holds one.
CALL = re.compile(r"\b(IMBREX_EXPECTS|Error|expect|\w*refuse\w*|fail|give_up|finding|record_and_throw|ValidationError|"
                  r"RefusedFlow|(?:runtime|logic)_error|Finding)\s*([({])")
# Where texts are put together for errors that are thrown elsewhere: every one of so many words is a message, or part of one.
FORMAT = re.compile(r"\bfmt::format\s*\(")
FORMATTING = ("src/runtime/", "src/execute/cuda/", "src/execute/cpu/", "src/ops/", "src/shmem/", "src/collectives/",
              "src/plan/check/", "src/plan/pairs.cpp")
LEAST_WORDS = 4
SAYS_WHY = ("program/limits/", "src/choose/reason")  # reasons for people, no errors
# Functions whose result is the reason of an error.
REASON = re.compile(r"^\s*(?:\[\[\w+\]\] )?(?:static |inline |constexpr |virtual )*(?:std::string(?:_view)?|const char\*) "
                    r"(?:\w+::)*(\w*(?:refus|why|reason|fault|captured|expect_nccl_environment|message)\w*)\(", re.M)
REASON_VARIABLE = re.compile(r"\b(?:why|reason|refusal|message|text_of_fault|fault)(?:_)?\s*(?:\+=|=)\s*(?!=)")
STRING = re.compile(r'(?:u8|L)?"((?:[^"\\\n]|\\.)*)"')
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'", "0": "", "r": ""}
FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*\}|%[-+ 0-9.]*(?:l|ll|z)?[diufgsxc]")
FILLED = "..."


def without_comments(text):
    """The text with its comments blanked, as long as before."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'', re.S)
    blank = lambda match: re.sub(r"[^\n]", " ", match.group()) if match.group().startswith("/") else match.group()
    return pattern.sub(blank, text)


def end_of(text, begin):
    """Behind the bracket that closes the one at `begin`."""
    depth, at = 0, begin
    while at < len(text):
        if text[at] == '"':
            match = STRING.match(text, at)
            at = match.end() if match else at + 1
            continue
        if text[at] == "'" and (match := re.compile(r"'(?:[^'\\\n]|\\.)'").match(text, at)):
            at = match.end()
            continue
        depth += text[at] in "([{"
        depth -= text[at] in ")]}"
        at += 1
        if depth == 0:
            return at
    return at


def split(text, separators):
    """Parts of an expression between separators that no bracket holds."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == '"' and (match := STRING.match(text, at)):
            at = match.end()
        elif text[at] == "'" and (match := re.compile(r"'(?:[^'\\\n]|\\.)'").match(text, at)):
            at = match.end()
        elif text[at] in "([{":
            at = end_of(text, at)
        elif text.startswith("::", at):
            at += 2
        elif text[at] in separators:
            parts.append(text[begin:at])
            at = begin = at + 1
        else:
            at += 1
    return [*parts, text[begin:]]


def unescaped(literal):
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match.group(1), match.group(1)), literal)


def filled(text):
    def fill(match):
        return match.group()[0] if match.group() in ("{{", "}}") else FILLED
    return FIELD.sub(fill, text)


def messages_of(expression):
    """Texts that a C++ expression may have; FILLED for what is none of its literals."""
    alternatives = split(expression, "?:")
    if len(alternatives) > 2:
        return [text for part in alternatives[1:] for text in messages_of(part)]
    texts = [""]
    for part in split(expression, "+"):
        part = part.strip()
        if found := STRING.match(part):
            literal = "".join(unescaped(each.group(1)) for each in STRING.finditer(part))
            texts = [text + filled(literal) for text in texts]
        elif call := re.match(r"(?:::)?(?:fmt::format|std::string)\s*([({])", part):
            inner = part[call.end():end_of(part, call.end() - 1) - 1]
            more = messages_of(split(inner, ",")[0]) or [FILLED]
            texts = [text + one for text in texts for one in more]
        elif part.startswith("(") and end_of(part, 0) == len(part):
            more = messages_of(part[1:-1]) or [FILLED]
            texts = [text + one for text in texts for one in more]
        else:
            texts = [text + FILLED for text in texts]
    return texts


def count_words(text):
    return len(re.findall(r"[A-Za-z][\w'-]+", text.replace(FILLED, " ")))


def messages_in_cpp(text, formatting=False):
    """Pairs of an offset and a message. `formatting`: whatever is formatted is one."""
    text = without_comments(text)
    found = []
    for call in CALL.finditer(text):
        begin = call.end() - 1
        arguments = split(text[begin + 1:end_of(text, begin) - 1], ",")
        if call.group(1) == "IMBREX_EXPECTS":
            arguments = arguments[1:]
        for argument in arguments:
            texts = [one for one in messages_of(argument) if one.strip(". ") != ""]
            if texts:
                found += [(call.start(), one) for one in texts]
                break
    for function in REASON.finditer(text):
        opening = end_of(text, function.end() - 1)
        brace = re.compile(r"[^;{]*\{").match(text, opening)
        if not brace:
            continue
        body_end = end_of(text, brace.end() - 1)
        for result in re.compile(r"\breturn\s+([^;]*);").finditer(text, brace.end(), body_end):
            found += [(result.start(), one) for one in messages_of(result.group(1).strip().lstrip("{").rstrip("}"))]
    for variable in REASON_VARIABLE.finditer(text):
        end = variable.end()
        expression = split(text[end:end + 2000], ";")[0]
        if '"' in expression:
            found += [(variable.start(), one) for one in messages_of(expression)]
    for call in FORMAT.finditer(text) if formatting else ():
        begin = call.end() - 1
        first = split(text[begin + 1:end_of(text, begin) - 1], ",")[0]
        found += [(call.start(), one) for one in messages_of(first) if count_words(one) >= LEAST_WORDS]
    return [(at, one) for at, one in found if count_words(one) > 1]


def text_of(node):
    """The text of a Python string, FILLED in an f-string's fields; None where it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else FILLED for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (text_of(node.left) or FILLED) + (text_of(node.right) or FILLED)
    return None


def texts_of(node):
    """The texts that an expression may be."""
    choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    return [one for choice in choices if (one := text_of(choice))]


def messages_in_python(text):
    """Pairs of a line and a message."""
    found = []
    tree = ast.parse(text)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and "why" in function.name.split("_"):
            returned = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
            found += [(node.lineno, one) for node in returned for one in texts_of(node.value) if count_words(one) > 0]
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else node
        if not isinstance(call, ast.Call):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if call is node and name not in ("expect", "_expect", "_refuse"):
            continue
        for argument in call.args:
            found += [(call.lineno, one) for one in texts_of(argument) if count_words(one) > 0]
    return found


def collect(root):
    """Triples of a file, a line and a message, each once a file."""
    messages, seen = [], set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root).as_posix()
            if path.suffix not in SUFFIXES | {".py"} or not path.is_file() or where.startswith(SAYS_WHY):
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".py":
                found = messages_in_python(text)
            else:
                formatting = where.startswith(FORMATTING)
                found = [(text.count("\n", 0, at) + 1, one) for at, one in messages_in_cpp(text, formatting)]
            for line, message in sorted(found):
                message = re.sub(r"\s+", " ", re.sub(r"(?:\.\.\.){2,}", FILLED, message)).strip()
                if (path, message) not in seen:
                    seen.add((path, message))
                    messages.append((where, line, message))
    return messages


def main(argv):
    for file, line, message in collect(Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]):
        print(f"{file}:{line}: {message}")


if __name__ == "__main__":
    main(sys.argv)
