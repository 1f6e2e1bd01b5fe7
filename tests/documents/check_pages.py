#!/usr/bin/env python3
"""Checks that the documents stay readable: budgets of words, the length of README, and the reader's test, whose
questions each have an answer that lies at most three links from README.

usage: check_pages.py [ROOT]          prints each fault as file: rule; exits 1 if there is one
"""

import json
import re
import sys
from pathlib import Path

README_LINES = 120
STEPS = 3
# Users' pages; contributors' have tests/structure/check_dev.py. check_docs.py there limits sentences.
PAGES = "docs/*.md"
MOST_WORDS = 15000
# Studies set published figures beside predictions. Who uses Imbrex reads none of them, so they have a budget of their own;
# what users must know stands on a page above. Tables, which are most of a study, are not counted.
STUDIES = "docs/studies/*.md"
MOST_WORDS_OF_STUDIES = 4000
QUESTIONS = "tests/documents/questions.json"

FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s#]*)(#[^)\s]*)?\)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")


def prose_of(text):
    """Its lines without code, tables and comments."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n", text), flags=re.S)
    return [line for line in text.split("\n") if not re.match(r"\s*\||    \S", line) or ITEM.match(line)]


def words_of(text):
    return sum(len(line.split()) for line in prose_of(text))


def check_budgets(root):
    faults = []
    for pages, most in ((PAGES, MOST_WORDS), (STUDIES, MOST_WORDS_OF_STUDIES)):
        count = sum(words_of(path.read_text(encoding="utf-8")) for path in root.glob(pages))
        faults += [f"{pages}: {count} words of prose, at most {most} are allowed"] if count > most else []
    lines = (root / "README.md").read_text(encoding="utf-8").count("\n")
    return faults + ([f"README.md: {lines} lines, at most {README_LINES} are allowed"] if lines > README_LINES else [])


def links_of(root, page):
    """Pages that a page links to, as paths from the root."""
    text = FENCE.sub("", (root / page).read_text(encoding="utf-8"))
    return {str(((root / page).parent / name).resolve().relative_to(root.resolve())) for name, _ in LINK.findall(text)
            if name and ":" not in name and ((root / page).parent / name).is_file()}


def check_questions(root):
    """Each page of a question's route links to the next one, and the last one says what the question is answered by."""
    faults = []
    for question in json.loads((root / QUESTIONS).read_text(encoding="utf-8")):
        asked, route = question["question"], ["README.md", *question["route"]]
        if not 2 <= len(route) <= STEPS + 1:
            faults.append(f"{QUESTIONS}: {asked}: {len(route) - 1} steps from README.md; 1 to {STEPS} are allowed")
        missing = [page for page in route if not (root / page).is_file()]
        if missing:
            faults.append(f"{QUESTIONS}: {asked}: {missing[0]} does not exist")
            continue
        for page, following in zip(route, route[1:]):
            if following not in links_of(root, page):
                faults.append(f"{page}: does not link to {following}, where this is answered: {asked}")
        if question["answer"] not in (root / route[-1]).read_text(encoding="utf-8"):
            faults.append(f"{route[-1]}: does not say '{question['answer']}', which answers: {asked}")
    return faults


CHECKS = [check_budgets, check_questions]


def main(argv):
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[2]
    faults = [fault for check in CHECKS for fault in check(root)]
    print("\n".join(faults) if faults else "pages: readable")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
