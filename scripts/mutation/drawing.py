"""Draws mutants: what one line of a source could be instead, from a seed."""

import io
import random
import re
import tokenize
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    room: str
    file: str
    line: int  # from 1
    operator: str
    before: str
    after: str


# ------------------------------------------------------------------------------- what of a line is code

# Text that is no code, and what stands in for it, one character for each, so that places stay.
PLAIN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'', re.S)
FOR_DEVICES = re.compile(r"^\s*#\s*(?:if|elif|ifdef)\b(?!.*!).*\b__(?:CUDA_ARCH|CUDACC)__\b")
NOT_FOR_DEVICES = re.compile(r"^\s*#\s*(?:ifndef|if\s*!)\s*.*\b__(?:CUDA_ARCH|CUDACC)__\b")


def code_of_cpp(text):
    """The lines with blanks for comments, strings, preprocessor lines, and what only a device compiles."""
    blank = PLAIN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    lines, nested, continued = [], [], False
    for line in blank.splitlines():
        directive = continued or line.lstrip().startswith("#")
        if not continued and directive:
            if re.match(r"\s*#\s*if", line):
                nested.append(bool(FOR_DEVICES.match(line)) and not NOT_FOR_DEVICES.match(line))
            elif re.match(r"\s*#\s*el", line) and nested:
                nested[-1] = bool(FOR_DEVICES.match(line))
            elif re.match(r"\s*#\s*endif", line) and nested:
                nested.pop()
        continued = directive and line.endswith("\\")
        lines.append(" " * len(line) if directive or any(nested) else line)
    return lines


def code_of_python(text):
    """The lines with blanks for comments and strings."""
    lines = [list(line) for line in text.splitlines()]
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        inside = depth > 0
        depth += {"FSTRING_START": 1, "FSTRING_END": -1}.get(name, 0)
        if name not in ("COMMENT", "STRING", "FSTRING_START", "FSTRING_END") and not inside:
            continue
        (row, begin), (last, end) = token.start, token.end
        for at in range(row, last + 1):
            line = lines[at - 1]
            for column in range(begin if at == row else 0, min(end if at == last else len(line), len(line))):
                line[column] = " "
    return ["".join(line) for line in lines]


# ---------------------------------------------------------------------------------------------- operators
# Each yields (begin, end, text): what takes the place of a part of the line. `code` is the line with blanks.

OPPOSITE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def boundary(code):
    for match in re.finditer(r"(?<=[ ])(<=|>=|<|>)(?= )", code):
        yield match.start(), match.end(), OPPOSITE[match[0]]


def off_by_one(code):
    for match in re.finditer(r" ([+-]) 1(?![\w.'])", code):
        yield match.start(), match.end(), ""
        yield match.start(), match.end(), f" {'-' if match[1] == '+' else '+'} 1"
    for match in re.finditer(r"(\+\+|--)(?=\w)|(?<=[\w\])])(\+\+|--)", "" if "for (" in code else code):
        yield match.start(), match.end(), "--" if match[0] == "++" else "++"


def operands_around(code, joint):
    """Begin and end of the part of the line whose operands the joints (&&, ||, and, or) join, and those joints."""
    at, begin, end = joint.start(), 0, len(code.rstrip())
    depth = 0
    for i in range(at - 1, -1, -1):
        depth += code[i] in ")]}"
        depth -= code[i] in "([{"
        if depth < 0 or (depth == 0 and (code[i] in ",;" or re.match(r" (?:=|\?|:|return|if|while|else) ", code[i:]))):
            begin = i + (1 if depth < 0 or code[i] in ",;" else len(re.match(r" \S+ ", code[i:])[0]))
            break
    word = re.match(r"\s*(?:(?:return|if|elif|while) |[\w:<>&*\[\]. ]+ = )?", code[begin:])
    begin += len(word[0])
    depth = 0
    for i in range(joint.end(), len(code)):
        depth += code[i] in "([{"
        depth -= code[i] in ")]}"
        if depth < 0 or (depth == 0 and (code[i] in ",;" or re.match(r" (?:\?|:|if|else|for) |:\s*$", code[i:]))):
            end = i
            break
    joints, depth = [], 0
    for match in re.finditer(r"[(\[{]|[)\]}]| && ?| \|\| ?| and | or ", code[begin:end]):
        depth += match[0] in "([{"
        depth -= match[0] in ")]}"
        if depth == 0 and match[0].strip() in ("&&", "||", "and", "or"):
            joints.append((begin + match.start(), begin + match.end()))
    return begin, end, joints


def condition(code):
    seen = set()
    for joint in re.finditer(r" (?:&&|\|\|)(?: |$)| (?:and|or) ", code):
        begin, end, joints = operands_around(code, joint)
        bounds = [(begin, begin), *joints, (end, end)]
        for i in range(len(bounds) - 1):
            (own, first), (last, behind) = bounds[i], bounds[i + 1]
            if not code[first:last].strip():
                continue
            # With the joint that follows; the last operand with the one before.
            cut = (first, behind) if i + 2 < len(bounds) else (own, last)
            if cut not in seen:
                seen.add(cut)
                yield *cut, ""


EXTREMES = {"min": "max", "max": "min", "smaller": "larger", "larger": "smaller",
            "min_element": "max_element", "max_element": "min_element"}


def extreme(code):
    for match in re.finditer(r"\b(min|max|smaller|larger|min_element|max_element)(?=[(<])", code):
        yield match.start(), match.end(), EXTREMES[match[0]]


CALL = re.compile(r"^(\s*)(?!return\b|throw\b|delete\b|new\b|using\b|static_assert\b|assert\b|raise\b|del\b|yield\b)"
                  r"(?:[\w:]+(?:<[\w:, ]*>)?(?:\[[^\]]*\])?(?:\.|->))*[\w:]+(?:<[\w:, ]*>)?\((.*)\)(;?)\s*$")


def call(code, python=False):
    match = CALL.match(code)
    if match is None or (match[3] == "") != python:
        return
    depth = 0
    for letter in match[2]:
        depth += letter in "([{"
        depth -= letter in ")]}"
        if depth < 0:
            return
    if depth == 0:
        yield len(match[1]), len(code.rstrip()), "pass" if python else "{}"


def negation(code):
    for match in re.finditer(r"(?<= )(==|!=)(?= )", code):
        yield match.start(), match.end(), "!=" if match[0] == "==" else "=="
    for match in re.finditer(r" is not None\b| is None\b", code):
        yield match.start(), match.end(), " is None" if "not" in match[0] else " is not None"
    for match in re.finditer(r"\b(?:if|while) \(", code):
        depth = 1
        for end in range(match.end(), len(code)):
            depth += code[end] == "("
            depth -= code[end] == ")"
            if depth == 0:
                yield match.end(), end, ("!(", ")")
                break
    if match := re.match(r"\s*(?:if|elif|while) (?=.*:\s*$)", code):
        yield match.end(), code.rstrip().rindex(":"), ("not (", ")")


def constant(code):
    for match in re.finditer(r"(?<![\w.'])(\d+)(?=[uUlL]*(?![\w.']))", code):
        yield match.start(), match.end(), str(int(match[0]) + 1)
        if int(match[0]) > 1:
            yield match.start(), match.end(), str(int(match[0]) - 1)
    for match in re.finditer(r"(?<![\w.])(\d+\.\d+)(?=f?\b)", code):
        yield match.start(), match.end(), str(2 * float(match[0]) + (float(match[0]) == 0))
    for match in re.finditer(r"(?<=\dp)([+-]?\d+)(?=f?\b)", code):
        yield match.start(), match.end(), f"{int(match[0]) + 1:{'+' if match[0][0] == '+' else ''}d}"
    words = {"true": "false", "false": "true", "True": "False", "False": "True"}
    for match in re.finditer(r"\b(?:true|false|True|False)\b", code):
        yield match.start(), match.end(), words[match[0]]


OPERATORS = {"boundary": boundary, "off_by_one": off_by_one, "condition": condition, "extreme": extreme, "call": call,
             "negation": negation, "constant": constant}


# ------------------------------------------------------------------------------------------------ the draw


def mutants_of(room, name, text):
    """Every mutant of a source."""
    python = name.endswith(".py")
    lines = text.splitlines()
    for number, (line, code) in enumerate(zip(lines, code_of_python(text) if python else code_of_cpp(text), strict=True), 1):
        if not code.strip() or re.match(r"\s*(?:template\b|static_assert\b|using\b|import\b|from\b|@)", code):
            continue
        for operator, cases in OPERATORS.items():
            for begin, end, put in cases(code, python) if operator == "call" else cases(code):
                around = put if isinstance(put, tuple) else None
                middle = around[0] + line[begin:end] + around[1] if around else put
                after = (line[:begin] + middle + line[end:]).rstrip()
                if after != line:
                    yield Mutant(room, name, number, operator, line, after)


def draw(rooms, seed):
    """All mutants of the rooms' sources in an order that follows from the seed: each time an operator, then one of its
    mutants. `rooms`: by name, the text of each source by its path."""
    left = {}
    for room, sources in sorted(rooms.items()):
        for name, text in sorted(sources.items()):
            for mutant in mutants_of(room, name, text):
                left.setdefault(mutant.operator, []).append(mutant)
    chance = random.Random(seed)
    while left:
        operator = chance.choice(sorted(left))
        yield left[operator].pop(chance.randrange(len(left[operator])))
        if not left[operator]:
            del left[operator]
