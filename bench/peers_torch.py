#!/usr/bin/env python3
"""PyTorch's fused operators, and cuBLAS with NCCL through PyTorch, in turns with Imbrex on the same GPUs in one run.

usage: torchrun --nproc-per-node R bench/peers_torch.py --out OUT.json [options]; --help lists them

Rank 0 keeps one `imbrex bench --serve` alive beside the torch processes. For each problem torch's candidates and Imbrex
are measured alternately, neither while the other works; medians count. On both sides operations are replayed from CUDA
graphs (eagerly where an operator cannot be captured; the output says which), on random data, behind operations that
let the ranks begin together, and the slowest rank counts. NVLink multicast is off. OUT.json has the rows of `imbrex
bench --json`, each with torch's times in "peers"; bench/gpu_tables.py takes it.
"""

import argparse
import datetime
import json
import math
import os
import selectors
import statistics
import subprocess
import sys
from collections import deque

from report import ROOT, joined, write_result

OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all")
ROWS = (16, 64, 128, 256, 512, 1024, 2048, 3000, 4096, 8192, 16384)
# N and K of Llama-3-8B's, Llama-3-70B's and GPT-3's MLP layers; an exchange multiplies what a rank of four holds.
LAYERS = {
    "all_gather_gemm": ((28672, 4096), (57344, 8192), (49152, 12288)),
    "gemm_reduce_scatter": ((4096, 14336), (8192, 28672), (12288, 49152)),
    "gemm_all_reduce": ((4096, 14336), (8192, 28672), (12288, 49152)),
    "gemm_all_to_all": ((4096, 3584), (8192, 7168), (12288, 12288)),
}
SQUARE = 8192
# Beyond, one-shot is not what anybody would take.
ONE_SHOT_BYTES = 4 << 20
# Calls that take this many microseconds; how long samples last; the first turns, which do not count: the GPU's clock
# settles.
LASTING, SAMPLE, FIRST_TURNS = 100, 10e3, 3
# No answer within these seconds: something hangs.
PATIENCE = 300
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def grid(operators=OPERATORS, rows=ROWS):
    """Problems as (operator, M, N, K): the layers with every M, the all-reduce with M = 1 too, and 8192 cubed."""
    problems = []
    for op in operators:
        for n, k in LAYERS[op]:
            problems += [(op, m, n, k) for m in ((1,) if op == "gemm_all_reduce" and 16 in rows else ()) + tuple(rows)]
        if SQUARE in rows and op != "gemm_all_to_all":
            problems.append((op, SQUARE, SQUARE, SQUARE))
    return problems


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file, replaced after each problem")
    parser.add_argument("--imbrex", default=str(ROOT / "build/bin/imbrex"), help="the program (default: build/bin/imbrex)")
    parser.add_argument("--ops", nargs="+", choices=OPERATORS, default=OPERATORS, metavar="OP", help="default: all four")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="M", help="default: the whole grid")
    parser.add_argument("--turns", type=int, default=5, help="times that each side is measured (default 5)")
    parser.add_argument("--rounds", type=int, default=1, help="samples in a turn (default 1)")
    parser.add_argument("--machine", default="", help="what the result file says of the machine, in words")
    options = parser.parse_args(argv)
    if options.turns < 1 or options.rounds < 1:
        parser.error(f"--turns {options.turns} --rounds {options.rounds}: both must be at least 1")
    if min(options.rows) < 1:
        parser.error(f"--rows {min(options.rows)}: it must be positive")
    return options


class Imbrex:
    """`imbrex bench --serve`, or a program like it, on GPUs of its own ranks' processes."""

    def __init__(self, program, ranks, rounds, patience=PATIENCE, arguments=None):
        self.name, self.patience = os.path.basename(program), patience
        environment = {name: value for name, value in os.environ.items()
                       if name not in LAUNCHER_VARIABLES and not name.startswith("TORCHELASTIC_")}
        environment["IMBREX_WAIT_LIMIT"] = str(2 * patience)  # the ranks wait while torch is measured
        arguments = arguments or ["bench", "--serve", "--ranks", str(ranks), "--rounds", str(rounds)]
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.rest = b""

    def line(self):
        while b"\n" not in self.rest:
            if not self.selector.select(self.patience):
                self.process.kill()
                raise TimeoutError(f"{self.name} did not answer within {self.patience} s")
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
            self.rest += chunk
        line, self.rest = self.rest.split(b"\n", 1)
        return line

    def measure(self, problem):
        self.process.stdin.write((" ".join(map(str, problem)) + "\n").encode())
        self.process.stdin.flush()
        row = json.loads(self.line())
        if "error" in row:
            raise RuntimeError(f"{self.name}: {row['error']}")
        return row

    def close(self):
        self.process.stdin.close()
        self.process.wait(self.patience)


def torch_candidates(problem, ranks, group, torch, dist, symmetric):
    """Name -> a call of the operator as torch's users have it. Weights are stored as nn.Linear does."""
    op, m, n, k = problem
    options = {"device": "cuda", "dtype": torch.bfloat16}
    uniform = lambda rows, cols: torch.empty(rows, cols, **options).uniform_(-1, 1)
    fused = torch.ops.symm_mem
    if op == "all_gather_gemm":
        b = uniform(n // ranks, k).t()
        own = symmetric.empty(m // ranks, k, **options).uniform_(-1, 1)
        symmetric.rendezvous(own, group)
        gathered, out = torch.empty(m, k, **options), torch.empty(m, n // ranks, **options)

        def sequential():
            dist.all_gather_into_tensor(gathered, own)
            torch.mm(gathered, b, out=out)

        return {"cuBLAS+NCCL": sequential, "fused": lambda: fused.fused_all_gather_matmul(own, [b], 0, group)}
    if op == "gemm_all_to_all":
        a, b = uniform(m, k), uniform(n, k).t()
        product, out = torch.empty(m, n, **options), torch.empty(m, n, **options)

        def sequential():
            torch.mm(a, b, out=product)
            dist.all_to_all_single(out, product)

        return {"cuBLAS+NCCL": sequential}
    a, b = uniform(m, k // ranks), uniform(n, k // ranks).t()
    product = symmetric.empty(m, n, **options)
    symmetric.rendezvous(product, group)
    if op == "gemm_reduce_scatter":
        out = torch.empty(m // ranks, n, **options)

        def sequential():
            torch.mm(a, b, out=product)
            dist.reduce_scatter_tensor(out, product)

        return {"cuBLAS+NCCL": sequential, "fused": lambda: fused.fused_matmul_reduce_scatter(a, b, "sum", 0, group)}

    def with_sum(add):
        def call():
            torch.mm(a, b, out=product)
            add()
        return call

    calls = {"cuBLAS+NCCL": with_sum(lambda: dist.all_reduce(product)),
             "cuBLAS+two-shot": with_sum(lambda: fused.two_shot_all_reduce_(product, "sum", group))}
    if 2 * m * n <= ONE_SHOT_BYTES:
        calls["cuBLAS+one-shot"] = with_sum(lambda: fused.one_shot_all_reduce(product, "sum", group))
    return calls


class Timer:
    """Samples calls on every rank; the slowest rank counts. Ranks meet by the host's means, so that no GPU waits."""

    def __init__(self, torch, dist, meeting):
        self.torch, self.dist, self.meeting = torch, dist, meeting
        self.stream = torch.cuda.Stream()

    def counts(self, microseconds):
        """Calls that lead in, and calls that are timed, of one that takes so long: as many as `imbrex bench` has in a sample."""
        return 2, 8 if microseconds < LASTING else max(2, 2 * math.ceil(SAMPLE / microseconds / 2))

    def first_turns(self, samples):
        """How many turns do not count, by the samples (name, microseconds) of one."""
        return FIRST_TURNS if max((us for _, us in samples), default=0) >= LASTING else 1

    def slowest(self, value):
        tensor = self.torch.tensor([float(value)])
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX, group=self.meeting)
        return tensor.item()

    def all_good(self, good):
        return self.slowest(0 if good else 1) == 0

    def prepare(self, call):
        """(replay of the lead, replay of what is timed, calls in it, "graph" or "eager"), or None where it does not run."""
        torch = self.torch
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(3):
                    call()
            self.stream.synchronize()
            good = True
        except RuntimeError as error:
            print(f"    does not run: {error}".splitlines()[0], file=sys.stderr)
            good = False
        if not self.all_good(good):
            return None
        lead, calls = self.counts(self.time_of(lambda: self.run(call, 4), 4))
        try:
            graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
            for graph, count in zip(graphs, (lead, calls)):
                with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    for _ in range(count):
                        call()
            good = True
        except RuntimeError:
            torch.cuda.synchronize()
            good = False
        if self.all_good(good):
            return graphs[0].replay, graphs[1].replay, calls, "graph"
        return lambda: self.run(call, lead), lambda: self.run(call, calls), calls, "eager"

    @staticmethod
    def run(call, count):
        for _ in range(count):
            call()

    def time_of(self, replay, calls, lead=None):
        """Microseconds a call."""
        torch = self.torch
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self.dist.barrier(group=self.meeting)
        with torch.cuda.stream(self.stream):
            if lead:
                lead()
            begin.record()
            replay()
            end.record()
        end.synchronize()
        return self.slowest(begin.elapsed_time(end) * 1e3 / calls)


def without_multicast():
    """To be called before torch is imported."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NCCL_GRAPH_REGISTER"] = "0"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"


def join(torch, dist, patience):
    """Rank, number of ranks, a group to meet in on the CPU, and the name of torch's group of all ranks."""
    local = os.environ.get("LOCAL_RANK")
    if local is None:
        sys.exit("no LOCAL_RANK: start this by torchrun --nproc-per-node RANKS")
    if torch.cuda.device_count() <= int(local):
        sys.exit(f"rank {local} needs a GPU of its own, and torch sees {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(int(local))
    limit = datetime.timedelta(seconds=2 * patience)
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()), timeout=limit)
    meeting = dist.new_group(backend="gloo", timeout=limit)
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), meeting, dist.group.WORLD.group_name


def by_turns(calls, timer, options, measure):
    """Torch's calls and what `measure` does (rank 0 has one), neither while the other works. Returns name -> median
    microseconds and name -> how it was replayed, of the calls that can be, and what measure returned each turn."""
    torch, dist, meeting = timer.torch, timer.dist, timer.meeting
    prepared = {name: timer.prepare(call) for name, call in calls.items()}
    prepared = {name: p for name, p in prepared.items() if p}
    times, turns = {name: [] for name in prepared}, []
    names, turn = deque(prepared), 0

    def sample(name):
        lead, replay, count, _ = prepared[name]
        return timer.time_of(replay, count, lead)

    while len(turns) < options.turns:
        samples = [(name, sample(name)) for _ in range(options.rounds) for name in names]
        names.rotate(-1)  # the first one after a pause finds the GPU cooler
        torch.cuda.synchronize()
        dist.barrier(group=meeting)
        measured = measure() if measure else None
        dist.barrier(group=meeting)
        # What comes first finds it cooler still: the other side was getting ready.
        if turn >= timer.first_turns(samples):
            turns.append(measured)
            for name, microseconds in samples:
                times[name].append(microseconds)
        turn += 1
    medians = {name: round(statistics.median(t), 2) for name, t in times.items()}
    return medians, {name: p[3] for name, p in prepared.items()}, turns


def main(argv):
    options = parse(argv)
    without_multicast()
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    rank, ranks, meeting, group = join(torch, dist, PATIENCE)
    timer = Timer(torch, dist, meeting)
    imbrex = Imbrex(options.imbrex, ranks, options.rounds) if rank == 0 else None
    rows = []
    say = lambda text: print(text, flush=True) if rank == 0 else None
    for problem in grid(options.ops, options.rows):
        say("{} {} x {} x {}".format(*problem))
        calls = torch_candidates(problem, ranks, group, torch, dist, symmetric)
        medians, replayed, turns = by_turns(calls, timer, options, imbrex and (lambda: imbrex.measure(problem)))
        if rank == 0:
            row = joined(turns)
            row["peers"], row["peers_by"] = medians, replayed
            rows.append(row)
            chosen = next(plan for plan in row["plans"] if plan["chosen"])
            say(f"    Imbrex {chosen['us']:.1f} us ({chosen['name']}), its cuBLAS+NCCL {row['plans'][0]['us']:.1f} us; torch: "
                + ", ".join(f"{name} {us:.1f} us ({row['peers_by'][name]})" for name, us in row["peers"].items()))
            machine = options.machine or f"{ranks} {torch.cuda.get_device_name()}; torch {torch.__version__}, NVLink multicast off"
            write_result(options.out, machine, datetime.date.today().isoformat(), rows)
        del calls
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    if imbrex:
        imbrex.close()
    dist.barrier(group=meeting)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
