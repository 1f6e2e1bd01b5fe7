#!/usr/bin/env python3
"""Layers of large models, split over the ranks of one host in several ways, which are measured in turns in one run.

usage: torchrun --nproc-per-node R bench/model/measure.py --out OUT.json [options]; --help lists them

The ways: torch's functional collectives; the same, compiled with torch's symmetric memory (GPUs only); Imbrex; Imbrex with
sums in int8, which serves only; and the same products without any communication. Passes: a training step (forward,
backward, AdamW), prefill, decode (replayed from a CUDA graph where there is one). Medians over rounds of the slowest rank,
divided by the layers. What fails on some rank is left out, printed, and named in the result: "failed"; then the status is 1. A way's effective communication time is what it takes longer than without communication, and its
overlap efficiency is one less the ratio of that to the functional collectives'. What one rank computes is timed alone, too:
"solo_us". Memory is that of a call beside what lies there between calls, and what a way takes outside of torch's allocator.
First the ways are checked against the whole model on one rank, at a size that --check-scale divides. Weights are random.
Ranks have a GPU each, share them where there are too few, and work on the CPU where there is none; --scale makes layers small
enough for that.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import predict  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from checks import logits, training  # noqa: E402
from device import Clock, Failed, device_of, gpus_of, graph_nodes  # noqa: E402
from layers import Layer  # noqa: E402
from report import write_rows  # noqa: E402
from shapes import SHAPES, scaled  # noqa: E402
from ways import Functional, Imbrex, Neither, SymmetricMemory  # noqa: E402

import imbrex.torch  # noqa: E402

PASSES = ("train", "prefill", "decode")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--models", nargs="+", default=[*SHAPES], choices=[*SHAPES], help="default: all")
    parser.add_argument("--passes", nargs="*", default=[*PASSES], choices=PASSES, help="default: all")
    parser.add_argument("--layers", type=int, default=4, help="layers of the stack that is measured (default 4)")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a sequence (default 2048)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of prefill (default 8); training has 2 at most")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512], help="sequences of a decode step (default 64 512)")
    parser.add_argument("--scale", type=int, default=1, help="divides heads' sizes and MLPs' widths (default 1)")
    parser.add_argument("--check-scale", type=int, default=16, help="the same for what is checked; 0: nothing is (default 16)")
    parser.add_argument("--steps", type=int, default=50, help="steps of the training that is checked (default 50)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (default 5)")
    parser.add_argument("--calls", type=int, default=4, help="calls in a turn (default 4)")
    parser.add_argument("--predict", default="4xh200", metavar="MACHINE", help="machine that prefill is simulated on; none: none")
    parser.add_argument("--program", default=str(ROOT / "build/bin/imbrex"), help="the program (default: build/bin/imbrex)")
    options = parser.parse_args(argv)
    for name in ("layers", "sequence", "batch", "scale", "rounds", "calls"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be at least 1")
    return options


def has_symmetric_memory(group, device):
    """Whether torch's symmetric memory is tried: it needs a GPU for each rank."""
    return device.type == "cuda" and torch.cuda.device_count() >= group.size()


def ways_of(group, device, what):
    """The candidates of a pass. Decoding has no sequence to split; a codec's errors have no gradient."""
    split = what != "decode"
    ways = [Functional(group, split), Imbrex(group, split), Neither(group, split)]
    if what != "train":
        ways.append(Imbrex(group, split, "int8"))
    if has_symmetric_memory(group, device):
        ways.append(SymmetricMemory(group, split))
    return ways


class Stack:
    """Layers of one way, and the call of a pass over them."""

    def __init__(self, shape, way, what, options, tokens, device):
        torch.manual_seed(3 + way.rank)
        self.way, self.what, self.device = way, what, device
        self.layers = torch.nn.Sequential(*(Layer(shape, way, device, torch.bfloat16) for _ in range(options.layers)))
        ranks = way.ranks if what != "decode" else 1
        batch = {"train": min(options.batch, 2), "prefill": options.batch, "decode": tokens}[what]
        length = options.sequence // ranks if what != "decode" else 1
        self.x = torch.randn(length, batch, shape.hidden, device=device).to(torch.bfloat16)
        self.call, self.nodes = self._call_of(shape, options, batch), None
        if isinstance(way, SymmetricMemory):
            from torch.distributed._symmetric_memory import enable_symm_mem_for_group

            enable_symm_mem_for_group(way.group.group_name)
            self.layers.compile()

    def _call_of(self, shape, options, batch):
        if self.what == "train":
            self.dy = torch.randn_like(self.x)
            self.optimiser = torch.optim.AdamW(self.layers.parameters(), lr=1e-6, fused=self.device.type == "cuda")
            self.x.requires_grad_()
            return self._train
        for parameter in self.layers.parameters():
            parameter.requires_grad_(False)
        if self.what == "prefill":
            return lambda: self.layers(self.x)
        size = (batch, shape.kv_heads // self.way.ranks, options.sequence, shape.head_size)
        self.caches = [[torch.randn(size, device=self.device).to(torch.bfloat16) for _ in range(2)] for _ in self.layers]
        return self._decode

    def _train(self):
        self.layers(self.x).backward(self.dy)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.x.grad = None

    def _decode(self):
        x = self.x
        for layer, cache in zip(self.layers, self.caches):
            x = layer(x, cache)
        return x

    def make_ready(self):
        """Makes operators, compiles, and captures what is replayed."""
        import torch._inductor.config as inductor

        with inductor.patch(_micro_pipeline_tp=isinstance(self.way, SymmetricMemory)):
            for _ in range(3):
                self.call()
        if self.what == "decode" and self.device.type == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            # A capture that fails leaves its stream behind as the current one: the outer one puts this one back.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.call()
            graph.instantiate()
            self.nodes, self.call = graph_nodes(graph), graph.replay


def measured(shape, what, options, tokens, group, device, clock):
    """Microseconds a layer of each way of a pass; what cannot be made says why."""
    stacks, failures, outside = {}, {}, {}
    for way in ways_of(group, device, what):
        try:
            stack = clock.together(lambda: Stack(shape, way, what, options, tokens, device))
            outside[way.name] = clock.outside(stack.make_ready)
            stacks[way.name] = stack
        except Failed as failed:
            failures[way.name] = str(failed)
    samples = {name: [] for name in stacks}
    for _ in range(options.rounds):
        for name in [*samples]:
            try:
                samples[name].append(clock.sample(stacks[name].call, options.calls))
            except Failed as failed:
                failures[name] = str(failed)
                del samples[name]
    found = {}
    for name, taken in samples.items():
        us, host, memory = (statistics.median(sample[i] for sample in taken) for i in range(3))
        found[name] = {"us": us / options.layers, "host_us": host / options.layers}
        if device.type == "cuda":
            found[name] |= {"peak_bytes": memory, "outside_bytes": outside[name]}
        if stacks[name].nodes is not None:
            found[name]["graph_nodes"] = stacks[name].nodes / options.layers
    if Neither.name in found:
        try:
            found[Neither.name]["solo_us"] = clock.alone(stacks[Neither.name].call, options.calls) / options.layers
        except Failed as failed:
            failures[f"{Neither.name}, alone"] = str(failed)
    if not {Neither.name, Functional.name} <= found.keys():
        return found, None, failures
    solo, base = found[Neither.name]["us"], found[Functional.name]["us"]
    for numbers in found.values():
        numbers["communication_us"] = numbers["us"] - solo
        if base > solo:
            numbers["overlap"] = 1 - (numbers["us"] - solo) / (base - solo)
    return found, (base - solo) / base, failures


def rounded(numbers):
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in numbers.items()}


def rows_of(model, options, group, device, clock):
    shape = scaled(SHAPES[model], options.scale)
    for what in options.passes:
        for tokens in options.tokens if what == "decode" else [0]:
            found, share, failures = measured(shape, what, options, tokens, group, device, clock)
            row = {"model": model, "pass": what, "ways": {name: rounded(numbers) for name, numbers in found.items()}}
            if share is not None:
                row["share_of_communication"] = round(share, 3)
            if what == "decode":
                row["tokens"] = tokens
            if what == "prefill" and options.predict != "none" and dist.get_rank() == 0:
                try:
                    seconds = predict.layer(options.program, options.predict, shape, options.sequence, options.batch, group.size())
                    row["predicted"] = {"machine": options.predict, **{way: round(s["layer"] * 1e6, 1) for way, s in seconds.items()}}
                except (OSError, RuntimeError, ValueError) as error:
                    failures["the prediction"] = str(error)
            if failures:
                row["failed"] = failures
            yield row


def commit_here():
    """The checkout's commit; empty where git does not tell."""
    try:
        return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    except OSError:
        return ""


def checked(model, options, group, device, clock):
    """What checks.py finds of a model that is smaller."""
    small = replace(scaled(SHAPES[model], options.check_scale), vocabulary=256)
    found = {"logits": logits(small, 2, group, 64, 2, device, clock)}
    if options.steps:
        try:
            found["training"] = clock.together(lambda: training(small, 1, group, 64, 4, options.steps, device))
        except Failed as failed:
            found["training"] = {"failed": str(failed)}
    return found


def failures_in(checks, rows):
    """Each with its place. Torch's symmetric memory is none: it needs what not every machine has."""
    found = {(model, what): failed for model, check in checks.items()
             for what, told in ({**check["logits"], "training": check.get("training", {})}).items() if (failed := told.get("failed"))}
    return found | {(row["model"], row["pass"], way): failed for row in rows for way, failed in row.get("failed", {}).items()
                    if way != SymmetricMemory.name}


def main(argv):
    begin = time.perf_counter()
    options = parse(argv)
    device = device_of(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None)
    group, clock = dist.group.WORLD, Clock(device, dist.new_group(backend="gloo"))
    is_first = dist.get_rank() == 0
    if is_first and not has_symmetric_memory(group, device):
        print("SKIPPED: torch symmetric memory, compiled: it needs a GPU for each rank", flush=True)
    commit = commit_here()
    gpus = gpus_of(group.size()) if device.type == "cuda" else f"{os.cpu_count()} cores"
    checks, rows = {}, []

    def written():
        """What is known so far: a run that is cut off leaves it."""
        sizes = {key: getattr(options, key) for key in ("layers", "sequence", "batch", "scale", "check_scale", "rounds", "calls")}
        write_rows(options.out, {"machine": f"{group.size()} ranks on {gpus}; torch {torch.__version__}", "date": datetime.date.today().isoformat(),
                                 "commit": commit, "sizes": sizes, "checks": checks, "rows": rows})

    for model in options.models:
        if options.check_scale:
            checks[model] = checked(model, options, group, device, clock)
            if is_first:
                print(f"{model}: {checks[model]}", flush=True)
        for row in rows_of(model, options, group, device, clock):
            rows.append(row)
            if is_first:
                told = [f"{name} {numbers['us']:.1f} us" for name, numbers in row["ways"].items()]
                told += [f"{name} FAILED: {failed}" for name, failed in row.get("failed", {}).items()]
                told += [f"communication is {row['share_of_communication']:.0%}"] if "share_of_communication" in row else []
                print(f"{model} {row['pass']}: " + "; ".join(told) + f"; {time.perf_counter() - begin:.0f} s so far", flush=True)
                written()
    failures = failures_in(checks, rows)
    for where, failed in failures.items() if is_first else ():
        print(f"FAILED: {', '.join(where)}: {failed}", flush=True)
    imbrex.torch.destroy()
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
