"""Worlds: the ranks that work together."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from . import _c
from ._arguments import LARGEST_32, LARGEST_64, integer, octets, real, text
from ._errors import InvalidInput
from ._library import preload_nvidia


def _options(
    heap_bytes: int, wait_limit: float, entry_limit: float, gpu: int | None, ranks_per_gpu: int, sms_for_others: int
) -> Any:
    options = _c.new(
        _c.WorldOptions,
        heap_bytes=integer("heap_bytes", heap_bytes, 0, LARGEST_64),
        wait_limit=real("wait_limit", wait_limit),
        entry_limit=real("entry_limit", entry_limit),
        ranks_per_gpu=integer("ranks_per_gpu", ranks_per_gpu, 0, LARGEST_32),
        sms_for_others=integer("sms_for_others", sms_for_others, 0, LARGEST_32),
    )
    if gpu is not None:
        options.gpu = ctypes.pointer(ctypes.c_int32(integer("gpu", gpu, 0, LARGEST_32)))
    return options


class OwnsHandle:
    """An object of the library's that Python ends: a copy would end it once more, and use what is freed."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses what copy, deepcopy and pickle ask for."""
        raise InvalidInput(
            f"{type(self).__name__} is neither copied nor pickled: it is one rank's own; pass it itself, or make "
            "another, on all ranks together"
        )


class World(OwnsHandle):
    """
    One rank's membership among the ranks that work together. All ranks make it, and end it, together.

    Made by `from_environment` or `connect`. Used as a context manager it is closed at the end of the block, and the
    other ranks are told if the block ends by an exception. One thread at a time uses it. A process may have several
    worlds, of other ranks or the same, whose operators are called in turn: in one order on all ranks that share two.

    Example:
        >>> import imbrex
        >>> with imbrex.World.from_environment() as world:
        ...     world.barrier()
    """

    def __init__(self, handle: ctypes.c_void_p | None = None) -> None:
        """Takes over a world of the library; `from_environment` and `connect` make one."""
        if not isinstance(handle, ctypes.c_void_p):
            raise InvalidInput(f"World({handle!r}): World.from_environment() and World.connect() make a world")
        self._handle: ctypes.c_void_p | None = handle
        self._made: dict[Any, tuple[ctypes.c_void_p, str]] = {}
        self._why_closed = ""
        self._gpu_heap_limit = 0  # bytes, of its operators on GPUs; 0: none
        self.rank: int = _c.function("world_rank")(handle)
        """This rank's number, from 0."""
        self.size: int = _c.function("world_size")(handle)
        """How many ranks there are."""

    @classmethod
    def from_environment(
        cls,
        *,
        heap_bytes: int = 0,
        wait_limit: float = 0.0,
        entry_limit: float = 0.0,
        gpu: int | None = None,
        ranks_per_gpu: int = 1,
        sms_for_others: int = 0,
    ) -> World:
        """
        A world by the variables of the launcher; of one rank where none is set.

        Known are `imbrex launch`, torchrun, Open MPI, MPICH, Intel MPI, PALS, Flux and Slurm (docs/launching.md).

        Args:
            heap_bytes: symmetric heap in host memory, per rank; 0: 1 GiB, of which pages are taken when touched.
            wait_limit: seconds that a wait may last once all ranks have come to it; 0: IMBREX_WAIT_LIMIT, or 30.
            entry_limit: seconds that ranks wait for one that has not come; 0: the wait limit where that is set, here or
                by IMBREX_WAIT_LIMIT, else 600.
            gpu: this rank's GPU, as CUDA numbers those that this process sees; not given: by the rank.
            ranks_per_gpu: ranks that share each GPU, each with its part of it; the same on every rank.
            sms_for_others: SMs of each GPU that kernels which wait for other ranks leave to kernels of others, such as
                NCCL's, so that both run concurrently; the same on every rank.

        Raises:
            InvalidInput: the variables contradict each other; the text names the variable. `sms_for_others` differs.
            Error: a rank did not arrive within the entry limit.

        Example:
            >>> import imbrex
            >>> world = imbrex.World.from_environment()
            >>> world.size >= 1
            True
            >>> world.close()
        """
        preload_nvidia()
        options = _options(heap_bytes, wait_limit, entry_limit, gpu, ranks_per_gpu, sms_for_others)
        return cls(_c.make("world_from_environment", ctypes.byref(options)))

    @staticmethod
    def make_unique_id() -> bytes:
        """What one rank makes and hands to the others, who all give it to `connect`: 128 bytes."""
        made = _c.UniqueId()
        _c.call("make_unique_id", ctypes.byref(made))
        return ctypes.string_at(ctypes.byref(made), ctypes.sizeof(made))

    @classmethod
    def connect(
        cls,
        unique_id: bytes,
        rank: int,
        size: int,
        *,
        heap_bytes: int = 0,
        wait_limit: float = 0.0,
        entry_limit: float = 0.0,
        gpu: int | None = None,
        ranks_per_gpu: int = 1,
        sms_for_others: int = 0,
    ) -> World:
        """
        A world of the ranks that were given one id, by the caller's own means.

        Args:
            unique_id: what `make_unique_id` returned on one of the ranks.
            rank: this rank's number, from 0 to size - 1.
            size: how many ranks there are.
            heap_bytes: as for `from_environment`.
            wait_limit: as for `from_environment`.
            entry_limit: as for `from_environment`.
            gpu: as for `from_environment`.
            ranks_per_gpu: as for `from_environment`.
            sms_for_others: as for `from_environment`.

        Raises:
            InvalidInput: rank or size are out of their range, the id is none, or `sms_for_others` differs.
            Error: a rank did not arrive within the entry limit, or two claim one number.

        Example:
            >>> import imbrex
            >>> world = imbrex.World.connect(imbrex.World.make_unique_id(), 0, 1)
            >>> world.close()
        """
        octets_given = octets("unique_id", unique_id)
        if len(octets_given) != ctypes.sizeof(_c.UniqueId):
            raise InvalidInput(f"unique_id has {len(octets_given)} bytes: it must have {ctypes.sizeof(_c.UniqueId)}")
        rank, size = integer("rank", rank, 0, LARGEST_32), integer("size", size, 1, LARGEST_32)
        preload_nvidia()
        given = _c.UniqueId.from_buffer_copy(octets_given)
        options = _options(heap_bytes, wait_limit, entry_limit, gpu, ranks_per_gpu, sms_for_others)
        return cls(_c.make("world_connect", ctypes.byref(given), rank, size, ctypes.byref(options)))

    @property
    def handle(self) -> ctypes.c_void_p:
        """The library's world, an imbrex_world*. Raises InvalidInput once the world is closed."""
        if self._handle is None:
            raise InvalidInput(f"this world is closed{self._why_closed}")
        return self._handle

    def barrier(self) -> None:
        """Returns when every rank has called it. Raises Error where a rank failed, was lost, or stays away too long."""
        _c.call("world_barrier", self.handle)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """
        Every rank's bytes, by rank; the same number of bytes on each, at most 4096. Collective.

        Raises:
            InvalidInput: sizes differ, or are larger; `mine` is a str.
            Error: as `barrier`.
        """
        mine = octets("mine", mine)
        gathered = ctypes.create_string_buffer(len(mine) * self.size)
        _c.call("world_all_gather", self.handle, mine, gathered, len(mine))
        return [gathered.raw[i * len(mine) : (i + 1) * len(mine)] for i in range(self.size)]

    def fail(self, message: str) -> None:
        """Ends every wait of every rank with this message. Any thread may call it."""
        _c.call("world_fail", self.handle, text("message", message))

    def check(self) -> None:
        """Raises Error once a rank has failed or was lost. Does not wait for peers."""
        _c.call("world_check", self.handle)

    def made(self, key: Any, make: Callable[[], ctypes.c_void_p], destroy: str) -> ctypes.c_void_p:
        """What `make` made for `key`, kept until the world is closed."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = (make(), destroy)
        return found[0]

    def unmake(self, key: Any) -> None:
        """Destroys what was made for `key`, on all ranks together. Nothing where there is nothing."""
        made, destroy = self._made.pop(key, (None, ""))
        if made is not None:
            _c.call(destroy, made)

    def close(self) -> None:
        """Ends this rank's membership, and the operators made with it. Collective; the second time nothing."""
        self.close_because("")

    def close_because(self, why: str) -> None:
        """As `close`; `why` is told behind "this world is closed" to those who use it later."""
        if self._handle is None:
            return
        self._why_closed = why
        handle, self._handle = self._handle, None
        for made, destroy in reversed(self._made.values()):
            _c.function(destroy)(made)
        self._made.clear()
        _c.call("world_destroy", handle)

    def __enter__(self) -> World:
        """The world itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the world; after an exception the other ranks are told."""
        if self._handle is not None and error is not None:
            _c.function("world_fail")(self._handle, f"{type(error).__name__}: {error}".encode(errors="replace"))
        self.close()

    def __repr__(self) -> str:
        """`<imbrex.World rank 0 of 4>`."""
        return f"<imbrex.World rank {self.rank} of {self.size}{'' if self._handle else ', closed'}>"


def expect_world(world: object) -> None:
    """Raises InvalidInput for what is no World, such as a process group of torch."""
    if not isinstance(world, World):
        raise InvalidInput(f"world is of type {type(world).__name__}: it must be an imbrex.World")
