"""What Imbrex raises."""

from __future__ import annotations

INVALID_INPUT = 2


class Error(RuntimeError):
    """
    A call failed: a rank was lost, a wait passed its limit, or the system refused something.

    The text names the rank and what it was about.
    """


class InvalidInput(Error, ValueError):
    """An argument breaks a rule. The text names the argument, its value and the rule; nothing was launched."""


def error_of(code: int, message: str) -> Error:
    """The exception that stands for a status of the library."""
    return InvalidInput(message) if code == INVALID_INPUT else Error(message)
