"""A world of Imbrex for each of torch's process groups."""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from .. import _c
from .._errors import Error, InvalidInput
from .._world import World
from . import extension

Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | str | None"
"""A process group, a DeviceMesh of one dimension, the name of a group, or None for all ranks."""

_worlds: dict[str, World] = {}
_made: dict[str, int] = {}  # worlds made so far, by their ranks: a later one must not find an earlier one's keys


def name_of(group: Group) -> str:
    """The name by which torch and the operators know a group."""
    if isinstance(group, dist.ProcessGroup):
        return str(group.group_name)
    if group is None:
        if not dist.is_initialized():
            raise InvalidInput("group is None and torch.distributed is not initialised: call init_process_group first")
        return str(c10d._get_default_group().group_name)
    if isinstance(group, str):
        return group
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise InvalidInput(f"group is a DeviceMesh of {group.ndim} dimensions: it must have one, as mesh['tp'] has")
        return str(group.get_group().group_name)
    raise InvalidInput(
        f"group is {group!r}: it must be a ProcessGroup, a DeviceMesh of one dimension, a group's name, or None"
    )


def process_group(name: str) -> Any:
    """Torch's group of that name."""
    try:
        return c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type,unused-ignore]
    except Exception:
        raise InvalidInput(f"group '{name}' is none of this process's: it was destroyed, or never made") from None


def size_of(name: str) -> int:
    """How many ranks the group of that name has."""
    world = _worlds.get(name)
    return world.size if world is not None else int(process_group(name).size())


def _store_of(group: Any) -> Any:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return c10d._get_process_group_store(group)


def _own_gpu(device: Any) -> int | None:
    """The number of the GPU that this rank is to use; None where there is none."""
    if not torch.cuda.is_available():
        return None
    given = torch.device("cuda") if device is None else torch.device(device)
    if given.type != "cuda":
        raise InvalidInput(f"device is {given}: it must be a GPU, which operators on GPUs use; others need none")
    return torch.cuda.current_device() if given.index is None else given.index


def _whereabouts(gpu: int | None) -> dict[str, str]:
    """The host that this rank is on, and its GPU."""
    uuid = "" if gpu is None else str(torch.cuda.get_device_properties(gpu).uuid)
    return {"host": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "gpu": uuid}


def connect(
    group: Group = None, *, heap_bytes: int = 0, wait_limit: float = 0.0, cpu_workers: int = 1, device: Any = None
) -> str:
    """
    Makes the world of a group, through the group's store. Collective; the first operator of a group does so itself.

    Args:
        group: whose ranks work together, on one host.
        heap_bytes: symmetric heap in host memory, per rank; 0: 1 GiB, of which pages are taken when touched.
        wait_limit: seconds that any wait may last; 0: IMBREX_WAIT_LIMIT, or 30.
        cpu_workers: threads of each rank that compute where tensors are on the CPU.
        device: this rank's GPU, a torch.device or a number; not given: the current one, `torch.cuda.current_device()`.

    Returns:
        The group's name. A group that is connected already stays as it is.

    Raises:
        InvalidInput: the group is none, or its ranks are on several hosts.
        Error: a rank did not come in time.

    Example:
        >>> imbrex.torch.connect(group) == group.group_name
        True
    """
    name = name_of(group)
    if name in _worlds:
        return name
    gpu = _own_gpu(device)
    of = process_group(name)
    rank, size = int(of.rank()), int(of.size())
    ranks = "_".join(map(str, dist.get_process_group_ranks(of)))
    number = _made[ranks] = _made.get(ranks, 0) + 1
    # Groups of other ranks may share the store, and the name too.
    store = c10d.PrefixStore(f"imbrex/{ranks}/{number}", _store_of(of))
    if rank == 0:
        store.set("id", World.make_unique_id().hex())
    store.set(f"rank{rank}", json.dumps(_whereabouts(gpu)))
    places = [json.loads(store.get(f"rank{peer}")) for peer in range(size)]
    hosts = [place["host"] for place in places]
    if len(set(hosts)) > 1:
        apart = next(peer for peer in range(size) if hosts[peer] != hosts[0])
        raise InvalidInput(
            f"group '{name}' spans {len(set(hosts))} hosts: ranks 0 and {apart} are on different ones; "
            "Imbrex' groups stay on one host, as tensor parallelism does"
        )
    unique_id = bytes.fromhex(store.get("id").decode())
    gpus = [place["gpu"] for place in places]
    sharing = max(gpus.count(one) for one in gpus) if all(gpus) else 1
    world = World.connect(
        unique_id, rank, size, heap_bytes=heap_bytes, wait_limit=wait_limit, gpu=gpu, ranks_per_gpu=sharing
    )
    extension.call("connect", name.encode(), world.handle, cpu_workers)
    _worlds[name] = world
    return name


def world_of(name: str) -> World:
    """The world of the connected group of that name."""
    return _worlds[name]


def destroy(group: Group = None) -> None:
    """
    Ends the world of a group, or all of them where none is given, and the operators made with it. Collective.

    To be called before torch's destroy_process_group; what is left is ended when the process ends. Graphs that were
    captured with these operators are not replayed any more. A group without a world is left as it is.

    Raises:
        Error: a rank had failed before.

    Example:
        >>> imbrex.torch.destroy()
    """
    names = [*_worlds] if group is None else [name_of(group)]
    for name in reversed(names):
        world = _worlds.pop(name, None)
        if world is not None:
            extension.call("disconnect", name.encode())
            world.close()


def check(group: Group = None) -> None:
    """
    Raises Error where a call of the group is known to have failed, on any rank; of all groups where none is given.

    Waits for no call. Operators on GPUs return when they are queued: what fails later is told by the next call or here.

    Example:
        >>> imbrex.torch.check()
    """
    for name in [*_worlds] if group is None else [name_of(group)]:
        extension.call("check", name.encode())


def warm_up(calls: Iterable[tuple[Any, ...]], group: Group = None, *, device: Any = None) -> int:
    """
    Makes the operators of these shapes, so that no later call has to: before a graph is captured, or serving begins.

    Args:
        calls: for each call the operator and its tensors' shapes and dtype, the same list on every rank:
            `(imbrex.torch.matmul_reduce_scatter, (4096, 2048), (2048, 8192), torch.bfloat16)`; a shape is of the local
            tensor. A fifth element is a dict of further keyword arguments; `b_by_columns` in it says that b is the
            transpose of a linear layer's weight.
        group: the ranks.
        device: where the tensors are; not given: the current GPU, or the CPU where there is none.

    Returns:
        How many operators were made.

    Raises:
        InvalidInput: a call does not fit.

    Example:
        >>> from imbrex.torch import matmul_all_reduce, warm_up
        >>> warm_up([(matmul_all_reduce, (8, 64), (64, 33), torch.float32)], group)
        1
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    before = extension.calls()["made"]
    with torch.no_grad():
        for one in calls:
            operator, *shapes, dtype = one if not isinstance(one[-1], dict) else one[:-1]
            extra = dict(one[-1]) if isinstance(one[-1], dict) else {}
            by_columns = extra.pop("b_by_columns", dtype == torch.float8_e4m3fn)
            tensors = [torch.zeros(shape, dtype=torch.float32, device=device).to(dtype) for shape in shapes]
            if by_columns and len(tensors) > 1:
                tensors[1] = tensors[1].t().contiguous().t()
            operator(*tensors, group=group, **extra)
    return extension.calls()["made"] - before


def describe() -> str:
    """
    One line on what the operators run on, for `imbrex.doctor`.

    Example:
        >>> "operators registered; tensors on the CPU" in imbrex.torch.describe()
        True
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"{len(extension.schemas())} operators registered; tensors on the CPU{f' and {gpus} GPUs' if gpus else ''}"


def _end() -> None:
    failed = getattr(sys, "last_value", None)
    for name in reversed([*_worlds]):
        world = _worlds.pop(name)
        if failed is not None:
            _c.function("world_fail")(world.handle, f"{type(failed).__name__}: {failed}".encode())
        try:
            extension.call("disconnect", name.encode())
            world.close()
        except Error:
            continue


extension.set_connect(connect)
atexit.register(_end)
