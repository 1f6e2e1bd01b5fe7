#!/usr/bin/env python3
"""Fused operators beside NCCL's all-reduces, which are ordered by nothing: whether both come to an end, and what leaving SMs costs.

usage: torchrun --nproc-per-node R bench/python/beside_nccl.py --sms K [options]; --help lists them

Every round calls an operator on one stream and a NCCL all-reduce of another process group on another stream, in an order that each
rank draws, after a pause that it draws. Results are compared, bit by bit, with those of calls without NCCL. It prints the rounds that
were done, the seconds, and the wrong results.

With --hold RANK there is one round: on that rank the fused kernel has started before NCCL's are queued, on the others NCCL's before the
fused one. With --sms 0 all then wait for each other until the wait limit, which is what is expected; with enough SMs all end. A block of
the fused kernel leaves its SM when its own tiles are done, and waits for one block of each peer: so NCCL's kernels have to take more
than half of the SMs, by --groups 2 --ctas 64 say. Fewer start on the SMs that blocks have left, and all end without any SM left out.

With --out FILE it measures the operators' times without NCCL, for worlds that leave 0, 16 and 32 SMs, in turns: medians of the slowest rank.
"""

import argparse
import datetime
import os
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]

# Streams that share a hardware queue would wait for each other.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from device import device_of  # noqa: E402
from report import write_rows  # noqa: E402

import imbrex  # noqa: E402
import imbrex.torch  # noqa: E402

LEFT = (0, 16, 32)  # SMs, of the times
HEAD_START = 0.2  # seconds, of the kernel that is to start first
IN_FLIGHT = 3  # NCCL's all-reduces


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sms", type=int, default=16, help="SMs that Imbrex leaves to others (default 16)")
    parser.add_argument("--ctas", type=int, help="blocks that NCCL may take (default: --sms, or 16 where that is 0)")
    parser.add_argument("--groups", type=int, default=1, help="process groups whose all-reduces NCCL runs at once (default 1)")
    parser.add_argument("--cga", type=int, default=0, help="blocks of a cluster of NCCL's; -1: NCCL's own default (default 0: no clusters)")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds (default 1000)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of an all-reduce (default 256)")
    parser.add_argument("--pause", type=float, default=1e-3, help="longest pause, seconds (default 0.001)")
    parser.add_argument("--seed", type=int, default=1, help="of pauses and orders (default 1)")
    parser.add_argument("--hold", type=int, help="one round, in which this rank's fused kernel and the others' NCCL kernels start first")
    parser.add_argument("--wait-limit", type=float, default=20.0, help="seconds that a wait of Imbrex may last (default 20)")
    parser.add_argument("--rows", type=int, default=4096, help="rows of the products (default 4096)")
    parser.add_argument("--columns", type=int, default=8192, help="columns (default 8192)")
    parser.add_argument("--depth", type=int, default=8192, help="depth (default 8192)")
    parser.add_argument("--samples", type=int, default=100, help="calls of each time (default 100)")
    parser.add_argument("--out", help="result file of the times; without it none are measured")
    options = parser.parse_args(argv)
    for name in ("rounds", "mib", "rows", "columns", "depth", "samples", "groups"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be at least 1")
    if options.sms < 0:
        parser.error(f"--sms {options.sms}: it must be 0 or more")
    if options.ctas is None:
        options.ctas = options.sms or 16
    return options


def operators_of(group, options, device):
    """Calls by name; each gives its result."""
    torch.manual_seed(dist.get_rank())
    ranks = group.size()

    def made(*shape):
        return torch.randn(*shape, device=device).bfloat16()

    slices = made(options.rows, options.depth // ranks), made(options.depth // ranks, options.columns)
    parts = made(options.rows // ranks, options.depth), made(options.depth, options.columns // ranks)
    vector = made(options.rows, options.columns)
    return {"all_gather_matmul": lambda: imbrex.torch.all_gather_matmul(*parts, group),
            "matmul_reduce_scatter": lambda: imbrex.torch.matmul_reduce_scatter(*slices, group),
            "matmul_all_reduce": lambda: imbrex.torch.matmul_all_reduce(*slices, group),
            "all_reduce": lambda: imbrex.torch.all_reduce(vector, group)}


class Other:
    """NCCL's all-reduces of one process group, on a stream of their own. A mean of ones stays one."""

    def __init__(self, options, device):
        asked = dist.ProcessGroupNCCL.Options()
        asked.config.max_ctas = options.ctas
        if options.hold is not None:  # what is to be in the way is there
            asked.config.min_ctas = options.ctas
        self.group = dist.new_group(backend="nccl", pg_options=asked)
        self.stream = torch.cuda.Stream(device)
        self.buffers = [torch.ones(options.mib << 18, device=device) for _ in range(IN_FLIGHT)]
        self.works, self.count = [None] * IN_FLIGHT, 0
        torch.cuda.synchronize()
        self.queue()
        torch.cuda.synchronize()

    def queue(self):
        at = self.count % IN_FLIGHT
        self.count += 1
        with torch.cuda.stream(self.stream):
            if self.works[at] is not None:
                self.works[at].wait()  # the stream does, for the buffer
            self.works[at] = dist.all_reduce(self.buffers[at], dist.ReduceOp.AVG, group=self.group, async_op=True)

    def wrong(self):
        torch.cuda.synchronize()
        return sum(int((buffer != 1).any()) for buffer in self.buffers)


class Others:
    """Those of all process groups."""

    def __init__(self, options, device):
        self.all = [Other(options, device) for _ in range(options.groups)]

    def queue(self):
        for other in self.all:
            other.queue()

    def wrong(self):
        return sum(other.wrong() for other in self.all)


def bits_differ(one, other):
    return torch.ne(one.view(torch.int16), other.view(torch.int16)).any().long()


def run_rounds(group, options, others, device):
    """How many rounds were done, the seconds, wrong results of ours and of NCCL's, and what ended them before time."""
    operators = list(operators_of(group, options, device).values())
    expected = [operator() for operator in operators]
    torch.cuda.synchronize()
    draws = random.Random(options.seed * 1000 + dist.get_rank())
    wrong = torch.zeros((), dtype=torch.long, device=device)
    begin, done, ended = time.perf_counter(), 0, ""
    try:
        for done in range(options.rounds):
            which = done % len(operators)
            time.sleep(draws.random() * options.pause)
            others_first = draws.random() < 0.5
            if others_first:
                others.queue()
            result = operators[which]()
            if not others_first:
                others.queue()
            wrong += bits_differ(result, expected[which])
            if done % 16 == 15:  # else the host runs ahead, and pauses move nothing
                torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
        imbrex.torch.check(group)
        done = options.rounds
    except imbrex.Error as error:
        ended = str(error)
    return done, time.perf_counter() - begin, int(wrong), others.wrong(), ended


def run_held(group, options, others, device, meeting):
    """What ended the round; empty where it came to its end."""
    operator = operators_of(group, options, device)["matmul_reduce_scatter"]
    operator()
    torch.cuda.synchronize()
    dist.barrier(group=meeting)
    first, second = (operator, others.queue) if dist.get_rank() == options.hold else (others.queue, operator)
    try:
        first()
        time.sleep(HEAD_START)
        second()
        torch.cuda.synchronize()
        imbrex.torch.check(group)
    except imbrex.Error as error:
        return str(error)
    return ""


def on_all(meeting, value):
    values = [None] * dist.get_world_size(meeting)
    dist.all_gather_object(values, value, group=meeting)
    return values


def say_rounds(results):
    for rank, (done, seconds, wrong, wrong_others, ended) in enumerate(results):
        print(f"rank {rank}: {done} rounds in {seconds:.1f} s, {wrong} wrong results, {wrong_others} wrong of NCCL's{': ' + ended if ended else ''}",
              flush=True)


def measured(options, device, meeting):
    """Microseconds of each operator, for each number of SMs that are left: medians of the slowest rank."""
    calls = {}
    for sms in LEFT:
        group = dist.new_group()
        imbrex.torch.connect(group, sms_for_others=sms, device=device, wait_limit=options.wait_limit)
        for name, call in operators_of(group, options, device).items():
            calls[name, sms] = call
    samples = {key: [] for key in calls}
    for i in range(-5, options.samples):
        for key, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier(group=meeting)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if i >= 0:
                samples[key].append(begin.elapsed_time(end) * 1e3)
    medians = torch.tensor([statistics.median(taken) for taken in samples.values()], dtype=torch.float64)
    dist.all_reduce(medians, dist.ReduceOp.MAX, group=meeting)
    us = dict(zip(samples, medians.tolist()))
    return [{"operator": name, "sms_for_others": sms, "us": round(us[name, sms], 1), "times_of_none": round(us[name, sms] / us[name, 0], 3)}
            for name, sms in sorted(us)]


def write_times(options, device, meeting):
    rows = measured(options, device, meeting)
    if dist.get_rank() != 0:
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    sizes = {key: getattr(options, key) for key in ("rows", "columns", "depth", "samples")}
    write_rows(options.out, {"machine": f"{dist.get_world_size()} ranks on {torch.cuda.get_device_name()}; torch {torch.__version__}",
                             "date": datetime.date.today().isoformat(), "sizes": sizes, "rows": rows})


def run(options, device, meeting):
    """Whether all was as it should be, on this rank."""
    group = dist.group.WORLD
    imbrex.torch.connect(group, sms_for_others=options.sms, device=device, wait_limit=options.wait_limit)
    others = Others(options, device)
    if options.hold is not None:
        endings = on_all(meeting, run_held(group, options, others, device, meeting))
        if dist.get_rank() == 0:
            for rank, ended in enumerate(endings):
                print(f"rank {rank}, {options.sms} SMs left, rank {options.hold} held: {ended or 'both ended'}", flush=True)
        return any(endings) if options.sms == 0 else not any(endings)
    results = on_all(meeting, run_rounds(group, options, others, device))
    if dist.get_rank() == 0:
        say_rounds(results)
    good = all(done == options.rounds and not (wrong or wrong_others or ended) for done, _, wrong, wrong_others, ended in results)
    if good and options.out:
        write_times(options, device, meeting)
    return good


def main(argv):
    options = parse(argv)
    if not torch.cuda.is_available():
        sys.exit("beside_nccl.py: no GPU was found; it is about GPUs")
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if ranks < 2 or ranks > gpus:
        sys.exit(f"beside_nccl.py: {ranks} ranks and {gpus} GPUs: there must be two ranks or more, and a GPU for each")
    if options.hold is not None and not 0 <= options.hold < ranks:
        sys.exit(f"beside_nccl.py: --hold {options.hold}: ranks are 0 to {ranks - 1}")
    if options.cga >= 0:
        os.environ.setdefault("NCCL_CGA_CLUSTER_SIZE", str(options.cga))
    device = device_of(int(os.environ["LOCAL_RANK"]), ranks)
    dist.init_process_group("nccl", device_id=device)
    meeting = dist.new_group(backend="gloo")
    good = run(options, device, meeting)
    sys.stdout.flush()
    dist.barrier(group=meeting)
    # A world that reached its limit is of no use, and ends with the process.
    if options.hold is None and good:
        imbrex.torch.destroy()
        dist.destroy_process_group()
        return
    os._exit(0 if good else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
