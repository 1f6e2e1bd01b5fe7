#!/usr/bin/env python3
"""The Dockerfile: its lines are those that the image needs, and, asked for, they run in a bare Debian.

usage: dockerfile_test.py ROOT               looks at the lines
       dockerfile_test.py ROOT --run [DIR]   runs them in a new root that debootstrap makes, in DIR or a folder that goes away; exits
                                             with 77, aloud, where IMBREX_BARE_ROOT=1 is not in the environment (it compiles everything
                                             and takes half an hour), or there is no root's right, debootstrap or network
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
SUITES = {"debian:12": "bookworm"}
KNOWN = ("ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "CMD")


def lines_of(text):
    """[(instruction, the rest)], with what is continued joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def faults_of(root, text):
    lines = lines_of(text)
    faults = [f"{word}: not one of {', '.join(KNOWN)}" for word, _ in lines if word not in KNOWN]
    base = next((rest.split("=")[1] for word, rest in lines if word == "ARG" and rest.startswith("BASE=")), "")
    if base not in SUITES:
        faults.append(f"ARG BASE={base}: it must be one of {', '.join(SUITES)}")
    for word, rest in lines:
        for path in re.findall(r"(?:scripts|tests|bench)/[\w./-]+", rest) if word == "RUN" else []:
            if not os.access(root / path, os.X_OK):
                faults.append(f"{word} {rest}: {path} is no program of the tree")
        if word == "COPY" and not (root / rest.split()[0]).exists():
            faults.append(f"{word} {rest}: it does not exist")
    return faults


def check(root):
    text = (root / "Dockerfile").read_text()
    faults = faults_of(root, text)
    # What must be refused is refused.
    for wrong in (text.replace("scripts/build", "scripts/bild"), text.replace("debian:12", "debian:99"), text + "ADD x y\n", text + "COPY absent .\n"):
        if len(faults_of(root, wrong)) <= len(faults):
            faults.append(f"not refused: {set(wrong.splitlines()) - set(text.splitlines())}")
    print("\n".join(faults) or "Dockerfile: its lines are sound")
    return 1 if faults else 0


def skip(why):
    print(f"SKIPPED: the Dockerfile's lines did not run in a bare root: {why}")
    return SKIPPED


def make_root(folder, suite):
    made = subprocess.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, folder], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else made.stdout[-300:]


def connect(folder):
    """Names and certificates of this machine's network, which docker would give it."""
    for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"):
        if Path(path).exists():
            shutil.copy(path, folder + path)


def run(root, folder):
    if os.environ.get("IMBREX_BARE_ROOT") != "1":
        return skip("IMBREX_BARE_ROOT=1 asks for it; it takes half an hour")
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        return skip("it needs root's rights and debootstrap")
    lines = lines_of((root / "Dockerfile").read_text())
    base = next(rest.split("=")[1] for word, rest in lines if word == "ARG")
    if not Path(folder, "bin/sh").exists() and (why := make_root(folder, SUITES[base])):
        return skip(f"debootstrap failed: {why}")
    connect(folder)
    if subprocess.run(["mount", "-t", "proc", "proc", f"{folder}/proc"], check=False).returncode != 0:
        return skip("nothing can be mounted here")
    try:
        return run_lines(root, folder, lines)
    finally:
        subprocess.run(["umount", f"{folder}/proc"], check=False)


def run_lines(root, folder, lines):
    inside, variables = "/", {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    # The environment of this test says how many compilers may run.
    variables |= {name: os.environ[name] for name in ("CMAKE_BUILD_PARALLEL_LEVEL",) if name in os.environ}
    begin = time.monotonic()
    for word, rest in lines:
        if word == "WORKDIR":
            inside = rest
            Path(folder + inside).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True).stdout.split(b"\0")
            for name in filter(None, listed):
                to = Path(folder + inside, os.fsdecode(name))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / os.fsdecode(name), to)
        elif word == "ENV":
            name, value = rest.split("=", 1)
            variables[name] = value.replace(f"${name}", variables.get(name, ""))
        elif word in ("RUN", "CMD"):
            command = rest if word == "RUN" else " ".join(re.findall(r'"([^"]*)"', rest))
            done = subprocess.run(["chroot", folder, "/bin/sh", "-c", f"cd {inside} && {command}"], env=variables, capture_output=True, text=True, check=False)
            print(f"[{time.monotonic() - begin:5.0f} s] {word} {command}: {done.returncode}", flush=True)
            if done.returncode != 0:
                print(done.stdout[-3000:] + done.stderr[-3000:])
                return 1
            print(done.stdout[-1000:], flush=True)
    return 0


def main(argv):
    root = Path(argv[1]).resolve()
    if "--run" not in argv:
        return check(root)
    if len(argv) > 3:
        return run(root, argv[3])
    with tempfile.TemporaryDirectory() as folder:
        return run(root, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
