"""Ranks for tests: processes that are started once and then run one function after another, together."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

RANKS = 4
SECONDS = 240.0
GRACE = 15.0  # more than Imbrex waits for a rank that has failed


def forking() -> Any:
    """How processes begin: forked from one that has loaded torch alone, which takes longer than most tests."""
    context = multiprocessing.get_context("forkserver")
    loaded = ["torch"]
    # Its compiler takes longer still. What of it asks for a GPU while it loads would leave forked ranks without one.
    if os.environ.get("IMBREX_TEST_DEVICE", "cpu") == "cpu":
        loaded += ["torch.distributed.tensor.parallel", "torch._dynamo", "torch._inductor.compile_fx"]
    context.set_forkserver_preload(loaded)
    return context


def _worker(rank: int, size: int, port: int, pipe: Any, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(Path(__file__).parent))
    faulthandler.register(signal.SIGUSR1)
    import torch
    import torch.distributed as dist
    from device_for_tests import backend_of

    gc.freeze()  # what was loaded before is not looked through again and again
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend_of(rank), store=store, rank=rank, world_size=size)
    pipe.send(("ready", None))
    while (message := pipe.recv()) is not None:
        module, name, kwargs = message
        try:
            pipe.send(("done", getattr(importlib.import_module(module), name)(**kwargs)))
        except BaseException as error:
            pipe.send(("failed", f"rank {rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}"))


class Failure(AssertionError):
    """What the ranks said that failed."""


class Pool:
    """So many ranks, with gloo between them, and with a store as torchrun's, which this process keeps."""

    def __init__(self, size: int = RANKS, seconds: float = SECONDS, **environment: str) -> None:
        from torch.distributed import TCPStore

        self.size, self.seconds = size, seconds
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = forking()
        environment = {**os.environ, "IMBREX_WAIT_LIMIT": "60", **environment}
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            arguments = (rank, size, self.store.port, theirs, environment)
            process = context.Process(target=_worker, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)
        self._collect()

    def _collect(self) -> list[tuple[str, Any]]:
        """An answer of each rank. Once one has failed, the others have a while to notice."""
        answers: dict[int, tuple[str, Any]] = {}
        end = time.monotonic() + self.seconds
        while len(answers) < self.size:
            waiting = [pipe for rank, pipe in enumerate(self.pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                try:
                    answer = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    answer = ("failed", "the process ended")
                answers[self.pipes.index(pipe)] = answer
                if answer[0] == "failed":
                    end = min(end, time.monotonic() + GRACE)
        self._show_stacks(rank for rank in range(self.size) if rank not in answers)
        return [answers.get(rank, ("failed", f"rank {rank}: no answer in time")) for rank in range(self.size)]

    def _show_stacks(self, ranks: Iterable[int]) -> None:
        """Has ranks write to stderr where their threads are."""
        for rank in ranks:
            print(f"rank {rank} is at:", file=sys.stderr, flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, signal.SIGUSR1)  # type: ignore[arg-type]
            time.sleep(1)

    def answers(self, function: Callable[..., Any], **kwargs: Any) -> list[tuple[str, Any]]:
        """What each rank says to `function(**kwargs)`: ("done", result) or ("failed", text)."""
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__name__, kwargs))
        return self._collect()

    def run(self, function: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """The result of each rank; fails where one fails."""
        answers = self.answers(function, **kwargs)
        failed = [text for kind, text in answers if kind != "done"]
        if failed:
            raise Failure("\n".join(failed))
        return [result for _, result in answers]

    def close(self) -> None:
        """Ends the processes. A rank that ends waits for the others, so all are told before one is waited for."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        end = time.monotonic() + 10
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
            process.join()


def expect_others_told(lose_a_rank: Callable[[], tuple[str, float]]) -> None:
    """Rank 1 of a pool dies in `lose_a_rank`; the others give what they were told, and after how many seconds."""
    from device_for_tests import DEVICE

    pool = Pool()
    try:
        answers = pool.answers(lose_a_rank)
        assert answers[1][0] == "failed"
        for rank in (0, 2, 3):
            kind, result = answers[rank]
            assert kind == "done", result
            text, seconds = result
            assert "rank 1" in text and seconds < (8 if DEVICE == "cpu" else 25), (text, seconds)
    finally:
        pool.close()
