"""Plain arguments on their way to the library: C would cut what does not fit, without a word."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._errors import InvalidInput

LARGEST_32, LARGEST_63, LARGEST_64 = 2**31 - 1, 2**63 - 1, 2**64 - 1


def index_of(given: Any) -> int | None:
    """`given` as an int; None where it is none."""
    try:
        return operator.index(given)
    except TypeError:
        return None


def integer(name: str, given: Any, least: int, most: int) -> int:
    """`given` as an int; InvalidInput where it is none, or lies outside of what is told."""
    number = index_of(given)
    if number is None or isinstance(given, bool) or not least <= number <= most:
        raise InvalidInput(f"{name} is {given!r}: it must be an integer from {least} to {most}")
    return number


def real(name: str, given: Any) -> float:
    """`given` as a float; InvalidInput where it is no number. What numbers are allowed the library says."""
    try:
        if not isinstance(given, (str, bytes, bytearray)):
            return float(given)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidInput(f"{name} is {given!r}: it must be a number")


def text(name: str, given: Any) -> bytes:
    """A str for C, in UTF-8; InvalidInput where it is none, or holds a NUL, where C's would end."""
    if not isinstance(given, str):
        raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be a str")
    if "\0" in given:
        raise InvalidInput(f"{name} is {given!r}: it must not hold a NUL character")
    return given.encode(errors="replace")


def optional_text(name: str, given: Any) -> bytes | None:
    """As `text`; None stays None."""
    return None if given is None else text(name, given)


def stream_handle(given: Any) -> int | None:
    """A CUDA stream as an integer, or None for the default one."""
    return None if given is None else integer("stream", given, 0, LARGEST_64)


def octets(name: str, given: Any) -> bytes:
    """A copy of bytes, a bytearray or a memoryview; InvalidInput for all else, such as a str."""
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be bytes")
    return bytes(given)


def flag(name: str, given: Any) -> int:
    """1 or 0, of a bool or of such a number; InvalidInput for all else."""
    number = int(given) if isinstance(given, np.bool_) else index_of(given)
    if number not in (0, 1):
        raise InvalidInput(f"{name} is {given!r}: it must be True or False")
    return number


def items(name: str, given: Any, what: str) -> list[Any]:
    """The items of a list or another iterable; InvalidInput for what has none, and for texts and mappings."""
    try:
        if not isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
            return list(given)
    except TypeError:
        pass
    raise InvalidInput(f"{name} is of type {type(given).__name__}: it must be a list of {what}")
