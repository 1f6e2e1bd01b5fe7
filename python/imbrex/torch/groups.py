"""A world of Imbrex for each of torch's process groups."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from .. import _c
from .._arguments import LARGEST_32, LARGEST_64, integer
from .._errors import Error, InvalidInput
from .._world import World
from . import extension
from .channels import warn_of_few_sms
from .frames import constant_in_graphs
from .meeting import Limits, limits_of, meet, tell_of_process

Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | str | None"
"""A process group, a DeviceMesh of one dimension, the name of a group, or None for all ranks."""

_log = logging.getLogger("imbrex.torch")
_worlds: dict[str, World] = {}
apart: set[str] = set()  # groups that cannot be connected, such as those of several hosts, for the drop-in
_told_of_end: list[Callable[[list[str] | None], None]] = []
_is_traced = torch.compiler.is_dynamo_compiling
_names: dict[Any, str] = {}  # of groups that have a world; until torch forgets them, which _forget is told


def name_of(group: Group) -> str:
    """The name by which torch and the operators know a group."""
    if isinstance(group, dist.ProcessGroup):
        if _is_traced():
            return str(group.group_name)
        # Names are used again: by its name alone, a group that was destroyed could pass for its successor.
        name = _names.get(group)
        return _name_of_living(group) if name is None else name
    if group is None:
        if not dist.is_initialized():
            raise InvalidInput("group is None and torch.distributed is not initialised: call init_process_group first")
        return name_of(c10d._get_default_group())
    if isinstance(group, str):
        return group
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    if group is outside:
        raise InvalidInput("this process is no member of the group that was given: its ranks alone call")
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise InvalidInput(f"group is a DeviceMesh of {group.ndim} dimensions: it must have one, as mesh['tp'] has")
        if not _is_traced() and group.get_coordinate() is None:
            raise InvalidInput(f"this process is no member of {group}: its ranks alone call")
        return name_of(group.get_group())
    raise InvalidInput(
        f"group is {group!r}: it must be a ProcessGroup, a DeviceMesh of one dimension, a group's name, or None"
    )


def _name_of_living(group: Any) -> str:
    name = str(group.group_name)
    if process_group(name) is not group:
        raise InvalidInput(f"group '{name}' was destroyed; another group has that name now: give that one")
    return name


def process_group(name: str) -> Any:
    """Torch's group of that name."""
    try:
        return c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type,unused-ignore]
    except Exception:
        raise InvalidInput(f"group '{name}' is none of this process's: it was destroyed, or never made") from None


# Graphs are traced with these numbers, also before the group's first call: what finds a group cannot be traced.
@constant_in_graphs
def size_of(name: str) -> int:
    """How many ranks the group of that name has."""
    world = _worlds.get(name)
    return world.size if world is not None else int(process_group(name).size())


@constant_in_graphs
def rank_of(name: str) -> int:
    """Which rank of the group of that name this process is."""
    world = _worlds.get(name)
    return world.rank if world is not None else int(process_group(name).rank())


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
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # as in a /proc that shows processes alone
        host = os.uname().nodename
    return {"host": host, "gpu": uuid}


def _place(
    device: Any, wait_limit: float, entry_limit: float, timeout: float, sms_for_others: int
) -> tuple[int | None, Limits, dict[str, str]]:
    """The GPU, how long this rank waits, and what the others are to know of it: if need be, what is wrong here."""
    limits = Limits(30.0, timeout)
    try:
        limits = limits_of(wait_limit, entry_limit, timeout)
        integer("sms_for_others", sms_for_others, 0, LARGEST_32)
        gpu = _own_gpu(device)
        return gpu, limits, _whereabouts(gpu)
    except (Error, OSError) as error:
        return None, limits, {"refused": str(error)}


def _id_on_this_host() -> bytes:
    """
    An id without the address that IMBREX_ADDRESS names.

    The store shows ids to all who reach it, and over a network an id is the secret.
    """
    made = World.make_unique_id()
    return made.partition(b"@")[0].ljust(len(made), b"\0")


def _processes() -> Any:
    """The store in which every process tells of itself, by its rank among all."""
    return c10d.PrefixStore("imbrex/processes", _store_of(c10d._get_default_group()))


def _timeout_of(of: Any) -> float:
    """Seconds that torch's own collectives of the group wait for a rank."""
    kinds = [one.type for one in of._device_types]
    backend = of._get_backend(torch.device("cuda" if "cuda" in kinds and torch.cuda.is_available() else kinds[0]))
    return float(backend.options._timeout.total_seconds())


def connect(
    group: Group = None,
    *,
    heap_bytes: int = 0,
    wait_limit: float = 0.0,
    entry_limit: float = 0.0,
    cpu_workers: int = 1,
    device: Any = None,
    gpu_heap_limit: int = 0,
    sms_for_others: int = 0,
) -> str:
    """
    Makes the world of a group, through the group's store. Collective; the first operator of a group does so itself.

    Args:
        group: whose ranks work together, on one host.
        heap_bytes: symmetric heap in host memory, per rank; 0: 1 GiB, of which pages are taken when touched.
        wait_limit: seconds that a wait may last once all ranks have come to it; 0: IMBREX_WAIT_LIMIT, or 30.
        entry_limit: seconds that ranks wait for one that has not come, since it compiles, or writes a checkpoint; past
            the wait limit they tell once for whom. 0: the wait limit where that is set, here or by IMBREX_WAIT_LIMIT,
            else the group's own timeout.
        cpu_workers: threads of each rank that compute where tensors are on the CPU.
        device: this rank's GPU, a torch.device or a number; not given: the current one, `torch.cuda.current_device()`.
        gpu_heap_limit: bytes of GPU memory, per rank, that the operators' symmetric heap has at most; 0: as many as
            there are. An operator that needs more is refused, on every rank. The same on every rank.
        sms_for_others: SMs of each GPU that kernels which wait for other ranks leave to kernels of others, so that
            NCCL's of DDP, FSDP2 or pipelines run concurrently; the same on every rank. Warns where the group's NCCL is
            known to take more.

    Returns:
        The group's name. A group that is connected already stays as it is.

    Raises:
        InvalidInput: the group is none, its ranks are on several hosts, or `sms_for_others` differs.
        Error: a rank did not come in time.

    Example:
        >>> imbrex.torch.connect(group) == group.group_name
        True
    """
    name = name_of(group)
    if name in _worlds:
        return name
    gpu_heap_limit = integer("gpu_heap_limit", gpu_heap_limit, 0, LARGEST_64)
    of = process_group(name)
    gpu, limits, place = _place(device, wait_limit, entry_limit, _timeout_of(of), sms_for_others)
    rank, ranks = int(of.rank()), list(dist.get_process_group_ranks(of))
    if rank == 0:
        place["id"] = _id_on_this_host().hex()
    # Groups of other ranks may share the store, and the name too.
    store = c10d.PrefixStore(f"imbrex/{'_'.join(map(str, ranks))}", _store_of(of))
    places = meet(store, _processes(), name, ranks, rank, limits, place)
    for peer, told in enumerate(places):
        if "refused" in told:
            raise InvalidInput(told["refused"] if peer == rank else f"rank {peer}: {told['refused']}")
    hosts = [told["host"] for told in places]
    if len(set(hosts)) > 1:
        apart = next(peer for peer in range(len(ranks)) if hosts[peer] != hosts[0])
        raise InvalidInput(
            f"group '{name}' spans {len(set(hosts))} hosts: ranks 0 and {apart} are on different ones; "
            "Imbrex' groups stay on one host, as tensor parallelism does"
        )
    gpus = [told["gpu"] for told in places]
    sharing = max(gpus.count(one) for one in gpus) if all(gpus) else 1
    world = World.connect(
        bytes.fromhex(places[0]["id"]),
        rank,
        len(ranks),
        heap_bytes=heap_bytes,
        wait_limit=limits.wait,
        entry_limit=limits.entry,
        gpu=gpu,
        ranks_per_gpu=sharing,
        sms_for_others=sms_for_others,
    )
    world._gpu_heap_limit = gpu_heap_limit
    extension.call("connect", name.encode(), world.handle, cpu_workers, gpu_heap_limit)
    _worlds[name], _names[of] = world, name
    if rank == 0:
        warn_of_few_sms(of, name, sms_for_others)
        _log.info("group '%s': Imbrex runs its operators, for ranks %s, on %s", name, ranks, _described(gpus, sharing))
    return name


def _described(gpus: list[str], sharing: int) -> str:
    if not all(gpus):
        return "the CPU"
    count = len(set(gpus))
    where, each = ("one GPU", "it") if count == 1 else (f"{count} GPUs", "each")
    return where + (f", {sharing} ranks on {each}" if sharing > 1 else "")


def world_of(name: str) -> World:
    """The world of the connected group of that name."""
    return _worlds[name]


def _connected(group: Group) -> list[str]:
    """The names of the groups that have a world, the last first; of this one, where it is given and has one."""
    if isinstance(group, dist.ProcessGroup):
        return [_names[group]] if group in _names else []
    return [*reversed(_worlds)] if group is None else [name for name in (name_of(group),) if name in _worlds]


def _end(name: str, why: str) -> None:
    world = _worlds.pop(name)
    for group in [group for group, its_name in _names.items() if its_name == name]:
        del _names[group]
    extension.call("disconnect", name.encode())
    world.close_because(why)


def destroy(group: Group = None) -> None:
    """
    Ends the world of a group, or all of them where none is given, and the operators made with it. Collective.

    Torch's destroy_process_group does the same for its groups, and says nothing of ranks that failed; what is left is
    ended when the process ends. Graphs that were captured with these operators are not replayed any more. A group
    without a world is left as it is.

    Raises:
        Error: a rank had failed before.

    Example:
        >>> imbrex.torch.destroy()
    """
    for name in _connected(group):
        _end(name, "")


def check(group: Group = None) -> None:
    """
    Raises Error where a call of the group is known to have failed, on any rank; of all groups where none is given.

    Waits for no call. Operators on GPUs return when they are queued: what fails later is told by the next call or here.

    Example:
        >>> imbrex.torch.check()
    """
    for name in _connected(group):
        extension.call("check", name.encode())


def trim(group: Group = None) -> None:
    """
    Gives the GPU memory of a group's operators back to the driver, on every rank, until it is needed again. Collective.

    That is the memory through which ranks exchange data; a first call for that group connects it. It waits until the
    calls of all ranks are over; no stream is being captured. Between trim and restore no graph that holds calls of the
    group is replayed. The next call restores by itself, but on a stream that is being captured, where it is refused.
    On the CPU nothing is given back.

    Args:
        group: whose ranks all trim.

    Raises:
        InvalidInput: some ranks do something else.
        Error: the group's world failed.

    Example:
        >>> imbrex.torch.trim(group)  # the memory is free for others
        >>> imbrex.torch.restore(group)  # graphs may be replayed
    """
    extension.call("trim", name_of(group).encode())


def restore(group: Group = None) -> None:
    """
    Brings back what `trim` gave, at the same addresses: graphs that were captured before may be replayed. Collective.

    Args:
        group: whose ranks all restore.

    Raises:
        InvalidInput: some ranks do something else.
        Error: a GPU has no memory left; every rank has the error, and may try again.

    Example:
        >>> imbrex.torch.restore(group)
    """
    extension.call("restore", name_of(group).encode())


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


def _end_quietly(names: Iterable[str], error: BaseException | None, why: str) -> None:
    """Ends worlds that are of no use any more: peers may be gone already. After an error they are told of it."""
    for name in names:
        if error is not None:
            _c.function("world_fail")(_worlds[name].handle, f"{type(error).__name__}: {error}".encode())
        try:
            _end(name, why)
        except Error:
            continue


def _forget(names: Iterable[str]) -> None:
    """Called where torch forgets groups, whatever ended them. Each wait for peers has the world's limit."""
    names = [*names]
    apart.difference_update(names)
    _end_quietly([n for n in reversed(_worlds) if n in names], sys.exc_info()[1], ": torch's group was destroyed")


def on_forget(call: Callable[[list[str] | None], None]) -> None:
    """Has this called where torch forgets the groups of these names, or with None all groups."""
    _told_of_end.append(call)


def _tell_of_end(names: list[str] | None) -> None:
    for call in _told_of_end:
        call(names)


def _observe_torch() -> None:
    """Torch uses a group's name again once it has forgotten the group. These functions are where it does."""
    register, forget_one, forget_all = (
        c10d._register_process_group,  # type: ignore[attr-defined,unused-ignore]
        c10d._unregister_process_group,  # type: ignore[attr-defined,unused-ignore]
        c10d._unregister_all_process_groups,  # type: ignore[attr-defined,unused-ignore]
    )

    def registered(name: Any, group: Any) -> None:
        register(name, group)
        if not dist.is_initialized():  # this is the group of all ranks
            tell_of_process(c10d.PrefixStore("imbrex/processes", _store_of(group)), int(group.rank()))

    def forgotten(name: Any) -> None:
        try:
            _forget([str(name)])
            _tell_of_end([str(name)])
        finally:
            forget_one(name)

    def all_forgotten() -> None:
        try:
            _forget([*_worlds, *apart])
            _tell_of_end(None)
        finally:
            forget_all()

    c10d._register_process_group = registered  # type: ignore[attr-defined,assignment,unused-ignore]
    c10d._unregister_process_group = forgotten  # type: ignore[attr-defined,assignment,unused-ignore]
    c10d._unregister_all_process_groups = all_forgotten  # type: ignore[attr-defined,assignment,unused-ignore]
    if dist.is_initialized():
        tell_of_process(_processes(), dist.get_rank())


def _end_all() -> None:
    _end_quietly([*reversed(_worlds)], getattr(sys, "last_value", None), "")


extension.set_connect(connect)
atexit.register(_end_all)
_observe_torch()
