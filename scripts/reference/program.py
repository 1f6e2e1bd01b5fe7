"""Pages made by the program: its commands, the environment that it reads, and what runs where."""

import json
import os
import re
import subprocess
import sys

SCRIPTS = [["bench", "all"]]  # whose help is Python's, which differs from version to version


def said(program, *arguments):
    """What the program prints, without the caller's environment."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "ASAN_OPTIONS") if name in os.environ}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=120)
    if done.returncode != 0:
        sys.exit(f"docs: {program} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def command_page(program):
    lines = ["# The command line", "", "What `imbrex COMMAND --help-all` prints.", ""]

    def add(command):
        text = said(program, *command, "--help-all").rstrip()
        lines.extend([f"## `{' '.join(['imbrex', *command])}`", "", "```text", text, "```", ""])
        if "\nCommands:\n" in text:
            listed = text.split("\nCommands:\n")[1].split("\n\n")[0]
            for name in re.findall(r"^  (\w+) ", listed, re.M):
                if [*command, name] not in SCRIPTS:
                    add([*command, name])

    add([])
    return "\n".join(lines)


def environment_page(program):
    lines = ["# Environment variables", "", "Imbrex reads these and no others; `imbrex env` prints them with their values. CUDA and NCCL read",
             "their own. An empty variable counts as not set. What NCCL needs from the environment: [launching](../launching.md#nccl).", "",
             "| variable | type | default | meaning |", "|---|---|---|---|"]
    for one in variables(program):
        default = f"`{one['default']}`" if one["default"] else ""
        lines.append(f"| `{one['name']}` | {one['type']} | {default} | {one['description'].replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def variables(program):
    text = said(program, "env", "--json", "-")
    return json.loads(text[text.index("["):])


def pages(program):
    return {"command-line.md": command_page(program), "environment.md": environment_page(program),
            "limits.md": said(program, "doctor", "--limits")}
