#!/usr/bin/env python3
"""What a call from Python costs the host more than one from C++, in turns in one run.

usage: torchrun --nproc-per-node R bench/python/host_cost.py --out OUT.json [options]; --help lists them

`matmul_reduce_scatter` is called in bursts, each followed by a synchronisation outside the clock: from C++; from Python
without gradients; from Python into an output in inference mode. Operators of the same arguments are measured too: some that do
nothing, torch.mm, and torch's own fused operator where it runs. Medians over all bursts of the microseconds a call; the
slowest rank counts. Ranks share a GPU where there are too few (under MPS), and work on the CPU where there is none, where a
call ends when its work is done.
"""

import argparse
import ctypes
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench/model")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from device import device_of  # noqa: E402
from report import write_rows  # noqa: E402

import imbrex  # noqa: E402
import imbrex.torch  # noqa: E402
from imbrex import _c, _infer  # noqa: E402
from imbrex.torch import groups  # noqa: E402

# Microseconds that Python may add, or that multiple of an operator that does nothing, if that is more.
LIMITS = {"Python": (5.5, 1.3, "nothing"), "Python, out": (3.5, 1.5, "nothing, out")}


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="result file")
    parser.add_argument("--rows", type=int, default=1024, help="rows of the product (default 1024)")
    parser.add_argument("--columns", type=int, default=4096, help="columns (default 4096)")
    parser.add_argument("--depth", type=int, default=4096, help="depth over all ranks (default 4096)")
    parser.add_argument("--burst", type=int, default=8, help="calls in a burst (default 8)")
    parser.add_argument("--calls", type=int, default=10000, help="calls of each kind, in all (default 10000)")
    parser.add_argument("--with-torch", action="store_true", help="torch's fused operator too, which hangs on some machines")
    options = parser.parse_args(argv)
    for name in ("rows", "columns", "depth", "burst", "calls"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: it must be at least 1")
    return options


def compiled(folder):
    """The C++ side, for this torch and this library."""
    library = Path(imbrex.__file__).parent / "lib"
    torchs = Path(torch.__file__).parent / "lib"
    made = f"{folder}/libhost_cost.so"
    real = next(library.glob("libimbrex.so*"))
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{ROOT}/include", f"-I{ROOT}/python/csrc",
                    str(ROOT / "bench/python/host_cost.cpp"), "-o", made, f"-L{torchs}", "-l:libtorch_cpu.so", f"-L{library}", f"-l:{real.name}",
                    f"-Wl,-rpath,{library}", "-Wl,--allow-shlib-undefined"], check=True)
    return made


def view(tensor):
    made = _c.View(data=tensor.data_ptr(), type=_c.BF16, dims=2)
    for i in range(2):
        made.extents[i], made.strides[i] = tensor.shape[i], tensor.stride(i)
    return made


class FromCpp:
    """The operator of the library, made as imbrex.torch makes it."""

    def __init__(self, path, group, a, b, out, options):
        self.library = ctypes.CDLL(path)
        self.library.imbrex_host_cost_burst.restype = ctypes.c_double
        world = groups._worlds[group.group_name]
        gemm = _c.new(_c.Gemm, m=options.rows, n=options.columns, k=options.depth, type=_c.BF16, any_m=1)
        made = _c.new(_c.OperatorOptions, device=_c.CUDA if a.is_cuda else _c.CPU)
        self.made = _c.make("operator_make", world.handle, _infer.kinds()["matmul_reduce_scatter"], ctypes.byref(gemm), ctypes.byref(made))
        self.operands = (_c.Operand * 3)(*(_c.Operand(name=name, view=view(one)) for name, one in ((b"a", a), (b"b", b), (b"out", out))))
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if a.is_cuda else None)

    def burst(self, calls):
        seconds = self.library.imbrex_host_cost_burst(self.made, self.operands, ctypes.c_size_t(3), self.stream, ctypes.c_int32(calls))
        if seconds < 0:
            raise RuntimeError("the call from C++ failed")
        return seconds

    def close(self):
        _c.call("operator_destroy", self.made)


def repeated(call):
    """A burst of calls from Python."""
    def burst(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin

    return burst


def in_inference(burst):
    def run(calls):
        with torch.inference_mode():
            return burst(calls)

    return run


def bursts_of(from_cpp, group, a, b, out, with_torch):
    """Each kind of call, in bursts."""
    name, ranks = group.group_name, group.size()
    ops = torch.ops.imbrex_bench
    scatter, nothing, nothing_out = imbrex.torch.matmul_reduce_scatter, ops.nothing.default, ops.nothing_out.default
    found = {"C++": from_cpp.burst,
             "Python": repeated(lambda: scatter(a, b, name)),
             "Python, out": in_inference(repeated(lambda: scatter(a, b, name, out=out))),
             "nothing": repeated(lambda: nothing(a, b, name, ranks)),
             "nothing, out": in_inference(repeated(lambda: nothing_out(a, b, name, ranks, out=out))),
             "torch.mm": repeated(lambda: torch.mm(a, b))}
    if with_torch:
        fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
        found["torch's fused"] = repeated(lambda: fused(a, b, "sum", 0, name))
    return found


def measured(bursts, options, meeting, synchronise):
    """Microseconds a call of each kind: the median over the bursts of the slowest rank."""
    samples = {name: [] for name in bursts}
    for i in range(-3, max(1, options.calls // options.burst)):
        for name, burst in bursts.items():
            taken = burst(options.burst) / options.burst * 1e6
            synchronise()
            if i >= 0:
                samples[name].append(taken)
    medians = torch.tensor([statistics.median(taken) for taken in samples.values()], dtype=torch.float64)
    dist.all_reduce(medians, dist.ReduceOp.MAX, group=meeting)
    return dict(zip(samples, medians.tolist()))


def main(argv):
    options = parse(argv)
    device = device_of(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    on_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    group, meeting = dist.group.WORLD, dist.new_group(backend="gloo")
    ranks = group.size()
    imbrex.torch.connect(group)
    a = torch.randn(options.rows, options.depth // ranks, device=device).bfloat16()
    b = torch.randn(options.depth // ranks, options.columns, device=device).bfloat16()
    out = torch.empty(options.rows // ranks, options.columns, device=device, dtype=torch.bfloat16)
    imbrex.torch.matmul_reduce_scatter(a, b, group, out=out)
    synchronise = torch.cuda.synchronize if on_gpu else (lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        from_cpp = FromCpp(compiled(folder), group, a, b, out, options)
        us = measured(bursts_of(from_cpp, group, a, b, out, options.with_torch and on_gpu), options, meeting, synchronise)
        from_cpp.close()
    more = {name: us[name] - us["C++"] for name in LIMITS}
    allowed = {name: max(most, times * us[like]) for name, (most, times, like) in LIMITS.items()}
    if dist.get_rank() == 0:
        rows = [{"call": name, "us": round(value, 2)} for name, value in us.items()]
        for row in rows:
            if row["call"] in LIMITS:
                row |= {"more_than_cpp_us": round(more[row["call"]], 2), "allowed_us": round(allowed[row["call"]], 2)}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        name = torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} cores"
        sizes = {key: getattr(options, key) for key in ("rows", "columns", "depth", "burst", "calls")}
        write_rows(options.out, {"machine": f"{ranks} ranks on {name}; torch {torch.__version__}", "date": datetime.date.today().isoformat(),
                                 "sizes": sizes, "rows": rows})
    imbrex.torch.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
