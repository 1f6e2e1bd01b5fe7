#!/usr/bin/env python3
"""What `imbrex simulate`, `plan` and `machine` answer, by the file answers.txt: a command, and what it prints, indented.

usage: answers_test.py PROGRAM ROOT [--write]
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = "# What commands print, each in a folder of its own that the ones above share. Written by answers_test.py --write.\n"


def answer(program, command, folder):
    done = subprocess.run([program, *shlex.split(command)[1:]], cwd=folder, capture_output=True, text=True)
    # On a busy machine a command says how long it has been at work.
    told = [line for line in done.stderr.splitlines() if not re.fullmatch(r"imbrex: .*: \d+ s so far", line)]
    text = done.stdout + "".join(f"{line}\n" for line in told)
    return "".join(f"    {line}\n" for line in [*text.splitlines(), *([f"exit {done.returncode}"] if done.returncode else [])])


def answers(program, commands):
    with tempfile.TemporaryDirectory() as folder:
        return [answer(program, command, folder) for command in commands]


def main():
    program, root = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    path = root / "tests/golden/answers.txt"
    text = path.read_text()
    commands = [line for line in text.splitlines() if line.startswith("imbrex ")]
    is_now = HEAD + "".join(f"{c}\n{a}" for c, a in zip(commands, answers(program, commands), strict=True))
    if "--write" in sys.argv[3:]:
        path.write_text(is_now)
        return 0
    if is_now == text:
        print(f"answers: {len(commands)} commands, all as they were")
        return 0
    was, now = text.splitlines(), is_now.splitlines()
    for line in was:
        if line not in now:
            print(f"- {line}")
    for line in now:
        if line not in was:
            print(f"+ {line}")
    print("Where that is meant, write the file anew by --write, and say in the commit why it changes.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
