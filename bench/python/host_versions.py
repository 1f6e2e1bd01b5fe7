#!/usr/bin/env python3
"""What a call costs the host with two versions of the package, in turn in one run.

usage: host_versions.py OLD NEW --out OUT.json [options]    OLD and NEW: folders that hold a version's package `imbrex`

Each round starts the ranks with one version, then with the other. They call in bursts of eight, each followed by a synchronisation
outside the clock. Ten bursts of a call come one after another; the first of them, which follows other work and a meeting of the
ranks, counts apart, as "after a pause". Medians over bursts, the slowest rank, then the median over rounds. "new M" is the first
call with an M that was not met before, of 64 up to 2048, with N 4096 and K 2048.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]
BURST = 8
BURSTS = 10  # in a row
LARGEST = 2048  # M
MARK = "host_versions: "


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="folder for PYTHONPATH")
    parser.add_argument("new", help="folder for PYTHONPATH")
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each version is started (default 5)")
    parser.add_argument("--calls", type=int, default=800, help="calls of each kind in a round (default 800)")
    parser.add_argument("--only", default="", metavar="TEXT", help="calls whose names hold this")
    options = parser.parse_args(argv)
    for name in ("ranks", "rounds", "calls"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be at least 1")
    for folder in (options.old, options.new):
        if not (Path(folder) / "imbrex").is_dir():
            parser.error(f"{folder}: it holds no package imbrex")
    return options


def calls_of(torch, imbrex, device, ranks):
    """Name -> a call, and name -> one that takes the number of rows."""
    t = imbrex.torch
    tensor = lambda *shape: torch.randn(*shape, device=device).bfloat16()
    x, residual, weight, small = tensor(16, 4096), tensor(16, 4096), tensor(4096), tensor(16, 4096)
    bag = t.nn.ShardedEmbeddingBag([(1000, 64)] * ranks, batch_size=64, device=device, dtype=torch.float32)
    shards = sum(shard.rank == torch.distributed.get_rank() for shard in bag.shards)
    indices = torch.randint(1000, (shards * 64,), device=device)
    offsets = torch.arange(shards * 64 + 1, device=device)

    def update():
        with torch.enable_grad():
            bag(indices, offsets).sum().backward()

    calls = {}
    for m, n, k in ((256, 2048, 2048), (2048, 4096, 2048)):  # auto takes libraries for the one, a fused plan for the other
        a, own, whole, part = tensor(m, k // ranks), tensor(m // ranks, k), tensor(k, n // ranks), tensor(k // ranks, n)
        scattered, gathered, summed = tensor(m // ranks, n), tensor(m, n // ranks), tensor(m, n)
        for name, one, two, out in (("all_gather_matmul", own, whole, gathered), ("matmul_reduce_scatter", a, part, scattered),
                                    ("matmul_all_reduce", a, part, summed), ("matmul_all_to_all", a, part, None)):
            function = getattr(t, name)
            calls[f"{name}, M {m}"] = lambda f=function, one=one, two=two: f(one, two)
            if out is not None:
                calls[f"{name}, M {m}, out"] = lambda f=function, one=one, two=two, out=out: f(one, two, out=out)
    calls |= {"all_reduce": lambda: t.all_reduce(x), "all_reduce, out": lambda: t.all_reduce(x, out=small),
              "all_reduce, codec": lambda: t.all_reduce(x, codec="int8"),
              "all_reduce_rms_norm": lambda: t.all_reduce_rms_norm(x, residual, weight),
              "embedding look-up": lambda: bag(indices, offsets), "embedding look-up and update": update}
    k = 2048
    rows, wide = tensor(LARGEST, k // ranks), tensor(k // ranks, 4096)
    sized = {"matmul_all_reduce, new M": lambda m: t.matmul_all_reduce(rows[:m], wide),
             "matmul_reduce_scatter, new M": lambda m: t.matmul_reduce_scatter(rows[: m // ranks * ranks], wide)}
    return calls, sized


def work(calls_of_each, only):
    """One rank's part in a round."""
    import torch
    import torch.distributed as dist
    from device import device_of

    device = device_of(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", device_id=device if device.type == "cuda" else None)
    meeting = dist.new_group(backend="gloo")
    import imbrex.torch

    imbrex.torch.connect(dist.group.WORLD)
    synchronise = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    samples = {}

    def burst(name, call, count):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        samples.setdefault(name, []).append((time.perf_counter() - begin) / count * 1e6)
        synchronise()

    with torch.no_grad():
        calls, sized = ({name: call for name, call in some.items() if only in name} for some in calls_of(torch, imbrex, device, dist.get_world_size()))
        for call in calls.values():
            call()
        synchronise()
        for _ in range(max(1, calls_of_each // (BURST * BURSTS))):
            for name, call in calls.items():
                dist.barrier(group=meeting)
                burst(f"{name}, after a pause", call, BURST)
                for _ in range(BURSTS - 1):
                    burst(name, call, BURST)
        for name, call in sized.items():
            call(LARGEST)  # what has to grow grows now
            for m in random.Random(1).sample(range(16, LARGEST, 8), 64):
                dist.barrier(group=meeting)
                burst(name, lambda m=m, call=call: call(m), 1)
    samples |= {f"{name}, of twenty the slowest": [sorted(samples[name])[-3]] for name in sized}
    medians = torch.tensor([statistics.median(taken) for taken in samples.values()], dtype=torch.float64)
    dist.all_reduce(medians, dist.ReduceOp.MAX, group=meeting)
    if dist.get_rank() == 0:
        print(MARK + json.dumps({"us": dict(zip(samples, medians.tolist(), strict=True)), "torch": torch.__version__,
                                 "on": torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} cores"}), flush=True)
    imbrex.torch.destroy()
    dist.destroy_process_group()


def round_of(folder, options):
    """What the ranks found with the package in that folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks), __file__, "--work", str(options.calls), options.only]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(folder).resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    found = next((line for line in ran.stdout.splitlines() if line.startswith(MARK)), None)
    if ran.returncode or found is None:
        sys.exit(f"host_versions.py: the ranks with {folder} ended with {ran.returncode}:\n{ran.stderr[-3000:]}")
    return json.loads(found[len(MARK):])


def main(argv):
    if argv[:1] == ["--work"]:
        return work(int(argv[1]), argv[2])
    options = parse(argv)
    from report import write_rows

    rounds = {"old": [], "new": []}
    for i in range(options.rounds):
        for which in ("old", "new") if i % 2 == 0 else ("new", "old"):
            rounds[which].append(round_of(getattr(options, which), options))
    rows = []
    for name in rounds["old"][0]["us"]:
        old, new = (statistics.median(one["us"][name] for one in rounds[which]) for which in ("old", "new"))
        rows.append({"call": name, "old_us": round(old, 2), "new_us": round(new, 2), "more_us": round(new - old, 2), "ratio": round(new / old, 3)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    first = rounds["new"][0]
    write_rows(options.out, {"machine": f"{options.ranks} ranks on {first['on']}; torch {first['torch']}",
                             "date": datetime.date.today().isoformat(), "rounds": options.rounds, "calls": options.calls, "rows": rows})
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
