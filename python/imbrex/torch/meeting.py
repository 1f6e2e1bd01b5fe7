"""How the ranks of a torch group find each other before they have a world: in torch's store, within the entry limit."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from .._errors import Error, InvalidInput

_log = logging.getLogger("imbrex.torch")
_MOST_SECONDS = 1e9  # as the library has it
_LOOK = 0.25  # seconds between looks at whether peers' processes live
_SURE = 1.0  # seconds: the record of an ended process may be an earlier one's, which its successor overwrites


class Limits(NamedTuple):
    """Seconds: of waits to which all ranks have come, and of those for ranks that have not."""

    wait: float
    entry: float


def limits_of(wait: float, entry: float, timeout: float) -> Limits:
    """What is given, else IMBREX_WAIT_LIMIT; where neither says anything, 30 and the group's timeout."""
    text = os.environ.get("IMBREX_WAIT_LIMIT") or "0"
    try:
        chosen = float(wait or text)
    except ValueError:
        raise InvalidInput(f"IMBREX_WAIT_LIMIT='{text}' is not a number") from None
    limits = Limits(chosen or 30.0, entry or chosen or timeout)
    for seconds, name in (
        (limits.wait, f"wait_limit={wait}" if wait else f"IMBREX_WAIT_LIMIT='{text}'"),
        (limits.entry, f"entry_limit={entry}" if entry else f"the group's timeout of {timeout:g} s"),
    ):
        if not 0 < seconds <= _MOST_SECONDS:
            raise InvalidInput(f"{name} must be more than 0 and at most {_MOST_SECONDS:.0f} s")
    return limits


def own_process() -> dict[str, Any] | None:
    """What tells this process from all others; None where /proc does not say."""
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "pids": os.readlink("/proc/self/ns/pid"),
            "pid": os.getpid(),
            "start": _start_of(os.getpid()),
        }
    except OSError:
        return None


def _start_of(pid: int) -> str:
    """When the process began; nothing where it has ended, though its parent may not have asked yet."""
    try:
        behind_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if behind_name[0] in "ZX" else behind_name[19]


def has_ended(process: dict[str, Any] | None) -> bool:
    """Whether it is known of a process that it has ended: of this host's only."""
    own = own_process()
    if process is None or own is None or (process["boot"], process["pids"]) != (own["boot"], own["pids"]):
        return False
    try:
        return bool(_start_of(process["pid"]) != process["start"])
    except OSError:
        return False


class _Told(Error):
    """What another rank gave as the reason, which goes no further."""


class _Meeting:
    """
    One rank's part. A store keeps what earlier groups and processes wrote, so nothing in it is trusted for its name:
    every rank draws a number, and rank 0 takes a rank for present once it has answered with rank 0's own number.

        rank r: here/r = its number     ->  rank 0: welcome/(r's number) = rank 0's number
        rank r: seen/(rank 0's)/r       ->  rank 0, when all have: go/(r's number) = every rank's place, or why not
    """

    def __init__(self, store: Any, processes: Any, group: str, ranks: list[int], rank: int, limits: Limits) -> None:
        self.store, self.processes, self.group = store, processes, group
        self.ranks, self.rank, self.limits = ranks, rank, limits
        self.end = time.monotonic() + limits.entry
        self.tell = time.monotonic() + limits.wait if limits.wait < limits.entry else math.inf
        self.number = secrets.token_hex(16)
        self.missing = [*range(1, len(ranks))] if rank == 0 else [0]
        self.leader = ""  # rank 0's number
        self.known: dict[int, dict[str, Any] | None] = {}  # processes of those that came
        self.ended_since: dict[int, tuple[str, float]] = {}
        self.next_look = time.monotonic() + _LOOK
        self.pause = 0.0005
        self.given_up = False
        self.found: list[dict[str, Any]] = []
        self.error: Error | None = None

    def run(self, place: dict[str, Any]) -> None:
        """Fills `found` or `error`."""
        mine = {"number": self.number, "place": place, "process": own_process()}
        try:
            self.found = self._lead(mine) if self.rank == 0 else self._follow(mine)
        except Error as error:
            self.error = Error(str(error))
        except Exception as error:  # each of torch's stores has its own
            self.error = Error(
                f"torch's store, in which the ranks of group '{self.group}' meet before its first call, failed: "
                f"{(str(error) or type(error).__name__).splitlines()[0]}; the process that keeps it, rank 0's or "
                f"torchrun's, has ended, perhaps. {self._name(self.missing)} did not come before"
            )

    def _lead(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        greeted: dict[int, str] = {}
        came: dict[int, dict[str, Any]] = {0: mine}
        try:
            while self.missing:
                for peer in [*self.missing]:
                    here = self._look(f"here/{peer}")
                    if here and here["number"] not in (None, greeted.get(peer)):
                        greeted[peer] = here["number"]
                        self._put(f"welcome/{here['number']}", mine)
                    seen = self._look(f"seen/{self.number}/{peer}") if peer in greeted else None
                    if seen:
                        came[peer] = seen
                        self.known[peer] = seen["process"]
                        self.missing.remove(peer)
                if self.missing:
                    self._rest()
        except Error as error:
            for number in greeted.values():
                self._put(f"go/{number}", {"why": str(error)})
            raise
        places = [came[peer]["place"] for peer in range(len(self.ranks))]
        for peer in range(1, len(self.ranks)):
            self._put(f"go/{came[peer]['number']}", {"places": places})
            self._remove(f"seen/{self.number}/{peer}")
        return places

    def _follow(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            self._put(f"here/{self.rank}", mine)
            welcome = self._await(f"welcome/{self.number}")
            self.leader, self.known[0] = welcome["number"], welcome["process"]
            self._put(f"here/{self.rank}", None)  # before rank 0 can begin another meeting and greet it once more
            self._put(f"seen/{self.leader}/{self.rank}", mine)
            go = self._await(f"go/{self.number}")
            if "why" in go:
                raise _Told(go["why"])
            return list(go["places"])
        except Error as error:
            self._put(f"here/{self.rank}", {"number": None})  # it came, and is not to be waited for
            if self.leader and not isinstance(error, _Told):
                self._put(f"gone/{self.leader}", {"why": str(error)})
            raise

    def _await(self, key: str) -> Any:
        while (found := self._look(key)) is None:
            self._rest()
        self._remove(key)
        return found

    def _see_who_came(self) -> None:
        """What rank 0 knows anyway, the others look up."""
        if self.rank == 0:
            return
        others = [peer for peer in range(1, len(self.ranks)) if peer != self.rank]
        place = f"seen/{self.leader}" if self.leader else "here"
        self.missing = [peer for peer in others if self._look(f"{place}/{peer}") is None]
        if not self.leader or not self.missing:
            self.missing.insert(0, 0)

    def _rest(self) -> None:
        """Ends the wait for what has become hopeless or too long."""
        if self.given_up:
            raise Error("the wait for the other ranks was interrupted")
        now = time.monotonic()
        if self.rank == 0:
            gone = self._look(f"gone/{self.number}")
            if gone:
                raise Error(gone["why"])
        if now >= min(self.next_look, self.end):
            self.next_look = now + _LOOK
            self._see_who_came()
            for peer, process in self.known.items():
                if has_ended(process):
                    self._fail_ended(peer, process)
            for peer in self.missing:
                if peer not in self.known:
                    self._look_at(peer, now)
        if now >= self.tell:
            self.tell = math.inf
            _log.warning(
                "rank %d: %s did not come to the first call of group '%s' yet; waiting up to %g s",
                self.rank,
                self._name(self.missing),
                self.group,
                self.limits.entry,
            )
        if now >= self.end:
            if self.missing == [0] and 0 in self.known:
                raise Error(
                    f"rank 0 came to the first call of group '{self.group}', and did not go on {self._within()}"
                )
            raise Error(
                f"{self._name(self.missing)} did not come to the first call of group '{self.group}' {self._within()}"
            )
        time.sleep(min(self.pause, self.end - now))
        self.pause = min(self.pause * 1.5, 0.02)

    def _look_at(self, peer: int, now: float) -> None:
        process = _read(self.processes, str(self.ranks[peer])) if self.processes is not None else None
        if not has_ended(process):
            self.ended_since.pop(peer, None)
            return
        said = json.dumps(process)
        before, since = self.ended_since.setdefault(peer, (said, now))
        if before != said:
            self.ended_since[peer] = said, now
        elif now - since >= _SURE:
            self._fail_ended(peer, process)

    def _fail_ended(self, peer: int, process: Any) -> NoReturn:
        raise Error(f"{self._name([peer])} (pid {process['pid']}) ended before the first call of group '{self.group}'")

    def _within(self) -> str:
        return f"within {self.limits.entry:g} s (IMBREX_WAIT_LIMIT, or the limits of imbrex.torch.connect)"

    def _name(self, peers: list[int]) -> str:
        one = [f"{peer}" if self.ranks[peer] == peer else f"{peer} ({self.ranks[peer]} of all)" for peer in peers]
        return f"rank {one[0]}" if len(one) == 1 else f"ranks {', '.join(one)}"

    def _put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def _look(self, key: str) -> Any:
        return _read(self.store, key)

    def _remove(self, key: str) -> None:
        try:
            self.store.delete_key(key)
        except Exception:
            return  # some stores keep everything, which costs a few bytes


def _read(store: Any, key: str) -> Any:
    """What the key holds, or None; never waits for it."""
    return json.loads(store.get(key)) if store.check([key]) else None


def meet(
    store: Any, processes: Any, group: str, ranks: list[int], rank: int, limits: Limits, place: dict[str, Any]
) -> list[dict[str, Any]]:
    """
    Every rank's place, once all have called it with theirs.

    Args:
        store: of the group's ranks alone.
        processes: the store in which every process told of itself by its rank among all; None where there is none.
        group: its name, for messages.
        ranks: the group's ranks, by their numbers among all.
        rank: this one's number in the group.
        limits: past `entry` it ends, at the latest; past `wait` it tells who is missing.
        place: what the others are to know of this rank.

    Raises:
        Error: ranks did not come in time, or have ended, which it names; or the store failed.
    """
    meeting = _Meeting(store, processes, group, ranks, rank, limits)
    # A store whose process is stopped never answers. Python could not even be interrupted within its call.
    thread = threading.Thread(target=meeting.run, args=(place,), name="imbrex-meet", daemon=True)
    thread.start()
    try:
        thread.join(limits.entry + _SURE)
    finally:
        meeting.given_up = True
    if thread.is_alive():
        raise Error(
            f"torch's store, in which the ranks of group '{group}' meet before its first call, did not answer "
            f"{meeting._within()}; the process that keeps it is rank 0's or torchrun's"
        )
    if meeting.error is not None:
        raise meeting.error
    return meeting.found


def tell_of_process(store: Any, rank: int) -> None:
    """Lets the ranks that wait for this process's first call know, should it end before."""
    process = own_process()
    if process is not None:
        _quietly(lambda: store.set(str(rank), json.dumps(process)))


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        return  # then they wait until their limit
