#!/usr/bin/env python3
"""Runs the commands of the documents, page by page, and compares what they print with what the page shows, except numbers.

usage: commands_test.py PROGRAM [PAGE...]      the program `imbrex` of a build; without pages, README.md and docs/*.md

The program's own commands run in a folder of their own. Those that need GPUs run where IMBREX_DOCUMENTS_ON_GPUS=1 is in the
environment; elsewhere no GPU is to be seen, and each must be refused for that reason alone. commands.json says of
other commands what tests them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
from samples import commands, documents, read  # noqa: E402

OURS = re.compile(r"(?:[A-Z_]+=\S+ )*imbrex ")
WANTS_GPUS = re.compile(r"--device cuda|imbrex (?:tune|bench)(?! .*--device cpu)|_gpu\b|mlp_on_gpus")
NO_GPUS = re.compile(r"GPU|NVIDIA driver|CUDA|No such file|cannot be started")
ON_GPUS = os.environ.get("IMBREX_DOCUMENTS_ON_GPUS") == "1"
LIMIT = 300


def mask(line):
    """A line without its numbers: those of a machine differ from another's."""
    return " ".join(re.sub(r"\.\.\.|-?\d[\d.]*(?:e[+-]?\d+)?", "#", line).split())


def lay_out(folder, program):
    """What commands find: the program on PATH, the build's other programs, folders of the tree."""
    (folder / "bin").mkdir()
    (folder / "bin/imbrex").symlink_to(program)
    (folder / "build").symlink_to(program.parent.parent)
    (folder / "machines/tuned").mkdir(parents=True)
    for name in ("bench", "examples"):
        (folder / name).symlink_to(ROOT / name)


def cannot_start(line):
    """Whether its program is a file of the tree that a shell refuses to start."""
    program = ROOT / line.split()[0]
    return program.is_file() and not os.access(program, os.X_OK)


def run_page(program, page, elsewhere):
    """Faults of a page, and how many of its commands ran."""
    faults, ran = [], 0
    where = page.relative_to(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, program)
        environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        if not ON_GPUS:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        for lines, shown, files in commands(read(page)):
            for file, text in files.items():
                (folder / file).write_text(text)
            printed, complete = "", True
            for line in lines:
                if cannot_start(line):
                    faults.append(f"{where}: {line}: the file is not executable")
                if any(re.match(pattern, line) for pattern in elsewhere):
                    complete = complete and line.startswith("export ")
                    continue
                if not OURS.match(line):
                    faults.append(f"{where}: {line}: no test runs it (tests/documents/commands.json)")
                    continue
                done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
                printed += done.stdout
                ran += 1
                if done.returncode == 0:
                    continue
                complete = False
                if ON_GPUS or not WANTS_GPUS.search(line) or not NO_GPUS.search(done.stdout + done.stderr):
                    faults.append(f"{where}: {line}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
            came = [mask(line) for line in printed.split("\n")]
            for line in shown.split("\n") if complete else []:
                if line.strip() and mask(line) not in came:
                    faults.append(f"{where}: {'; '.join(lines)}: does not print: {line}")
    return faults, ran


def main(argv):
    program = Path(argv[1]).resolve()
    pages = [ROOT / name for name in argv[2:]] or documents(ROOT)
    elsewhere = json.loads(read(HERE / "commands.json"))
    faults, ran = [], 0
    for page in pages:
        found, count = run_page(program, page, elsewhere)
        faults, ran = faults + found, ran + count
    for pattern, told in elsewhere.items():
        if not (ROOT / told["test"]).exists():
            faults.append(f"tests/documents/commands.json: {pattern}: {told['test']} does not exist")
    if not argv[2:] and ran < 20:
        faults.append(f"only {ran} commands of the documents ran")
    print("\n".join(faults) if faults else f"commands: {ran} ran")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
