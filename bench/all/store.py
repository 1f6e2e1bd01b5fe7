"""The results of a run: a JSON file a topic in one folder, each complete at all times."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# done: measured. partial: cut off, with what it had written. failed, left out: "reason" says why.
STATUSES = ("done", "partial", "failed", "left out")
Entry = dict[str, Any]


def write_atomically(path: Path, text: str) -> None:
    """A reader of the file sees what it was, or all of this."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


class Store:
    """What is known of each measurement."""

    def __init__(self, folder: Path, make: bool = True) -> None:
        """Reads what an earlier run left there, and makes it. Throws ValueError where a file is none of its own."""
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        for name in ("topics", "raw") if make else ():
            (folder / name).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / "topics").glob("*.json")):
            try:
                kept: dict[str, Entry] = json.loads(path.read_text(encoding="utf-8"))["measurements"]
                if any(entry["status"] not in STATUSES or entry["topic"] != path.stem for entry in kept.values()):
                    raise ValueError("a status or a topic that is none")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}: no results of bench/all: {error}") from error
            self.entries.update(kept)

    def put(self, name: str, entry: Entry) -> None:
        """Keeps what is known of a measurement, in its topic's file."""
        self.entries[name] = entry
        of_topic = {n: e for n, e in self.entries.items() if e["topic"] == entry["topic"]}
        write_json(
            self.folder / "topics" / f"{entry['topic']}.json", {"topic": entry["topic"], "measurements": of_topic}
        )

    def status(self, name: str) -> str:
        """One of STATUSES; empty where nothing is known."""
        return str(self.entries.get(name, {}).get("status", ""))

    def raw(self, name: str, kind: str = "json") -> Path:
        """Where a measurement's child writes."""
        return self.folder / "raw" / f"{name}.{kind}"


def parsed(path: Path) -> Any:
    """The JSON of a file; None where there is none, or not all of it yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
