#!/usr/bin/env python3
"""Every message that the sources can give has an entry in docs/reference/messages.md, with cause and remedy.

usage: messages_test.py             checks; names each message without an entry by its file and line
       messages_test.py --write     writes the page anew from docs/reference/messages.json and the sources
"""

import fnmatch
import functools
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

import collect

ROOT = Path(__file__).resolve().parents[2]
DATA = Path("docs/reference/messages.json")
PAGE = Path("docs/reference/messages.md")
# What others say: Python, the system, NCCL.
FOREIGN = ("No module named 'imbrex'", "unhandled system error", "No space left on device")
HEAD = """# Messages

Every message that the library, the program and the Python package can give about what they cannot do, with its cause
and what to do about it. Search this page for words of the message; `...` stands for what is filled in. What users meet
most is in [troubleshooting](../troubleshooting.md), at more length.

Made by `tests/messages/messages_test.py --write` from the sources and `docs/reference/messages.json`.
"""


@functools.cache
def messages_here():
    return collect.collect(ROOT)


def families(data):
    return [family for topic in data for family in topic["families"]]


def takes(family, file, message):
    """Whether the message of that file is one of the family's."""
    return (any(fnmatch.fnmatch(file, pattern) for pattern in family.get("files", ["*"]))
            and any(re.search(pattern, message) for pattern in family.get("match", [""])))


def sort(data, messages):
    """Messages by family, in the families' order, and those that no family takes. The first that does gets it."""
    sorted_, without = [[] for _ in families(data)], []
    for file, line, message in messages:
        place = next((i for i, family in enumerate(families(data)) if takes(family, file, message)), None)
        if place is None:
            without.append((file, line, message))
        elif message not in sorted_[place]:
            sorted_[place].append(message)
    return sorted_, without


def code(message):
    return f"`` {message} ``" if "`" in message else f"`{message}`"


def page(data, sorted_):
    lines, lists = [HEAD], iter(sorted_)
    for topic in data:
        lines.append(f"## {topic['topic']}\n")
        for family in topic["families"]:
            lines += [f"### {family['title']}\n", f"**Cause.** {family['cause']}\n", f"**Remedy.** {family['remedy']}\n"]
            lines += [*(f"- {code(message)}" for message in sorted(next(lists))), ""]
    return "\n".join(lines).rstrip() + "\n"


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = json.loads((ROOT / DATA).read_text(encoding="utf-8"))
        cls.messages = messages_here()
        cls.sorted, cls.without = sort(cls.data, cls.messages)

    def test_every_message_has_an_entry(self):
        self.assertGreater(len(self.messages), 1000)
        said = "\n".join(f"{file}:{line}: no family of {DATA} takes: {message}" for file, line, message in self.without)
        self.assertEqual(said, "")

    def test_every_family_has_messages_and_words(self):
        for family, messages in zip(families(self.data), self.sorted):
            with self.subTest(family=family["title"]):
                self.assertTrue(messages, "no message is of this family any more")
                self.assertTrue(family["cause"] and family["remedy"])
                for named in re.findall(r"docs/[\w./-]+\.md", family["cause"] + family["remedy"]):
                    self.assertTrue((ROOT / named).is_file(), named)

    def test_the_page_is_what_the_sources_say(self):
        old = (ROOT / PAGE).read_text(encoding="utf-8").splitlines() if (ROOT / PAGE).is_file() else []
        new = page(self.data, self.sorted).splitlines()
        places = {message: f"{file}:{line}" for file, line, message in reversed(self.messages)}
        told = {line[2:] for line in old if line.startswith("- ")}
        missing = [f"{places[message]}: {message}" for message in places if code(message) not in told]
        self.assertEqual("\n".join(missing), "", f"not on {PAGE} yet; look where they belong, then messages_test.py --write")
        self.assertEqual(old, new, f"{PAGE} is old: messages_test.py --write")


class Troubleshooting(unittest.TestCase):
    """The page for what users meet most quotes messages as they are."""

    QUOTE = re.compile(r"^\| `([^`]+)`", re.M)

    def test_quoted_messages_exist(self):
        messages = "\n".join(message for _, _, message in messages_here())
        quotes = self.QUOTE.findall((ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(quotes), 25)
        self.assertEqual([quote for quote in quotes if quote not in messages and quote not in FOREIGN], [])


class Collecting(unittest.TestCase):
    """What is found in sources, and what is not."""

    def cpp(self, text):
        return [message for _, message in collect.messages_in_cpp(text)]

    def test_cpp(self):
        for text, says in (
                ('IMBREX_EXPECTS(x > 0, "x = {}: it must be " "positive", x);', ["x = ...: it must be positive"]),
                ('throw Error(ErrorCode::unsound, fmt::format("plan {} is {{bad}}: {:.3g}", a, "none of these"));',
                 ["plan ... is {bad}: ..."]),
                ('IMBREX_EXPECTS(a.empty(), "{}", a);', []),
                ('if (b) refuse(c ? "it is too large" : "it is too small");', ["it is too large", "it is too small"]),
                ('// refuse("not in a comment");', []),
                ('std::string refusal_of(int x) { if (x) return "too many of them"; return {}; }', ["too many of them"]),
                ('call("not an error at all");', []),
                ('throw Error(code, "file \\"" + name + "\\" is bad");', ['file "..." is bad'])):
            with self.subTest(text=text):
                self.assertEqual(self.cpp(text), says)

    def test_python(self):
        text = 'raise InvalidInput(f"x is {x}: it must be 1")\nexpect(ok, "shapes")\nprint("no error")\nraise InvalidInput("or a" if b else "or b")\n'
        text += 'def why_not(x):\n    if x:\n        return f"{x} rows"\n    return None if x is None else "why"\ndef text():\n    return "none"\n'
        self.assertEqual({message for _, message in collect.messages_in_python(text)},
                         {"x is ...: it must be 1", "shapes", "or a", "or b", "... rows", "why"})

    def test_a_new_message_is_found_with_its_place(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "src").mkdir()
            (Path(folder) / "src/new.cpp").write_text('\nvoid f() { throw Error(ErrorCode::unsound, "quite new words"); }\n')
            messages = collect.collect(Path(folder))
        self.assertEqual(messages, [("src/new.cpp", 2, "quite new words")])
        self.assertEqual(sort([{"topic": "", "families": [{"files": ["src/old.cpp"]}]}], messages)[1], messages)


def write():
    data = json.loads((ROOT / DATA).read_text(encoding="utf-8"))
    (ROOT / PAGE).write_text(page(data, sort(data, messages_here())[0]), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main()
