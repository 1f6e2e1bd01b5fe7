"""What is measured: a list of these, which is data, and can be read from a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

# Correctness first; then times; then a machine that is fitted to these, and what it predicts.
PHASES = ("correctness", "times", "fit", "prediction")


@dataclass(frozen=True)
class Measurement:
    """One child process, what it is worth, and what it needs."""

    name: str  # its own, of letters, digits, '-' and '_'
    topic: str
    weight: float  # where there is no time for all, those of larger weight are taken
    seconds: float  # expected
    command: list[str]  # with {program}, {bin}, {bench}, {out}, {seconds}, {dir}, {nvshmem} ... in its words
    reader: str = "bench"  # what makes rows of its result (rows.py)
    title: str = ""
    output: str = "file"  # where its result is: file ({out}), stdout (JSON), text (lines of stdout)
    needs: list[str] = field(default_factory=list)  # what there must be: names (machine.py), bin:NAME, !NAME
    codes: list[int] = field(default_factory=lambda: [0])  # exit codes by which it has measured
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 0  # so many processes of torch are started; 0: the command is one process
    phase: int = 1  # of PHASES
    mps: bool = False  # its processes share a GPU, at once under MPS
    memory_gib: float = 2  # of each GPU; nothing on the CPU
    one_gpu: bool = False  # it takes one; where there are several, others that take one run at the same time

    @property
    def limit(self) -> float:
        """Seconds after which it is taken for hung."""
        return max(2 * self.seconds, self.seconds + 15)


def load(path: Path) -> list[Measurement]:
    """A list from a file. Throws ValueError which names what is wrong."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        found = [Measurement(**entry) for entry in entries]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: no list of measurements: {error}") from error
    for one in found:
        expect(one)
    names = [one.name for one in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: more than one measurement is named {', '.join(sorted(twice))}")
    return found


def expect(one: Measurement) -> None:
    """Throws ValueError where its numbers or its name are none."""
    if not one.name or any(not (c.isalnum() or c in "-_") for c in one.name):
        raise ValueError(f"measurement '{one.name}': a name has letters, digits, '-' and '_'")
    if not one.seconds > 0:
        raise ValueError(f"measurement {one.name}: {one.seconds} seconds: they must be more than 0")
    if not 0 <= one.phase < len(PHASES):
        raise ValueError(f"measurement {one.name}: phase {one.phase}: it must be from 0 to {len(PHASES) - 1}")


def as_json(one: Measurement) -> dict[str, Any]:
    """What differs from a measurement's defaults."""
    made = asdict(one)
    plain = Measurement(one.name, one.topic, one.weight, one.seconds, one.command)
    always = ("name", "topic", "weight", "seconds", "command")
    return {
        f.name: made[f.name] for f in fields(one) if f.name in always or getattr(one, f.name) != getattr(plain, f.name)
    }
