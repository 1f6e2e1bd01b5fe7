#!/usr/bin/env python3
"""PyTorch's all-reduces and NCCL's beside Imbrex's on the same GPUs, in turn: pass by pass, torch's, then all_reduce_bench's.

usage: torchrun --nproc-per-node R bench/peers_all_reduce.py [--bench build/bin/all_reduce_bench] [--json OUT.json]

Candidates: torch.ops.symm_mem.one_shot_all_reduce (the result is a new tensor), two_shot_all_reduce_ (in place), and
torch.distributed.all_reduce, which is NCCL's. Each is captured in a CUDA graph of several calls; ranks are brought
together before each replay; microseconds a call, of the slowest rank, median of the rounds; of all passes, the median.
NVLink multicast is off.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ONE_SHOT_MOST = 4 << 20
SPIN_CYCLES = 400_000  # about 200 us, in which the host queues what is timed


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="all_reduce_bench, to run between torch's passes")
    parser.add_argument("--codecs", nargs="*", default=[], help="for all_reduce_bench: int8 int4+int8 ...")
    parser.add_argument("--least", type=int, default=1 << 10, help="bytes of the smallest tensor")
    parser.add_argument("--most", type=int, default=1 << 30, help="bytes of the largest; sizes double")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=20, help="calls a graph; a tenth above 8 MiB")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args(argv)
    for name in ("least", "most", "passes", "rounds", "runs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be positive")
    if options.least % 16 != 0:
        parser.error(f"--least {options.least}: it must be a multiple of 16")
    return options


def sizes(options):
    size = options.least
    while size <= options.most:
        yield size
        size *= 2


def merge(passes):
    """Rows of several passes, each a list of {bytes, microseconds: {name: us}}: the median of each name at each size."""
    times = {}
    for rows in passes:
        for row in rows:
            for name, us in row["microseconds"].items():
                times.setdefault(row["bytes"], {}).setdefault(name, []).append(us)
    return [{"bytes": size, "microseconds": {name: round(statistics.median(us), 2) for name, us in names.items()}}
            for size, names in sorted(times.items())]


class Torch:
    """One rank's measurements."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric_memory
        self.torch, self.dist, self.options = torch, dist, options
        self.rank = int(os.environ["RANK"])
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
        self.host = dist.new_group(backend="gloo")
        self.group = dist.group.WORLD.group_name
        self.tensor = torch.zeros(options.most // 2, device="cuda", dtype=torch.bfloat16)
        self.symmetric = symmetric_memory.empty(options.most // 2, device="cuda", dtype=torch.bfloat16).zero_()
        symmetric_memory.rendezvous(self.symmetric, self.group)
        self.small = torch.zeros(8, device="cuda")
        self.graphs = {}

    def candidates(self, size):
        plain, shared = self.tensor[:size // 2], self.symmetric[:size // 2]
        ops = self.torch.ops.symm_mem
        calls = {"nccl by torch": lambda: self.dist.all_reduce(plain),
                 "torch two_shot": lambda: ops.two_shot_all_reduce_(shared, "sum", self.group)}
        if size <= ONE_SHOT_MOST:
            calls["torch one_shot"] = lambda: ops.one_shot_all_reduce(shared, "sum", self.group)
        return calls

    def graph(self, size, name, call):
        runs = self.options.runs if size <= 8 << 20 else max(2, self.options.runs // 10)
        if (size, name) not in self.graphs:
            stream = self.torch.cuda.Stream()
            with self.torch.cuda.stream(stream):
                for _ in range(3):
                    call()
            self.torch.cuda.synchronize()
            self.dist.barrier()
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph, stream=stream):
                for _ in range(runs):
                    call()
            self.graphs[size, name] = graph
        return self.graphs[size, name], runs

    def time(self, graph, runs):
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        self.dist.barrier(group=self.host)
        cuda._sleep(SPIN_CYCLES)
        self.dist.all_reduce(self.small)  # ranks leave it together
        begin.record()
        graph.replay()
        end.record()
        cuda.synchronize()
        slowest = self.torch.tensor(begin.elapsed_time(end) * 1e3 / runs)
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX, group=self.host)
        return slowest.item()

    def measure(self):
        rows = []
        for size in sizes(self.options):
            calls, times = self.candidates(size), {}
            for round_ in range(-1, self.options.rounds):
                for name, call in calls.items():
                    us = self.time(*self.graph(size, name, call))
                    if round_ >= 0:
                        times.setdefault(name, []).append(us)
            rows.append({"bytes": size, "microseconds": {name: statistics.median(us) for name, us in times.items()}})
        return rows

    def barrier(self):
        self.torch.cuda.synchronize()
        self.dist.barrier(group=self.host)


def imbrex(options, ranks):
    """One run of all_reduce_bench, in processes of its own that know nothing of torchrun."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.bench, "--ranks", ranks, "--least", options.least, "--most", options.most, "--rounds",
                   options.rounds, "--runs", options.runs, "--json", out.name]
        command += ["--codecs", *options.codecs] if options.codecs else []
        subprocess.run([str(word) for word in command], env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(out.name, encoding="utf-8"))["rows"]


def main(argv):
    options = arguments(argv)
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if "RANK" not in os.environ:
        print("peers_all_reduce: start it with torchrun", file=sys.stderr)
        return 1
    torch = Torch(options)
    ranks = int(os.environ["WORLD_SIZE"])
    passes = []
    for _ in range(options.passes):
        passes.append(torch.measure())
        torch.barrier()
        if options.bench and torch.rank == 0:
            passes.append(imbrex(options, ranks))
        torch.barrier()
    rows = merge(passes)
    if torch.rank == 0:
        for row in rows:
            print(f"{row['bytes']:>11}", "  ".join(f"{name} {us}" for name, us in row["microseconds"].items()))
        if options.json:
            with open(options.json, "w", encoding="utf-8") as out:
                json.dump({"gpu": torch.torch.cuda.get_device_name(), "ranks": ranks, "type": "bf16",
                           "torch": torch.torch.__version__, "passes": options.passes, "rows": rows}, out, indent=1)
                out.write("\n")
    torch.graphs.clear()
    torch.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
