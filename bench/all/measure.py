#!/usr/bin/env python3
"""
Measures everything on this machine in so many minutes: `imbrex bench all` starts this.

usage: measure.py [--minutes 10] [--out DIR] [options]; --help lists them

It finds out what the machine has, takes those of a fixed list of measurements that fit into the time, the most
important ones first, and starts the programs and scripts of bin/ and bench/ that measure them, one after another, tests
of several ranks before all. DIR/topics has a JSON file a topic, written after each measurement; DIR/page.html is made
of them at the end. The same command continues where an earlier one was cut off, however it was. Ranks have a GPU each;
where there is one GPU, four share it under MPS, and the page says so; where there is none, the CPU is measured.

It is a script, not a part of the program: it starts ranks, torch, NVSHMEM's peers and other scripts, and needs nothing
but Python's standard library for that. What can't be measured here is left out with a reason, and the rest goes on.
Exits 0, 1 where a test was wrong, 2 where an option is, 130 or 143 where it was ended.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "bench/shmem"))

import lists  # noqa: E402
import page  # noqa: E402
import planner  # noqa: E402
from children import GRACE_S, Children, Ended, Job  # noqa: E402
from measurement import PHASES, Measurement, load  # noqa: E402
from mps import mps  # type: ignore[import-not-found]  # noqa: E402
from options import parse  # noqa: E402
from progress import Progress  # type: ignore[import-not-found]  # noqa: E402
from rows import counts_of, nothing_in, subject_left_out  # noqa: E402
from store import Entry, Store, parsed, write_json  # noqa: E402

import machine as machines  # noqa: E402

RESERVE_S = {"gpus": 8.0, "shared": 10.0, "cpu": 3.0, "given": 2.0}  # for what comes behind the last measurement
LEAST_S = 1.0  # nothing begins with less
MOST_LINES = 2000  # of what a program prints, where that is its result


class Stopped(BaseException):
    """A signal says that the run is to end."""

    def __init__(self, number: int) -> None:
        """Keeps the number of the signal."""
        self.number = number


class Run:
    """One run: the machine, the list, and what is known so far."""

    def __init__(self, options: argparse.Namespace, children: Children) -> None:
        """Surveys the machine. Throws ValueError where options do not fit it, or what lies in --out."""
        self.begin = time.monotonic()
        self.options, self.children = options, children
        # A copied program finds its library in lib/ beside bin/.
        beside = [str(options.bin.parent / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = ":".join(beside)
        patience = max(10.0, min(60.0, 20 * options.minutes))
        most = 0 if options.cpu else machines.MOST_GPUS
        program, given = options.bin / "imbrex", bool(options.measurements)
        self.machine = machines.survey(program, options.python, options.nvshmem, most, patience, given)
        os.environ["LD_LIBRARY_PATH"] = ":".join([*beside, *self.machine.folders])
        if options.cpu:
            self.machine.lacks["gpu"] = "--cpu was given"
        os.environ.update(machines.child_environment(self.machine))
        count = len(self.machine.gpus)
        self.mode = "given" if options.measurements else "gpus" if count >= 2 else "shared" if count else "cpu"
        fitting = {"gpus": 8 if count >= 8 else 4 if count >= 4 else 2, "shared": 4}
        self.ranks = options.ranks or fitting.get(self.mode, 2)
        if self.mode == "gpus" and self.ranks > count:
            raise ValueError(f"--ranks {self.ranks}: there are {count} free GPUs")
        self.per_gpu = self.ranks if self.mode == "shared" else 1
        self.list = self.listed()
        self.store = Store(options.out, not options.dry_run)
        self.about = self.continued()
        self.timed: list[tuple[float, float]] = []  # expected and taken seconds of this run's
        self.mps_environment: dict[str, str] | None = None
        self.mps_stack = contextlib.ExitStack()
        self.mps_folder = ""
        self.tried: set[str] = set()

    def listed(self) -> list[Measurement]:
        """The list for this machine."""
        if self.options.measurements:
            return load(self.options.measurements)
        made = {"gpus": lists.of_gpus, "shared": lists.of_one_gpu, "cpu": lists.of_cpu}[self.mode](self.ranks)
        return [one for one in made if not self.options.only or one.topic in self.options.only]

    def continued(self) -> dict[str, Any]:
        """What run.json says, once it is known that results of an earlier run are of the same machine and programs."""
        path = self.store.folder / "run.json"
        about: dict[str, Any] = {
            "machine": self.machine.as_json(),
            "mode": self.mode,
            "ranks": self.ranks,
            "commit": machines.commit_of(self.options.commit),
            "program": machines.program_digest(self.options.bin / "imbrex"),
            "date": datetime.date.today().isoformat(),
            "minutes": self.options.minutes,
            "runs": 1,
            "taken_s": 0.0,
        }
        before = parsed(path)
        if before is None and self.store.entries:
            raise ValueError(f"--out {self.store.folder}: it has results, and no run.json that says whose")
        if before is not None:
            for key, then, now in [
                (key, before.get(key), about[key]) for key in ("mode", "ranks", "commit", "program")
            ] + [("machine", before.get("machine", {}).get("kind"), self.machine.kind())]:
                if then != now:
                    raise ValueError(
                        f"--out {self.store.folder}: its results are of {key} {then}, and this is {now}; "
                        "give another folder"
                    )
            about |= {"runs": before["runs"] + 1, "taken_s": before["taken_s"], "date": before["date"]}
        self.taken_before = about["taken_s"]
        if not self.options.dry_run:
            write_json(path, about)
            write_json(self.store.folder / "tables.json", lists.dlrm_tables(self.mode == "cpu"))
        return about

    # What is left to do.

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin

    def left(self) -> float:
        """Seconds for measurements."""
        whole = 60 * float(self.options.minutes)
        return whole - min(RESERVE_S[self.mode], 0.15 * whole) - self.elapsed()

    def lacking(self, one: Measurement) -> str:
        """Why it can't be measured here; empty where it can."""
        for need in one.needs:
            kind, _, name = need.partition(":")
            if need.startswith("!"):  # what another measurement, of what the machine has, says as well
                if need[1:] in self.machine.has:
                    return f"another one tells it here, with {need[1:]}"
                continue
            if kind == "bin" and not (self.options.bin / name).exists():
                return f"there is no program {name} in {self.options.bin}"
            if kind == "lib" and not (self.lib() / name).exists():
                return f"there is no {name} in {self.lib()}"
            if kind not in ("bin", "lib") and need not in self.machine.has:
                return self.machine.lacks.get(need, f"this machine has no {need}")
        if one.mps and one.phase > 0 and "mps" not in self.machine.has:
            return f"ranks on one GPU take turns without MPS; times mean nothing: {self.machine.lacks.get('mps', '')}"
        return ""

    def lib(self) -> Path:
        """The folder of libraries that scripts load."""
        beside: Path = self.options.bin.parent / "lib"
        here: Path = self.options.bin
        return here if (here / "embedding_bench.so").exists() else beside

    def open(self) -> list[Measurement]:
        """What is to be measured yet."""
        closed = {"done"} if self.options.again else {"done", "failed"}
        return [one for one in self.list if one.name not in self.tried and self.store.status(one.name) not in closed]

    def recover(self) -> None:
        """Keeps what a child had written when an earlier run was killed: there may be no time to measure it again."""
        for one in self.open():
            if self.store.status(one.name) in ("", "left out") and one.output == "file":
                result = parsed(self.store.raw(one.name))
                if not nothing_in(one.reader, result):
                    self.put(one, "partial", "the run was ended while this was measured", result=result)

    # Running one.

    def filled(self, word: str, one: Measurement, seconds: float) -> str:
        """A word of a command, or a variable's value, with what its names stand for."""
        peer, dormant = self.options.bin / "nvshmem_peer", self.options.bin / "shmem_dormant_bench"
        places = {
            "program": self.options.bin / "imbrex",
            "bin": self.options.bin,
            "lib": self.lib(),
            "stand_in": self.options.bin.parent / "stand_in",
            "libraries": os.environ.get("LD_LIBRARY_PATH", ""),
            "bench": ROOT / "bench",
            "python": self.options.python,
            "out": self.store.raw(one.name),
            "dir": self.store.folder,
            "tables": self.store.folder / "tables.json",
            "ranks": self.ranks,
            "per_gpu": self.per_gpu,
            "gpus": len(self.machine.gpus),
            "gpu": self.machine.gpus[0]["name"] if self.machine.gpus else "CPU",
            "nvshmem": self.machine.nvshmem,
            "peer": peer if peer.exists() else "",
            "dormant": dormant if dormant.exists() else "",
            "seconds": f"{max(1.0, min(one.seconds, seconds - 3)):.0f}",
        }
        for name, value in places.items():
            word = word.replace(f"{{{name}}}", str(value))
        return word

    def words(self, one: Measurement, seconds: float) -> list[str]:
        """Its command, without options whose value is not there."""
        words = [word for word in (self.filled(word, one, seconds) for word in one.command) if not word.endswith("=")]
        return [self.options.python, str(ROOT / "bench/all/ranks.py"), str(one.ranks), *words] if one.ranks else words

    def environment(self, one: Measurement, gpu: int) -> dict[str, str]:
        """Its variables, with MPS where it shares a GPU, and of several GPUs one where it takes no more."""
        shared = self.under_mps() if one.mps and self.mode == "shared" else {}
        own = {name: self.filled(value, one, 0) for name, value in one.environment.items()}
        if one.one_gpu and self.mode == "gpus":
            own["CUDA_VISIBLE_DEVICES"] = self.machine.gpus[gpu]["index"]
        return {**os.environ, **shared, **own}

    def company(self, one: Measurement) -> list[Measurement]:
        """It, and where it takes one GPU of several, others of its phase that do, those of larger weight first."""
        if not one.one_gpu or self.mode != "gpus":
            return [one]
        time_left = self.left() / planner.pace_of(self.timed)
        others = [
            other
            for other in self.open()
            if other.one_gpu and other.phase == one.phase and other != one and other.seconds <= time_left
        ]
        return [one, *sorted(others, key=lambda m: -m.weight)[: len(self.machine.gpus) - 1]]

    def under_mps(self) -> dict[str, str]:
        """Starts MPS where it does not run yet. Nothing where it does not serve; then that is known."""
        if self.mps_environment is None and "mps" in self.machine.has:
            try:
                started: dict[str, str] = self.mps_stack.enter_context(mps())
                if started["CUDA_MPS_PIPE_DIRECTORY"] != os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
                    self.mps_folder = str(Path(started["CUDA_MPS_PIPE_DIRECTORY"]).parent)
                    self.children.mps_runs(self.mps_folder)
                told = machines.answer([str(self.options.bin / "imbrex"), "doctor", "--json", "-"], started)
                if not (told.startswith("{") and json.loads(told)["gpus"]):
                    raise ValueError("it starts, and serves nobody")
                self.mps_environment = {
                    key: value
                    for key, value in started.items()
                    if key.startswith("CUDA_MPS_") or key == "CUDA_VISIBLE_DEVICES"
                }
            except (OSError, ValueError, subprocess.SubprocessError) as fault:
                self.machine.has.discard("mps")
                self.machine.lacks["mps"] = f"MPS does not run: {fault}"
                self.end_mps()
        return self.mps_environment or {}

    def end_mps(self) -> None:
        """Ends it where it was started here: behind a child that was ended it may be of no use."""
        self.mps_stack.close()
        if self.mps_folder:
            self.children.mps_ended(self.mps_folder)
        self.mps_environment, self.mps_folder = None, ""

    def put(self, one: Measurement, status: str, reason: str = "", **more: Any) -> None:
        """Keeps a result; a partial one never goes for less."""
        known = self.store.entries.get(one.name, {})
        if status in ("failed", "left out") and known.get("status") == "partial":
            return
        entry: Entry = {
            "topic": one.topic,
            "status": status,
            "title": one.title,
            "reader": one.reader,
            "expected_s": one.seconds,
            "shared": self.mode == "shared" and (one.mps or one.environment == lists.THREADS),
            "mps": one.mps,
        }
        if reason:
            entry["reason"] = reason
        self.store.put(one.name, entry | more)

    def job(self, one: Measurement, gpu: int) -> Job | None:
        """How it is run; None, and a reason in the results, where it can't be."""
        self.tried.add(one.name)
        if (
            self.mode in ("gpus", "shared")
            and one.memory_gib > 0
            and (free := machines.free_gib(self.machine)) < one.memory_gib
        ):
            self.put(one, "left out", f"{free:.1f} GiB of a GPU's memory are free, and it needs {one.memory_gib:g}")
            return None
        environment = self.environment(one, gpu)
        if reason := self.lacking(one):
            self.put(one, "left out", reason)
            return None
        seconds = max(min(one.limit, self.left() - GRACE_S), LEAST_S / 2)
        raw = self.store.raw(one.name)
        raw.unlink(missing_ok=True)
        for folder in ("constants/1", "constants/2"):
            (self.store.folder / folder).mkdir(parents=True, exist_ok=True)
        out, errors = self.store.raw(one.name, "stdout"), self.store.raw(one.name, "stderr")
        return Job(self.words(one, seconds), environment, seconds, out, errors)

    def measure(self, ones: list[Measurement]) -> None:
        """Runs them at once, and keeps what they brought."""
        jobs = [(one, job) for gpu, one in enumerate(ones) if (job := self.job(one, gpu))]
        for (one, job), ended in zip(jobs, self.children.run_together([job for _, job in jobs]), strict=True):
            if isinstance(ended, OSError):
                self.put(one, "failed", f"it does not start: {ended}")
                continue
            self.keep(one, ended, job.out, job.errors, self.store.raw(one.name))
            if one.mps and (ended.timed_out or ended.code not in one.codes):
                self.end_mps()

    def keep(self, one: Measurement, ended: Ended, out: Path, errors: Path, raw: Path) -> None:
        """Judges how it ended, by its code and by what it wrote."""
        text = out.read_text(encoding="utf-8", errors="replace")
        said = [line for line in errors.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-5:]
        result: Any = None
        if one.output == "text":
            result = text.splitlines()[:MOST_LINES] or None
        elif one.output == "stdout":
            with contextlib.suppress(ValueError):
                result = json.loads(text)
        else:
            result = parsed(raw)
        more: dict[str, Any] = {"seconds": round(ended.seconds, 2), "code": ended.code, "said": said}
        if not (nothing := nothing_in(one.reader, result)):
            more["result"] = result
        self.timed.append((one.seconds, ended.seconds))
        if ended.timed_out:
            reason = f"it had not ended after {ended.seconds:.0f} s"
        elif ended.code not in one.codes:
            reason = (
                f"it ended with {ended.code}"
                if ended.code >= 0
                else f"it was ended by {signal.Signals(-ended.code).name}"
            )
            reason += f": {' / '.join(said)[-300:]}" if said else ""
        elif nothing:
            reason = f"{nothing}{': ' if said else ''}{' / '.join(said)[-300:]}"
        elif missing := subject_left_out(result):
            reason = f"no time for {'; '.join(missing[:3])}" + (f", and {len(missing) - 3} more" * (len(missing) > 3))
        else:
            return self.put(one, "done", **more)
        self.put(one, "failed" if nothing else "partial", reason, **more)

    def go(self) -> None:
        """All that fits."""
        self.recover()
        for one in self.open():
            if reason := self.lacking(one):
                self.put(one, "left out", reason)
                self.tried.add(one.name)
        total = len(self.open())
        progress = Progress("bench all", total)
        while self.left() > LEAST_S:
            planned = planner.chosen(self.open(), self.left(), planner.pace_of(self.timed))
            if not planned:
                break
            ones = self.company(planned[0])
            seconds = f"{self.elapsed():4.0f} s of {60 * self.options.minutes:.0f}"
            to_do = f"{len(planned)} of {len(self.open())} to do"
            for one in ones:
                print(f"[{seconds}, {to_do}] {one.topic}: {one.name}, about {one.seconds:.0f} s", flush=True)
            progress.show(
                total - len(self.open()), f"{ones[0].name}, and at most {max(self.left(), 0):.0f} s to the end"
            )
            self.measure(ones)
            progress.clear()
            for one in ones:
                entry = self.store.entries[one.name]
                reason = f": {entry['reason']}" if "reason" in entry else ""
                who = f"{one.name} " if len(ones) > 1 else ""
                print(f"    {who}{entry['status']}{reason} ({entry.get('seconds', 0):.1f} s)", flush=True)
            self.note_time()
        for one in self.open():
            if self.store.status(one.name) != "partial":
                self.put(
                    one,
                    "left out",
                    f"no time: it takes about {one.seconds:.0f} s, and {max(self.left(), 0):.0f} were left",
                )
        measured = sum(self.store.status(name) == "done" for name in self.tried)
        print(f"{measured} of {total} measured, in {self.elapsed():.0f} s", flush=True)

    def note_time(self) -> None:
        """What the run took so far."""
        self.about |= {"machine": self.machine.as_json(), "taken_s": round(self.taken_before + self.elapsed(), 1)}
        write_json(self.store.folder / "run.json", self.about)

    def finish(self) -> int:
        """Makes the page, ends MPS; 1 where a test was wrong."""
        self.note_time()
        print(f"page: {page.write(self.store.folder)}", flush=True)
        self.end_mps()
        wrong = sum(
            counts_of(entry)["wrong"] for entry in self.store.entries.values() if entry.get("result") is not None
        )
        return 1 if wrong else 0


_asked: list[int] = []


def stop(number: int, _: object) -> NoReturn:
    """For signals. Python drops what some callbacks raise, as a fork's: it is raised again until it is caught."""
    _asked.append(number)
    signal.setitimer(signal.ITIMER_REAL, 1)
    raise Stopped(_asked[0])


def main(arguments: list[str]) -> int:
    """Measures."""
    options = parse(arguments, __doc__ or "")
    if not Path(options.python).exists() and shutil.which(options.python) is None:
        print(f"bench all: --python {options.python}: there is no such program", file=sys.stderr)
        return 2
    options.bin, options.out = options.bin.resolve(), options.out.resolve()
    seconds = 60 * options.minutes
    children = Children(seconds + 2)
    # Should something here not answer: what is known is shown in time all the same.
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds - 2, 0.95 * seconds))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        run = Run(options, children)
        print(f"{run.machine.kind()}: {run.ranks} ranks, {options.minutes:g} minutes, into {options.out}", flush=True)
        for name, why in sorted(run.machine.lacks.items()):
            print(f"    without {name}: {why}", flush=True)
        if options.dry_run:
            planned = planner.chosen([one for one in run.open() if not run.lacking(one)], run.left())
            for one in planned:
                numbers = f"weight {one.weight:3.0f}, about {one.seconds:3.0f} s"
                print(f"{PHASES[one.phase]:13} {one.topic:12} {one.name:30} {numbers}")
            return 0
        code = 0
        try:
            run.go()
        except Stopped as stopped:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(f"ended by {signal.Signals(stopped.number).name}; the same command continues", flush=True)
            code = 0 if stopped.number == signal.SIGALRM else 128 + stopped.number
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        return run.finish() or code
    except (ValueError, OSError) as fault:
        print(f"bench all: {fault}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if stopped.number != signal.SIGALRM:
            return 128 + stopped.number
        print(f"bench all: --minutes {options.minutes:g}: looking at the machine took them all", file=sys.stderr)
        return 2
    finally:
        children.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
