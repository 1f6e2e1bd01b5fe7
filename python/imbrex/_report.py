"""What a sum through a codec tells of its last call."""

from __future__ import annotations

from dataclasses import dataclass

from ._c import ReportFields


@dataclass(frozen=True)
class Report:
    """What became of the last call, over all ranks."""

    largest_error: float
    """No finite element of the sum is farther from the exact one than this."""
    non_finite: int
    """Elements of the sum that are NaN or infinite."""
    groups: int
    """Groups sent, through the codec or as elements, in both phases, by all ranks."""
    raw_groups: int
    """Groups that travelled as elements for the sake of the tolerance."""
    exact: bool
    """Whether the call went without the codec."""
    algorithm: str
    """one_shot, two_shot or ring; empty for a product's sum."""


def report_of(fields: ReportFields) -> Report:
    """The report as Python has it."""
    return Report(
        fields.largest_error,
        fields.non_finite,
        fields.groups,
        fields.raw_groups,
        bool(fields.exact),
        (fields.algorithm or b"").decode(),
    )
