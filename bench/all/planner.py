"""Which measurements fit into the time that is left, and in which order they run. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable

from measurement import Measurement


def chosen(measurements: Iterable[Measurement], seconds: float, pace: float = 1.0) -> list[Measurement]:
    """
    Those that fit into so many seconds together, as they run.

    The ones of larger weight are taken first, earlier ones of equal weight; one that does not fit leaves its time to
    the next. They run by phase, then by weight. `pace`: how many times as long as expected they take on this machine.
    """
    left, taken = seconds, []
    for one in sorted(measurements, key=lambda m: -m.weight):
        if one.seconds * pace <= left:
            taken.append(one)
            left -= one.seconds * pace
    return sorted(taken, key=lambda m: (m.phase, -m.weight))


KNOWN_S = 30.0  # so many seconds as expected, which count beside what was seen


def pace_of(expected_and_taken: Iterable[tuple[float, float]]) -> float:
    """How many times as long as expected those that ended took, from 0.5 to 3. A few seconds say little."""
    pairs = list(expected_and_taken)
    ratio = (KNOWN_S + sum(taken for _, taken in pairs)) / (KNOWN_S + sum(expected for expected, _ in pairs))
    return min(max(ratio, 0.5), 3.0)
