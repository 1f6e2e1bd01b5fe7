#!/usr/bin/env python3
"""
Makes the page of a run of bench/all, page.html, from its JSON alone.

usage: page.py DIR

On top: what ran where, the rows that are slower than a peer, and how many tests were right. Then what was left out, and
why; predicted against measured; and of each topic a plot and its rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lists import TOPICS
from report import COLOURS, Plot  # type: ignore[import-not-found]
from rows import Row, counts_of, rows_of
from store import Entry, parsed, write_atomically

STYLE = """body { font-family: sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; line-height: 1.4 }
table { border-collapse: collapse; margin: 1em 0; font-size: 90% }
th, td { border: 1px solid #ccc; padding: .2em .6em; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.slow { background: #fdecea } .bad { color: #a00; font-weight: bold } .small { color: #555; font-size: 90% }
svg { max-width: 60em; width: 100%; height: auto } h2 { border-bottom: 1px solid #ccc }"""
BLUE, RED = "#1b6ca8", "#c0392b"
MOST_ROWS = 400  # of a topic; the JSON has all


def number(value: float) -> str:
    """Four digits that count."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]], classes: Iterable[str] = ()) -> str:
    """In HTML; cells are escaped here, and those of digits stand right."""
    kinds = list(classes)
    lines = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    for place, cells in enumerate(rows):
        kind = f' class="{kinds[place]}"' if place < len(kinds) and kinds[place] else ""
        lines.append(
            f"<tr{kind}>"
            + "".join(f"<td{' class=n' if c[:1].isdigit() else ''}>{escape(c)}</td>" for c in cells)
            + "</tr>"
        )
    return "\n".join(lines) + "</table>\n"


class Run:
    """What a folder holds."""

    def __init__(self, folder: Path) -> None:
        """Reads. Throws ValueError where there is no run."""
        told = parsed(folder / "run.json")
        if not isinstance(told, dict) or "machine" not in told:
            raise ValueError(f"{folder}: there is no run.json of a run")
        self.about: dict[str, Any] = told
        self.entries: dict[str, Entry] = {}
        for path in sorted((folder / "topics").glob("*.json")):
            self.entries.update((parsed(path) or {"measurements": {}})["measurements"])
        self.rows: dict[str, list[Row]] = {}
        self.faults: dict[str, str] = {}
        for name, entry in self.entries.items():
            if entry["status"] not in ("done", "partial") or entry.get("result") is None:
                continue
            try:
                self.rows[name] = rows_of(entry)
            except ValueError as fault:
                self.faults[name] = str(fault)

    def topics(self) -> list[str]:
        """Those of the run, as the list has them, then others."""
        there = {str(entry["topic"]) for entry in self.entries.values()}
        return [topic for topic in TOPICS if topic in there] + sorted(there - TOPICS.keys())

    def of_topic(self, topic: str) -> list[tuple[str, Entry]]:
        """Its measurements that brought something."""
        return [(name, entry) for name, entry in self.entries.items() if entry["topic"] == topic and name in self.rows]

    def ratios(self, name: str, own: bool) -> list[tuple[Row, float]]:
        """A measurement's rows beside a peer, or beside another way of Imbrex, with its time over ours."""
        return [
            (one, one["peer_us"] / one["us"])
            for one in self.rows.get(name, [])
            if one.get("peer_us", 0) > 0 and one["us"] > 0 and bool(one.get("own")) == own
        ]

    def beside(self, own: bool) -> list[tuple[Entry, Row, float]]:
        """Rows beside a peer, or beside another way of Imbrex, with its time over ours; the worst first."""
        found = [(entry, one, ratio) for name, entry in self.entries.items() for one, ratio in self.ratios(name, own)]
        return sorted(found, key=lambda item: item[2])


def on_what(entry: Entry) -> str:
    """Whether times say something of links."""
    return "ranks share a card" if entry.get("shared") else ""


def head(run: Run) -> str:
    """What ran, where."""
    about, machine = run.about, run.about["machine"]
    lines = [f"<h1>Imbrex on {escape(machine['kind'])}</h1>"]
    told = [
        ("commit", about["commit"]),
        ("date", about["date"]),
        ("program", about["program"]),
        ("ranks", str(about["ranks"])),
        *machine["versions"].items(),
    ]
    for gpu in machine["gpus"]:
        clocks = [gpu.get(key, "?") for key in ("clocks.sm", "clocks.max.sm", "clocks.mem")]
        words = f"{gpu['name']}, {gpu.get('memory.total', '?')} MiB, {gpu.get('power.limit', '?')} W"
        words += f", clocks {clocks[0]} MHz of {clocks[1]} (SM) and {clocks[2]} (memory)"
        told.append((f"GPU {gpu.get('index', '')}", words))
    told += [(f"GPU {index}", f"left alone: {why}") for index, why in machine["in_use"].items()]
    told += [
        (one["what"], one["words"])
        for one in machine["doctor"]
        if one.get("what") in ("GPU links", "BLAS", "memory", "cores")
    ]
    lines.append(table(("what", "as found"), told))
    if about["mode"] == "shared":
        lines.append(
            '<p class="bad">Ranks share one GPU: a peer is the same memory, and times of several ranks say nothing '
            "about links. Such rows are marked.</p>"
        )
    if about["mode"] == "cpu":
        why = machine["lacks"].get("gpu", "there is no GPU")
        lines.append(
            f'<p class="bad">No GPU was used ({escape(why)}): this is the CPU executor, whose ranks share '
            f"{machine['cores']} cores.</p>"
        )
    status: dict[str, int] = {}
    for entry in run.entries.values():
        status[entry["status"]] = status.get(entry["status"], 0) + 1
    words = ", ".join(f"{count} {name}" for name, count in sorted(status.items()))
    lines.append(
        f"<p>{len(run.entries)} measurements: {words}; {about['taken_s']:.0f} s in {about['runs']} "
        f"run{'s' if about['runs'] != 1 else ''}, of {about['minutes']:g} minutes each at most.</p>"
    )
    return "\n".join(lines)


def correctness(run: Run) -> str:
    """Tests, counted."""
    rows, total = [], {"right": 0, "wrong": 0, "skipped": 0}
    for name, entry in run.of_topic("correctness"):
        counts = counts_of(entry)
        total = {key: total[key] + counts[key] for key in total}
        rows.append((name, *(str(counts[key]) for key in total), "cut off" if entry["status"] == "partial" else ""))
    if not rows:
        return ""
    wrong = f', <span class="bad">{total["wrong"]} wrong</span>' if total["wrong"] else ", none wrong"
    skipped = f", {total['skipped']} skipped or refused" if total["skipped"] else ""
    return f"<h2>Correctness</h2><p>{total['right']} right{wrong}{skipped}.</p>" + table(
        ("tests", "right", "wrong", "skipped or refused", ""), rows
    )


def below_peers(run: Run) -> str:
    """What comes first: where a peer is faster."""
    every, own = run.beside(False), run.beside(True)
    ways = f"<p>{sum(ratio < 1 for _, _, ratio in own)} of {len(own)} rows are slower than another way of Imbrex.</p>"
    if not every:
        return f"<h2>Rows below a peer</h2><p>No row has a peer here.</p>{ways if own else ''}"
    slow = [item for item in every if item[2] < 1]
    mean = math.exp(sum(math.log(ratio) for _, _, ratio in every) / len(every))
    text = (
        f"<h2>Rows below a peer</h2><p>{len(slow)} of {len(every)} rows that have a peer are slower than it; the "
        f"peer's time over ours is {mean:.3f} in the geometric mean.</p>{ways if own else ''}"
    )
    cells = [
        (
            entry["topic"],
            one["what"],
            one["way"],
            number(one["us"]),
            one["peer"],
            number(one["peer_us"]),
            f"{ratio:.3f}",
            "" if one.get("alone") else on_what(entry),
        )
        for entry, one, ratio in slow[:MOST_ROWS]
    ]
    head = ("topic", "what", "way", "us", "peer", "its us", "peer over ours", "note")
    return text + (table(head, cells) if cells else "")


def left_out(run: Run) -> str:
    """What is missing, and why."""
    cells = [
        (entry["topic"], name, entry["status"], str(entry.get("reason", "")))
        for name, entry in run.entries.items()
        if entry["status"] != "done"
    ]
    cells += [(run.entries[name]["topic"], name, "not read", why) for name, why in run.faults.items()]
    topics = [
        topic
        for topic in run.topics()
        if not any(e["status"] in ("done", "partial") for e in run.entries.values() if e["topic"] == topic)
    ]
    words = f" Topics of which nothing was measured: {', '.join(topics)}." if topics else ""
    return (
        "<h2>Left out</h2>"
        + (f"<p>{words}</p>" if words else "")
        + (table(("topic", "measurement", "", "reason"), cells) if cells else "<p>Nothing.</p>")
    )


def predicted(run: Run) -> str:
    """Predicted against measured, by topic."""
    entry = run.entries.get("predicted", {})
    result = entry.get("result")
    if not result:
        why = str(entry.get("reason", "the simulator has no machine file of this machine"))
        return f"<h2>Predicted against measured</h2><p>Left out: {escape(why)}.</p>"
    words = (
        f"Machine: {escape(result['machine'])}."
        if result["machine"]
        else f"No machine: {escape(result['why_no_machine'])}."
    )
    text = (
        f"<h2>Predicted against measured</h2><p>{words} Rows that the simulator refuses: {result['not_predicted']}; "
        f"no time for {result['too_late']}.</p>"
    )
    cells = [
        (topic, str(e["rows"]), f"{100 * e['mean']:.1f} %", f"{100 * e['largest']:.1f} %", "")
        for topic, e in result["errors"].items()
    ]
    cells += [(topic, "0", "", "", why) for topic, why in result["left_out"].items()]
    text += table(("topic", "rows", "mean error", "largest", "left out because"), cells)
    rows = result["rows"]
    if rows:
        plot = Plot(
            "Predicted over measured, a dot a row of the table below",
            2,
            0.5,
            "rows, in the order of the table",
            "predicted time over measured time",
        )
        for place, one in enumerate(rows):
            plot.dot(
                place / max(len(rows) - 1, 1), min(one["predicted_us"] / one["us"], 2), BLUE, 0.6, str(one["what"])
            )
        plot.level(1, "as measured: 1")
        text += plot.svg()
        text += table(
            ("topic", "what", "way", "measured us", "predicted us", "error"),
            [
                (
                    r["topic"],
                    r["what"],
                    r["way"],
                    number(r["us"]),
                    number(r["predicted_us"]),
                    f"{100 * (r['predicted_us'] / r['us'] - 1):+.1f} %",
                )
                for r in rows[:MOST_ROWS]
            ],
        )
    return text


def plot_of(title: str, rows: list[Row]) -> str:
    """The peer's time over ours of each row; empty without peers."""
    ratios = [(one["peer_us"] / one["us"], one) for one in rows if one.get("peer_us", 0) > 0 and one["us"] > 0]
    if len(ratios) < 2:
        return ""
    most = min(max(2.0, math.ceil(max(ratio for ratio, _ in ratios))), 8.0)
    plot = Plot(
        f"{title}: a dot a row of the table below",
        most,
        most / 4,
        "rows, in the order of the table",
        "the peer's time over ours",
        "{:.2g}",
    )
    for place, (ratio, one) in enumerate(ratios):
        colour = COLOURS.get(str(one["what"]).split(" ")[0].rstrip(","), BLUE) if ratio >= 1 else RED
        plot.dot(place / (len(ratios) - 1), min(ratio, most), colour, 0.8, f"{one['what']}: {ratio:.2f}")
    plot.level(1, "as fast as the peer: 1")
    return str(plot.svg())


def topic_section(run: Run, topic: str) -> str:
    """A topic's plot and rows."""
    text = f'<h2 id="{escape(topic)}">{escape(TOPICS.get(topic, topic))}</h2>'
    for name, entry in run.of_topic(topic):
        marks = [
            entry.get("title", ""),
            on_what(entry),
            "cut off: what it had measured" if entry["status"] == "partial" else "",
        ]
        text += f"<h3>{escape(name)}</h3><p>{escape('. '.join(mark for mark in marks if mark))}</p>"
        rows = run.rows[name]
        text += plot_of(name, rows)
        if isinstance(entry["result"], dict) and entry["result"].get("left_out"):
            words = f"No time for: {'; '.join(map(str, entry['result']['left_out']))}"
            text += f'<p class="small">{escape(words)}</p>'
        if entry["reader"] == "text":
            text += f"<pre>{escape(chr(10).join(map(str, entry['result']))[:8000])}</pre>"
        if not rows:
            continue
        cells, kinds = [], []
        for one in rows[:MOST_ROWS]:
            ratio = one["peer_us"] / one["us"] if one.get("peer_us", 0) > 0 and one["us"] > 0 else 0.0
            cells.append(
                (
                    one["what"],
                    one["way"],
                    number(one["us"]),
                    one.get("peer", ""),
                    number(one["peer_us"]) if ratio else "",
                    f"{ratio:.3f}" if ratio else "",
                )
            )
            kinds.append("slow" if 0 < ratio < 1 else "")
        text += table(("what", "way", "us", "peer", "its us", "peer over ours"), cells, kinds)
        if len(rows) > MOST_ROWS:
            text += f'<p class="small">{len(rows) - MOST_ROWS} further rows are in topics/{escape(topic)}.json.</p>'
    return text


def page(folder: Path) -> str:
    """The page's text."""
    run = Run(folder)
    topics = [topic for topic in run.topics() if topic not in ("correctness", "predicted") and run.of_topic(topic)]
    links = " · ".join(f'<a href="#{escape(topic)}">{escape(TOPICS.get(topic, topic))}</a>' for topic in topics)
    parts = [
        head(run),
        below_peers(run),
        correctness(run),
        left_out(run),
        predicted(run),
        f"<p>{links}</p>",
        *(topic_section(run, t) for t in topics),
    ]
    title = f"<title>Imbrex on {escape(run.about['machine']['kind'])}</title>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{title}'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def write(folder: Path) -> Path:
    """Writes it, and where."""
    path = folder / "page.html"
    write_atomically(path, page(folder))
    return path


def main(arguments: list[str]) -> int:
    """Makes the page of a folder."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    try:
        print(write(Path(arguments[0])))
    except (OSError, ValueError) as fault:
        print(f"page.py: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
