#!/usr/bin/env python3
"""Mutates plans, and drives each through check, run, simulate and trace.

No command may crash, hang, or take more memory than it is allowed. What `check` calls sound must run with results that
are right; what it refuses, the others must refuse too. Several programs, such as the usual build and one with
sanitizers, must come to the same verdicts.

usage: attack_test.py [--seed N] [--count N] [--jobs N] [--keep FOLDER] PROGRAM [PROGRAM ...]
       attack_test.py --count 5000 build/bin/imbrex build/asan/bin/imbrex build/cpu/bin/imbrex
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from mutations import Mutator

TIMEOUT = 100  # seconds that a command may take
MEMORY = 4 << 30  # bytes that a process may have; a shared heap of which little is touched may be larger
WAIT_LIMIT = "2"  # seconds that a rank waits for another in a plan that was not checked


def commands_of(file, trace, extra):
    """Name -> arguments. What is not checked may hang, so it comes only now and then."""
    commands = {
        "check": ["check", file],
        "run": ["run", "--plan", file, "--verify", "--device", "cpu"],
        "simulate": ["simulate", "--plan", file, "--machine", "4xh200"],
        "trace": ["trace", "--plan", file, "--machine", "4xh200", "--out", trace],
    }
    if extra:
        commands["run --unchecked"] = ["run", "--plan", file, "--unchecked", "--verify", "--device", "cpu"]
        commands["simulate --unchecked"] = ["simulate", "--plan", file, "--unchecked", "--machine", "4xh200"]
    return commands


class Result:
    def __init__(self, program, arguments, folder, sanitized):
        environment = {**os.environ, "IMBREX_WAIT_LIMIT": WAIT_LIMIT, "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0:exitcode=99"}
        with tempfile.TemporaryFile(dir=folder) as out, tempfile.TemporaryFile(dir=folder) as errors:
            def limit():
                if not sanitized:
                    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=errors, cwd=folder,
                                       env=environment, preexec_fn=limit, start_new_session=True)
            def end():
                self.ended = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
            self.ended = False
            timer = threading.Timer(TIMEOUT, end)
            timer.start()
            begin = time.monotonic()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = self.code = os.waitstatus_to_exitcode(status)
            timer.cancel()
            self.seconds, self.memory = time.monotonic() - begin, usage.ru_maxrss * 1024
            out.seek(0), errors.seek(0)
            self.out, self.errors = out.read().decode(errors="replace"), errors.read().decode(errors="replace")

    def faults(self):
        if self.code < 0 or self.code > 3:
            yield f"exit code {self.code}"
        if self.ended:
            yield f"took {self.seconds:.0f} s"
        if self.memory > MEMORY:
            yield f"took {self.memory >> 20} MiB"
        for word in ("runtime error:", "AddressSanitizer", "terminate called", "std::", "basic_string"):
            if word in self.errors:
                yield f"'{word}' in its message"
        longest = max(map(len, (self.out + "\n" + self.errors).split("\n")))
        if longest > 2000:
            yield f"a line of {longest} characters"
        if any(ord(c) < 32 and c != "\n" or ord(c) == 127 for c in self.out + self.errors):
            yield "control characters in what it prints"

    def out_of_memory(self):
        """The machine, or the limit on memory, is what ended it."""
        return self.code == 3 and any(w in self.errors for w in ("memory", "allocate", "No space", "fit"))


def disagreements(results):
    """What the commands of one program say about the same plan."""
    check = results["check"].code
    if check == 3 and not results["check"].out_of_memory():
        yield "check exits with 3"
    for name in ("run", "simulate", "trace"):
        code = results[name].code
        if check == 0 and code != 0 and not results[name].out_of_memory() and not beyond(results[name]):
            yield f"check calls the plan sound, {name} exits with {code}"
        # A run calls a plan that breaks the format bad input, and one that is refuted unsound.
        if check == 1 and code not in (1, 2) or check == 2 and code != 2:
            yield f"check exits with {check}, {name} with {code}"


def beyond(result):
    """What says nothing about the plan: a machine of too few devices, and lookups, whose operands no file of matrices holds."""
    return result.code == 2 and ("devices" in result.errors or "is not run from a file" in result.errors)


BASES = [
    "gemm_reduce_scatter --m 32 --n 32 --k 32 --ranks 2 --strategy fused --tile-m 16 --tile-n 16 --transport store",
    "gemm_reduce_scatter --m 32 --n 24 --k 32 --ranks 2 --strategy fused --tile-m 16 --tile-n 16 --transport push --comm-rows 8",
    "gemm_reduce_scatter --m 48 --n 24 --k 48 --ranks 3 --strategy fused --tile-m 8 --tile-n 24 --transport pull --reducer tail",
    "gemm_reduce_scatter --m 32 --n 32 --k 64 --ranks 4 --strategy sequential --nodes 2",
    "gemm_reduce_scatter --m 32 --n 32 --k 64 --ranks 2 --strategy decomposed --with-bias",
    "gemm_all_reduce --m 32 --n 32 --k 32 --ranks 1 --strategy fused --tile-m 16 --tile-n 16 --type fp32",
    "gemm_all_reduce --m 32 --n 32 --k 32 --ranks 1 --strategy sequential --type fp32",
    "gemm_all_reduce --m 8 --n 48 --k 32 --ranks 2 --strategy fused --tile-m 16 --tile-n 16 --transport store --type fp32",
    "gemm_all_reduce --m 16 --n 16 --k 32 --ranks 2 --strategy fused --one-shot --transport store --reducer tail --tile-m 8 --tile-n 8",
    "gemm_all_reduce --m 32 --n 32 --k 32 --ranks 2 --strategy decomposed --chunks 3",
    "gemm_all_reduce --m 32 --n 16 --k 512 --ranks 2 --strategy fused --split-k 2 --transport store --tile-m 16 --tile-n 16",
    "gemm_all_to_all --m 32 --n 16 --k 16 --ranks 2 --strategy fused --transport store --tile-m 8 --tile-n 16",
    "gemm_all_to_all --m 32 --n 16 --k 16 --ranks 2 --strategy fused --transport push --tile-m 8 --tile-n 16 --with-bias",
    "gemm_all_to_all --m 32 --n 16 --k 16 --ranks 2 --strategy decomposed",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 2 --strategy fused --transport push --k-slices 2 --tile-m 8 --tile-n 16",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 2 --strategy fused --transport pull --comm-rows 8 --tile-m 16 --tile-n 16",
    "all_gather_gemm --m 24 --n 24 --k 16 --ranks 3 --strategy fused --span-shards --reducer tail --tile-m 16 --tile-n 8",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 2 --strategy fused --transport store --type e4m3 --scales row --tile-m 8 --tile-n 16",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 2 --strategy sequential --type e4m3 --scales tensor",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 2 --strategy decomposed --with-bias --type fp16",
    "all_gather_gemm --m 32 --n 32 --k 16 --ranks 4 --strategy decomposed --nodes 2",
]
EMBEDDINGS = ["--ranks 3 --strategy fused --tile-m 1", "--ranks 2 --strategy sequential", "--ranks 2 --strategy decomposed --chunks 3",
              "--ranks 4 --strategy fused --nodes 2 --chunks 2", "--ranks 4 --strategy sequential --nodes 2"]
TABLES = {"tables": [{"rows": 20, "dim": 8, "hotness": 3}, {"rows": 9, "dim": 4, "count": 6}]}


def attack(programs, seed, count, jobs, keep):
    folder = tempfile.TemporaryDirectory(prefix="imbrex-attack-")
    tables = os.path.join(folder.name, "tables.json")
    Path(tables).write_text(json.dumps(TABLES), encoding="utf-8")
    asked = BASES + [f"embedding_all_to_all --tables {tables} --batch 12 {base}" for base in EMBEDDINGS]
    bases = [json.loads(subprocess.run([programs[0], "plan", *base.split(), "--json", "-"], check=True, capture_output=True,
                                       text=True).stdout) for base in asked]
    # A sanitizer's own memory would count.
    sanitized = [b"__asan_init" in Path(os.path.realpath(program)).read_bytes() for program in programs]
    verdicts, faults, memory, slowest = Counter(), [], 0, 0.0

    def one(number):
        rng = random.Random(f"{seed} {number}")
        text, done = Mutator(rng, bases).mutated(rng.choice(bases))
        file, trace = os.path.join(folder.name, f"{number}.json"), os.path.join(folder.name, f"{number}.trace.json")
        Path(file).write_text(text, encoding="utf-8", errors="surrogatepass")
        extra = rng.random() < 0.05
        def run(program, guarded, arguments):
            result = Result(program, arguments, folder.name, guarded)
            # A machine that stood still is no fault of the program's.
            return Result(program, arguments, folder.name, guarded) if result.ended else result
        results = [{name: run(program, guarded, arguments)
                    for name, arguments in commands_of(file, trace, extra).items()}
                   for program, guarded in zip(programs, sanitized)]
        found = []
        for program, by_name in zip(programs, results):
            found += [f"{program} {name}: {fault}" for name, result in by_name.items() for fault in result.faults()]
            found += [f"{program}: {fault}" for fault in disagreements(by_name)]
        for (program, first), (other, second) in itertools.pairwise(zip(programs, results)):
            for name in first:
                # What is not checked may race; what is short of memory depends on how much a build takes.
                said = [(r.code, r.out if name == "check" else "") for r in (first[name], second[name])]
                if said[0] != said[1] and "unchecked" not in name and not any(r[name].out_of_memory() for r in (first, second)):
                    found.append(f"{name}: {program} says {said[0]}, {other} {said[1]}")
        every = [result for by_name in results for result in by_name.values()]
        if not found or not keep:
            os.unlink(file)
        else:
            os.makedirs(keep, exist_ok=True)
            os.replace(file, os.path.join(keep, f"{seed}-{number}.json"))
        Path(trace).unlink(missing_ok=True)
        first = results[0]
        said = {0: "sound", 1: "unsound", 2: "no plan", 3: "failed"}.get(first["check"].code, "crashed")
        if said == "sound" and first["run"].out_of_memory():
            said = "sound, and larger than memory"
        messages = [r.errors[-300:].strip() for r in every if list(r.faults())]
        return number, done, said, found, max(r.memory for r in every), max(r.seconds for r in every), messages

    with folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, done, said, found, most, longest, messages in pool.map(one, range(count)):
            verdicts[said] += 1
            memory, slowest = max(memory, most), max(slowest, longest)
            if found:
                faults.append(number)
                print(f"mutation {number} ({', '.join(done)}):", *found, *messages, sep="\n    ", flush=True)
    print(f"seed {seed}, {count} mutations: " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())) +
          f"; at most {memory >> 20} MiB and {slowest:.1f} s a command; {len(faults)} faults")
    return verdicts, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("IMBREX_TEST_SEED", "1")))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", help="folder for plans that show a fault")
    parser.add_argument("programs", nargs="*", default=[os.environ.get("IMBREX_PROGRAM", "")], metavar="PROGRAM")
    options = parser.parse_args()
    programs = [os.path.abspath(program) for program in options.programs]
    verdicts, faults = attack(programs, options.seed, options.count, options.jobs, options.keep)
    # An attack in which nothing is sound, or everything, tests little.
    lively = options.count < 100 or (verdicts["sound"] >= options.count // 50 and verdicts["unsound"] >= options.count // 10)
    if not lively:
        print("attack: hardly any plan was sound, or unsound")
    return 1 if faults or not lively else 0


if __name__ == "__main__":
    sys.exit(main())
