"""
Whether all ranks put an operator in place of a collective: agreed upon at the first call of a place in a graph.

What the pass finds follows from a rank's own graph, which need not be the other ranks': one of them may use a product
once more, or run without torch.compile. So a first call is torch's own collective, which every rank reaches:

1. Before it, each rank that could run Imbrex' operator writes what it would run into the group's store, with the number
   that torch gives the collective in the group's order, and waits until it is there. A rank that could not writes
   nothing.
2. Torch's collective ends on no rank before all have begun it. So once it has ended, all that will be written is there.
3. Every rank reads all of it, and waits for nothing: where all wrote the same, each runs Imbrex' operator from the next
   call on. Otherwise each stays with torch's.

What a rank wrote stands until it has ended another first call. A rank that wrote the same has read it then, since it
begins no other collective before. One that runs more of torch's collectives in its own first call may find it gone: it
wrote something else, and both stay with torch's.

A rank must then run the same graph at each call of that place, as it must for any collective of its own: one that goes
over to another graph later, by itself, makes the others wait for it until the wait limit.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from .. import groups
from ..refusals import Refusal, is_connected
from ..stats import count_fallback

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """What all ranks said of a place: whether they run Imbrex' operator there, and whether all said yes besides."""

    is_taken: bool
    all_say_yes: bool


_agreed: dict[str, dict[Hashable, Agreement]] = {}
_written: dict[str, tuple[Any, str, list[Any]]] = {}  # the store, this rank's key there, and its last entries


def agreement(group: str, site: int, signature: Hashable) -> Agreement | None:
    """What was agreed upon; None before."""
    return _agreed.get(group, {}).get((site, signature))


def is_capturing(x: Tensor) -> bool:
    """Whether the call is recorded, and so cannot be waited for."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def agree(
    name: str, group: str, site: int, signature: Hashable, says_yes: bool, x: Tensor, torchs: Callable[[], T]
) -> T:
    """
    Torch's own result of a first call, by which the ranks agree.

    Args:
        name: of the operator.
        group: of the ranks.
        site: number of the place on this rank, which follows from the graph and the place in it.
        signature: all that decides what this rank would run.
        says_yes: what counts as said by all only if it is.
        x: a tensor, for the device.
        torchs: runs torch's collectives.
    """
    of = groups.process_group(group)
    backend = of._get_backend(x.device)
    ranks = dist.get_process_group_ranks(of)
    store = c10d.PrefixStore(f"imbrex/agreed/{'_'.join(map(str, ranks))}", groups._store_of(of))
    try:
        begin = int(backend._get_sequence_number_for_group())
    except RuntimeError:
        raise Refusal("group whose backend does not count its collectives") from None
    said: list[Any] = [
        f"{x.device.type}/{begin}",
        hashlib.sha256(repr((name, signature)).encode()).hexdigest(),
        says_yes,
    ]
    entries = [*(_written[group][2][-1:] if group in _written else []), said]
    _written[group] = store, str(of.rank()), entries
    _write(store, str(of.rank()), json.dumps(entries))
    count_fallback(name, "first call, by which the ranks agree")
    result = torchs()
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()
    told = [_read(store, str(rank), said[0]) for rank in range(len(ranks))]
    is_taken = backend._get_sequence_number_for_group() > begin and all(one and one[1] == said[1] for one in told)
    if is_taken:
        is_connected(group)  # here all ranks come together; later, one may keep the others waiting
    _agreed.setdefault(group, {})[site, signature] = Agreement(is_taken, is_taken and all(one[2] for one in told))
    return result


def _write(store: Any, key: str, text: str) -> None:
    """Returns once others read it. A TCPStore only sends what is set; what it answers afterwards comes later."""
    store.set(key, text)
    store.get(key)


def _read(store: Any, key: str, number: str) -> Any:
    """What a rank wrote at that number. Keys stay, so that none is waited for once it is there."""
    entries = json.loads(store.get(key)) if store.check([key]) else []
    return next((one for one in entries if one[0] == number), None)


def _forget(names: list[str] | None) -> None:
    for name in [*_agreed] if names is None else names:
        _agreed.pop(name, None)
        if name in _written:
            _clear(*_written.pop(name)[:2])


def _clear(store: Any, key: str) -> None:
    """A later group of the same name counts from the same number."""
    try:
        _write(store, key, "[]")
    except Exception:
        return  # the store has ended, and with it what it holds


groups.on_forget(_forget)
