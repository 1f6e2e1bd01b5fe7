"""Where a rank works, and how long its calls take there."""

import ctypes
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist


def device_of(local_rank, local_ranks):
    """The rank's GPU, which it shares where there are too few; the CPU where there is none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_ranks))
        return torch.device("cpu")
    settings = {"NCCL_NVLS_ENABLE": "0", "NCCL_GRAPH_REGISTER": "0"}  # without them, Imbrex does without NCCL
    if count < local_ranks:
        # NCCL takes no two ranks of one host on one GPU. Those of several hosts are to meet here all the same.
        settings |= {"NCCL_HOSTID": f"rank{local_rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS' condition for the same bits each time
    device = torch.device("cuda", local_rank % count)
    torch.cuda.set_device(device)
    return device


def gpus_of(ranks):
    """What those ranks run on, as results name it: "2 x NVIDIA H200"."""
    return f"{min(ranks, torch.cuda.device_count())} x {torch.cuda.get_device_name()}"


def graph_nodes(graph):
    """Nodes of a captured graph; None where the runtime does not say."""
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
        count = ctypes.c_size_t(0)
        failed = runtime.cudaGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    except (OSError, AttributeError):
        return None
    return None if failed else count.value


class Failed(RuntimeError):
    """What some ranks could not do, on every rank."""


class Clock:
    """Times calls on all ranks, which begin together. What fails on one rank is Failed on all."""

    def __init__(self, device, meeting):
        self.device, self.meeting = device, meeting

    def _sum(self, value):
        total = torch.tensor([float(value)], dtype=torch.float64)
        dist.all_reduce(total, group=self.meeting)
        return total.item()

    def together(self, call):
        """The call's result, once its work is done on every rank. Ranks that fail print how; a rank that they leave in a collective waits as long as that does."""
        result = text = None
        try:
            result = call()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            text = f"rank {dist.get_rank(self.meeting)}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            print(f"{text}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        texts = [None] * dist.get_world_size(self.meeting)
        dist.all_gather_object(texts, text, group=self.meeting)
        if failed := [text for text in texts if text is not None]:
            raise Failed(failed[0])
        return result

    def outside(self, make):
        """Bytes of GPU memory a rank that `make` takes elsewhere than from torch's allocator: of all that share a GPU, in equal parts."""
        if self.device.type != "cuda":
            self.together(make)
            return None
        ranks = dist.get_world_size(self.meeting)

        def taken():
            torch.cuda.synchronize()
            dist.barrier(group=self.meeting)
            free, of = torch.cuda.mem_get_info()
            used = self._sum(of - free) / max(1, ranks // torch.cuda.device_count())
            return used - self._sum(torch.cuda.memory_reserved())

        before = taken()
        self.together(make)
        return max(0.0, taken() - before) / ranks

    def alone(self, call, calls):
        """Microseconds a call of the first rank, while the others do nothing."""

        def seconds():
            if dist.get_rank(self.meeting) != 0:
                return 0.0
            call()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - begin

        return self._sum(self.together(seconds)) / calls * 1e6

    def sample(self, call, calls):
        """Microseconds a call, and those of the host to issue it, on the slowest rank; the most memory of any rank beside what lies there."""
        on_gpu = self.device.type == "cuda"

        def sampled():
            lies = torch.cuda.memory_allocated() if on_gpu else 0
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            issued = time.perf_counter()
            if on_gpu:
                torch.cuda.synchronize()
            end = time.perf_counter()
            memory = torch.cuda.max_memory_allocated() - lies if on_gpu else 0
            return [(end - begin) / calls * 1e6, (issued - begin) / calls * 1e6, memory]

        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        dist.barrier(group=self.meeting)
        taken = torch.tensor(self.together(sampled), dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX, group=self.meeting)
        return taken.tolist()
