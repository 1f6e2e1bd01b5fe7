"""What was called, and what was handed back to torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import extension
from .frames import constant_in_graphs

_fallbacks: dict[str, int] = {}
_copies: dict[str, int] = {}
_unmatched: dict[str, int] = {}
_rewritten: dict[str, set[int]] = {}


@dataclass(frozen=True)
class Stats:
    """Counts of this process since it began."""

    calls: dict[str, int] = field(default_factory=dict)
    """How often each operator of Imbrex was called."""
    made: int = 0
    """How many operators were made: one for each new shape of a group, whatever its rows, and one more each time
    that rows outgrew it."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Calls that the drop-in handed back to torch, by operator and reason. Also layers and calls that a parallel style
    handed back, by style and reason. A graph of torch.compile counts once for each time it is made."""
    copies: dict[str, int] = field(default_factory=dict)
    """Tensors that were copied because the library does not take their layout, by operator and reason. The drop-in,
    parallel styles and lists of products make such copies, and rows that are padded."""
    rewritten: dict[str, int] = field(default_factory=dict)
    """Places in graphs of torch.compile at which the drop-in's pass put an operator, by operator: of graphs that were
    made by this process, and of those that came from Inductor's cache and have run."""
    unmatched: dict[str, int] = field(default_factory=dict)
    """Collectives that the drop-in's pass left to torch in graphs that this process made, by collective and reason."""


def stats() -> Stats:
    """
    How often operators were called, handed back to torch, and why.

    Example:
        >>> before = imbrex.torch.stats().calls["all_reduce"]
        >>> y = imbrex.torch.all_reduce(x, group)
        >>> imbrex.torch.stats().calls["all_reduce"] - before
        1
    """
    calls = extension.calls()
    made = calls.pop("made")
    rewritten = {name: len(places) for name, places in _rewritten.items()}
    return Stats(calls, made, dict(_fallbacks), dict(_copies), rewritten, dict(_unmatched))


def _count(counts: dict[str, int], what: str, reason: str) -> None:
    key = f"{what}: {reason}"
    counts[key] = counts.get(key, 0) + 1


# What is traced counts its graph, not its calls: a count in the graph would be a reason to make it anew.
@constant_in_graphs
def count_fallback(operator: str, reason: str) -> None:
    """Counts a call that torch's own operator took."""
    _count(_fallbacks, operator, reason)


@constant_in_graphs
def count_copy(operator: str, reason: str) -> None:
    """Counts a copy that a caller's layout made necessary."""
    _count(_copies, operator, reason)


def count_unmatched(collective: str, reason: str) -> None:
    """Counts a collective in a graph that the pass left as it was."""
    _count(_unmatched, collective, reason)


def count_rewritten(operator: str, place: int) -> None:
    """Counts a place in a graph, of which the number is the only one, at which an operator now stands for several."""
    _rewritten.setdefault(operator, set()).add(place)
