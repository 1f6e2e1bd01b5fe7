#!/usr/bin/env python3
"""
Makes bench/results/all.md from bench/results/all/MACHINE, a folder each run of `imbrex bench all` that was taken.

usage: tables.py [--check]    --check: changes nothing, and fails where the page is not what the results say
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from page import Run, number, on_what  # noqa: E402
from report import geometric_mean, heading, line, write_or_check  # type: ignore[import-not-found]  # noqa: E402
from rows import counts_of  # noqa: E402

DOCUMENT = ROOT / "bench/results/all.md"
HEAD = """# Everything, by machine

<!-- made by bench/all/tables.py -->
What [`imbrex bench all`](../../docs/benchmarks.md) measured on each machine.
*Peer over ours* is the peer's time over ours. Rows below a peer stand first, the worst of them on top.
"""


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """In Markdown."""
    lines = [line([cell.replace("|", "\\|") for cell in cells]) for cells in rows]
    return [*heading(head), *lines] if rows else ["None."]


def summary(run: Run) -> list[list[str]]:
    """A measurement's rows beside peers, in short."""
    found = []
    for name, entry in run.entries.items():
        if ratios := [ratio for _, ratio in run.ratios(name, False)]:
            words = [entry["topic"], f"`{name}`", entry["title"], str(len(ratios))]
            found.append(
                [*words, f"{geometric_mean(ratios):.3f}", f"{min(ratios):.3f}", str(sum(ratio < 1 for ratio in ratios))]
            )
    return found


def tests(run: Run) -> str:
    """Counted."""
    every = [counts_of(entry) for _, entry in run.of_topic("correctness")]
    right, wrong, skipped = (sum(counts[key] for counts in every) for key in ("right", "wrong", "skipped"))
    return f"Tests of several ranks: {right} right, {wrong} wrong, {skipped} skipped or refused."


def predictions(run: Run) -> list[str]:
    """Error by topic, where the simulator has the machine."""
    result = run.entries.get("predicted", {}).get("result")
    if not result or not result["errors"]:
        return []
    words = [
        [topic, str(e["rows"]), f"{e['mean']:.1%}", f"{e['largest']:.1%}"] for topic, e in result["errors"].items()
    ]
    return ["", "Predicted against measured:", "", *table(["topic", "rows", "mean error", "largest"], words)]


def section(folder: Path) -> list[str]:
    """A machine's."""
    run = Run(folder)
    about, machine = run.about, run.about["machine"]
    versions = ", ".join(f"{name} {text}" for name, text in machine["versions"].items() if name != "kernel")
    slow = [
        [entry["topic"], one["what"], one["way"], number(one["us"]), one["peer"], number(one["peer_us"]),
         f"{ratio:.3f}", "" if one.get("alone") else on_what(entry)]
        for entry, one, ratio in run.beside(False) if ratio < 1
    ]  # fmt: skip
    missing = [
        [entry["topic"], f"`{name}`", entry["status"], str(entry.get("reason", ""))]
        for name, entry in run.entries.items()
        if entry["status"] != "done"
    ]
    shared = (
        " Its ranks share the GPU, so times of several ranks say nothing about links."
        if about["mode"] == "shared"
        else ""
    )
    head = ["topic", "what", "plan or call", "us", "peer", "its us", "peer over ours", "note"]
    return [
        "",
        f"## {machine['kind']}, {about['ranks']} ranks",
        "",
        f"Commit {about['commit']}, {about['date']}, {about['taken_s']:.0f} s; {versions}.{shared} {tests(run)}",
        "",
        f"### Rows below a peer, {machine['kind']}",
        "",
        *table(head, slow),
        "",
        f"### By measurement, {machine['kind']}",
        "",
        *table(
            ["topic", "measurement", "what", "rows", "peer over ours, geometric mean", "least", "rows below"],
            summary(run),
        ),
        *predictions(run),
        "",
        f"### Not measured, {machine['kind']}",
        "",
        *table(["topic", "measurement", "", "reason"], missing),
    ]


def document() -> str:
    """The page."""
    folders = sorted((ROOT / "bench/results/all").iterdir(), reverse=True)
    return HEAD + "\n".join(text for folder in folders for text in section(folder)) + "\n"


if __name__ == "__main__":
    write_or_check({DOCUMENT: document()}, sys.argv[1:] == ["--check"], "bench/all/tables.py")
