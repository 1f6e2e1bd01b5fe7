#!/usr/bin/env python3
"""Measures embedding lookups alone: ours, FBGEMM's table-batched forward and torch's embedding_bag, in turn.

usage: measure.py LIBRARY [--fbgemm FOLDER] [--json FILE] [--cells 0,5-8] [--joint] [--slices 1,8] [--only-joint] [--sweep]
                  [--rounds 15]

LIBRARY is embedding_bench.so of a build with CUDA; what it needs beside CUDA's driver (libfmt) may lie in its folder. FOLDER
holds asmjit.so, fbgemm.so, fbgemm_gpu_config.so, fbgemm_gpu_tbe_common.so and fbgemm_gpu_tbe_training_forward.so of FBGEMM
for this torch and Python; without it FBGEMM is left out, and said to be.

A cell is a set of tables, a batch and a type of rows, which results have too. In each, candidates take turns in rounds; a
turn is a replayed graph of calls with different indices, and the median over rounds counts. Rates are of the bytes that
must move, rows, results and indices of 32 bits, even if a library reads more. The rate at which the card reads memory from one end
to the other is measured in the same rounds. Results are compared before anything is timed. Exits 1 where they differ.

With --joint, in the cells of 16,384 rows and more: what the lookup takes as one of four ranks, to all of which it stores
and posts, slice by slice, beside itself alone, and itself followed by a copy of the results and the copy that regroups
them. Peers are always ready, and their memory is this GPU's, so that all is seen but what the wire takes. --slices says
how many slices each rank's rows have, one number or several; the operator makes one.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from candidates import Joint, Ours, embedding_bags, fbgemm, load, load_fbgemm, stream
from tables import CELLS, INDEX_SETS, RANKS, READ_BYTES, Lookup, Tables


class Turns:
    """Calls of one candidate, each with other indices, as a graph where it can be captured."""

    def __init__(self, call: Callable[[Lookup], Any], lookups: list[Lookup], capture: bool = True) -> None:
        self.calls, self.graph = len(lookups), None
        self.run = lambda: [call(lookup) for lookup in lookups]
        self.run()
        torch.cuda.synchronize()
        if capture:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    kept = self.run()
                self.graph, self.kept = graph, kept
            except RuntimeError as error:
                print(f"  no graph: {str(error).splitlines()[0]}", file=sys.stderr)
                torch.cuda.synchronize()
        self.times: list[float] = []

    def turn(self) -> None:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.run()
        end.record()
        end.synchronize()
        self.times.append(begin.elapsed_time(end) / self.calls * 1e-3)

    def seconds(self) -> float:
        return statistics.median(self.times)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest one, a piece at a time."""
    return max(float((a.float() - b.float()).abs().max()) for a, b in zip(one.split(4096), other.split(4096)))


def tolerance(tables: Tables) -> float:
    """Rows hold values up to 1: sums in fp32 in two orders, and one rounding to the type of results."""
    most = max(tables.hotness)
    return 2 * most * (most * 2**-24 + (2**-11 if tables.kind == "fp16" else 0))


class Reader:
    """Reads memory from one end to the other; the faster of two launches counts."""

    def __init__(self, library: ctypes.CDLL, memory: torch.Tensor) -> None:
        self.bytes = min(READ_BYTES, memory.numel()) // 16 * 16
        self.sink = torch.zeros(4, device="cuda", dtype=torch.int32)
        sms = torch.cuda.get_device_properties(0).multi_processor_count

        def launch(blocks: int) -> Callable[[Lookup], None]:
            def call(_: Lookup) -> None:
                library.embedding_read(memory.data_ptr(), self.bytes, self.sink.data_ptr(), blocks, stream())

            return call

        nothing = Lookup(self.sink, self.sink)
        self.turns = [Turns(launch(sms * each), [nothing]) for each in (4, 8)]

    def turn(self) -> None:
        for turns in self.turns:
            turns.turn()

    def rate(self) -> float:
        return self.bytes / min(turns.seconds() for turns in self.turns)


def measure_cell(
    args: argparse.Namespace,
    library: ctypes.CDLL,
    memory: torch.Tensor,
    reader: Reader,
    tables: Tables,
    batch: int,
    wide: bool,
    zipf: float,
) -> dict[str, Any]:
    lookups = [tables.lookup(batch, wide, zipf, seed) for seed in range(INDEX_SETS)]
    ours = Ours(library, tables, batch)
    candidates: dict[str, Callable[[Lookup], Any]] = {"ours": ours}
    if not args.no_fbgemm:
        candidates["fbgemm"] = fbgemm(tables)
    if not args.no_torch and not wide and zipf == 0:
        candidates["torch"] = embedding_bags(tables, batch)
    row: dict[str, Any] = {"index": "int64" if wide else "int32", "zipf": zipf}
    result = ours(lookups[0])
    ours.check(lookups[0])
    first = result.clone()
    if not torch.equal(ours(lookups[0]), first):
        row["fault"] = "two runs of ours differ"
    for name, call in candidates.items():
        if name == "ours":
            continue
        apart = difference(call(lookups[0]), first)
        row[f"{name}_difference"] = apart
        if not apart <= tolerance(tables):
            row["fault"] = f"{name} differs by {apart}"
    del first, result
    turns = {
        name: Turns(call, lookups[:1] if name == "torch" else lookups, capture=name != "torch")
        for name, call in candidates.items()
    }
    for i in range(args.rounds):
        for name, turn in turns.items():
            if name != "torch" or i < 3:
                turn.turn()
        reader.turn()
    ours.check(lookups[0])
    moved = tables.moved(batch)
    for name, turn in turns.items():
        row[name] = {"us": turn.seconds() * 1e6, "tb_s": moved / turn.seconds() / 1e12, "graph": turn.graph is not None}
    if args.sweep and not wide and zipf == 0:
        row["sweep"] = sweep(library, tables, batch, lookups)
    del turns
    ours.free()
    torch.cuda.empty_cache()
    return row


def measure_joint(args: argparse.Namespace, library: ctypes.CDLL, tables: Tables, batch: int) -> dict[str, Any]:
    lookups = [tables.lookup(batch, False, 0, seed) for seed in range(INDEX_SETS)]
    alone = Ours(library, tables, batch)
    joints = {f"joint_{cut}": Joint(library, tables, batch, cut) for cut in args.slices}
    received = torch.empty_like(alone.out)
    regrouped = torch.empty(batch // RANKS, RANKS, tables.columns, device="cuda", dtype=alone.out.dtype)

    def in_sequence(lookup: Lookup) -> torch.Tensor:
        received.copy_(alone(lookup))
        return regrouped.copy_(received.view(RANKS, batch // RANKS, tables.columns).transpose(0, 1))

    row: dict[str, Any] = {"tables": None, "rows": tables.kind, "batch": batch, "slices": args.slices[0]}
    first = alone(lookups[0]).clone()
    for joint in joints.values():
        if not torch.equal(joint(lookups[0]), first):
            row["fault"] = "one of several ranks gives other sums"
    del first
    candidates: dict[str, Callable[[Lookup], Any]] = {"alone": alone, **joints, "in_sequence": in_sequence}
    turns = {name: Turns(call, lookups) for name, call in candidates.items()}
    for _ in range(args.rounds):
        for turn in turns.values():
            turn.turn()
    row |= {name: {"us": turn.seconds() * 1e6} for name, turn in turns.items()}
    row["joint"] = row[f"joint_{args.slices[0]}"]
    row["joint_over_alone"] = row["joint"]["us"] / row["alone"]["us"]
    row["over_alone_by_slices"] = {cut: row[f"joint_{cut}"]["us"] / row["alone"]["us"] for cut in args.slices}
    row["in_sequence_over_joint"] = row["in_sequence"]["us"] / row["joint"]["us"]
    del turns
    for made in (alone, *joints.values()):
        made.free()
    torch.cuda.empty_cache()
    return row


def sweep(library: ctypes.CDLL, tables: Tables, batch: int, lookups: list[Lookup]) -> list[dict[str, Any]]:
    """Bytes of an item, blocks an SM, and tables of more bytes than these leave the second level first; 0: none does."""
    found = []
    tunings = [(item, blocks, 0) for blocks in (1, 2, 3) for item in (8192, 16384, 32768, 65536)]
    tunings += [(item, 3, kept << 20) for kept in (8, 64) for item in (16384, 32768)]
    for tuning in tunings:
        ours = Ours(library, tables, batch, tuning)
        turns = Turns(ours, lookups)
        for _ in range(7):
            turns.turn()
        found.append(
            {"item_bytes": tuning[0], "blocks_per_sm": tuning[1], "kept_bytes": tuning[2], "us": turns.seconds() * 1e6}
        )
        del turns
        ours.free()
    return found


def cells_of(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def summary(rows: list[dict[str, Any]], read: float) -> dict[str, Any]:
    """What the targets ask for, of uniform and of Zipf's indices, by type."""
    told: dict[str, Any] = {"read_tb_s": read / 1e12}
    for zipf in (0, 1.05):
        for index in ("int32", "int64"):
            those = [row for row in rows if row["zipf"] == zipf and row["index"] == index and "fbgemm" in row]
            ratios = [row["fbgemm"]["us"] / row["ours"]["us"] for row in those]
            if ratios:
                told[f"{index}, {'zipf' if zipf else 'uniform'}"] = {
                    "cells": len(ratios),
                    "least": min(ratios),
                    "geometric_mean": statistics.geometric_mean(ratios),
                }
    long_bags = [
        row["ours"]["tb_s"] * 1e12 / read for row in rows if row["long_bags"] and row["batch"] >= 16384 and row["zipf"] == 0
    ]
    if long_bags:
        told["least_share_of_read_rate_with_long_bags"] = min(long_bags)
    return told


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--fbgemm", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--cells", default=f"0-{len(CELLS) - 1}")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--joint", action="store_true")
    parser.add_argument("--only-joint", action="store_true", help="leave out the lookups that --joint does not need")
    parser.add_argument("--slices", type=cells_of, default=[1], help="of each rank's rows, with --joint (default 1)")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=140, help="no cell begins behind this many")
    args = parser.parse_args()
    begun = time.monotonic()
    library = load(args.library)
    why = load_fbgemm(args.fbgemm) if args.fbgemm else "no folder given"
    args.no_fbgemm = bool(why)
    told: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "fbgemm": why or "1.6.0",
        "left_out": [],
    }
    print(json.dumps(told), flush=True)
    free = torch.cuda.mem_get_info()[0]
    wanted = [CELLS[i] for i in cells_of(args.cells)]
    needed = {(name, kind): Tables.bytes(name, kind) for name, kind, _ in wanted}
    # Beside the tables: indices and offsets, results of all calls of the graphs.
    beside = 6 << 30
    fitting = {key: size for key, size in needed.items() if size + beside <= free}
    if not fitting:
        print("no cell fits this card", file=sys.stderr)
        return 1
    memory = torch.empty(max(fitting.values()) // 16 * 16, device="cuda", dtype=torch.uint8)
    reader = Reader(library, memory)
    rows: list[dict[str, Any]] = []
    joint: list[dict[str, Any]] = []
    for key in needed:
        batches = [batch for name, kind, batch in wanted if (name, kind) == key]
        if key not in fitting:
            told["left_out"] += [f"{key[0]}, {key[1]}, batch {batch}: {needed[key] >> 30} GiB of tables" for batch in batches]
            continue
        tables = Tables(memory, *key)
        for batch in batches:
            for zipf in () if args.only_joint else (0, 1.05):
                for wide in (False, True):
                    if time.monotonic() - begun > args.seconds:
                        told["left_out"].append(f"{key[0]}, {key[1]}, batch {batch}, zipf {zipf}: no time")
                        continue
                    row = {"tables": key[0], "rows": key[1], "batch": batch, "long_bags": min(tables.hotness) >= 64}
                    row |= measure_cell(args, library, memory, reader, tables, batch, wide, zipf)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            if (args.joint or args.only_joint) and batch >= 16384:
                joint.append(measure_joint(args, library, tables, batch) | {"tables": key[0]})
                print(json.dumps(joint[-1]), flush=True)
    if not rows:
        reader.turn()
    # Every cell has ours.
    told["subject_left_out"] = [cell for cell in told["left_out"] if cell.endswith(": no time")]
    told |= {"cells": rows, "joint": joint, "summary": summary(rows, reader.rate()), "seconds": time.monotonic() - begun}
    print(json.dumps({"left_out": told["left_out"], "summary": told["summary"], "seconds": told["seconds"]}, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    faults = [row for row in rows + joint if "fault" in row]
    for row in faults:
        print(f"FAULT: {row['tables']}, {row['rows']}, batch {row['batch']}: {row['fault']}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
