"""What comes before the library's own call: where it fails on one rank, the call fails on all."""

from __future__ import annotations

from types import TracebackType

from . import _c
from ._world import World


class Preparing:
    """
    A block that prepares the world's next call.

    An exception that leaves it is this rank's refusal of that call: the other ranks' call raises InvalidInput with the
    same text, and their next call is this rank's next one.
    """

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        """`world`: whose call it is."""
        self._world = world

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tells the other ranks."""
        if isinstance(error, Exception):
            refuse_call(self._world, error)


def refuse_call(world: World, error: Exception) -> None:
    """Refuses this rank's next call, because of `error`."""
    reason = str(error) or type(error).__name__
    _c.function("world_refuse_call")(world.handle, reason.encode(errors="replace"))


def skip_call(world: World, reason: str) -> None:
    """Makes a call for which this rank has no rows. Raises InvalidInput with `reason` where another rank has some."""
    _c.call("world_skip_call", world.handle, reason.encode(errors="replace"))


def ask_call(world: World, field: str, value: object) -> None:
    """Says what this rank's next call is asked for: all ranks refuse it where they are asked for different things."""
    _c.call("world_ask", world.handle, field.encode(), str(value).encode())
