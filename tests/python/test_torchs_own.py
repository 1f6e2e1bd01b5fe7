"""
The drop-in beside torch's own four fused operators, in symmetric memory that ranks share a GPU for.

torch's kernels wait without a limit, and what is killed while it waits may take other ranks' work with it. So this
comes behind all other tests that use a GPU, in pools of its own, and what torch cannot do here is skipped, aloud.
"""

from __future__ import annotations

import itertools
import os

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from device_for_tests import DEVICE
from groups_for_tests import group_of
from pool import Pool
from problems import integers
from test_drop_in import E4M3, expect_same

import imbrex.torch as it

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU, and IMBREX_TEST_DEVICE=cuda to take it")

# Ranks may share a GPU, and nothing goes by multicast.
ENVIRONMENT = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def both(turn: int) -> None:
    """One of the four operators, by torch and by Imbrex: the same, of whole numbers."""
    import torch.distributed._symmetric_memory as symmetric

    symmetric._is_test_mode = False
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    symmetric.enable_symm_mem_for_group(name)
    a, b = integers((64, 64), rank, torch.bfloat16), integers((64, 64), 9 + rank, torch.bfloat16).t()
    half, two, wide = torch.tensor(0.5), torch.tensor(2.0), torch.bfloat16
    call, args = (
        ("fused_all_gather_matmul", (a, [b], 0, name)),
        ("fused_matmul_reduce_scatter", (a, b, "sum", 0, name)),
        (
            "fused_all_gather_scaled_matmul",
            (a.to(E4M3), [b.to(E4M3)], half, [two], 0, name, [None], [None], [wide], [False]),
        ),
        (
            "fused_scaled_matmul_reduce_scatter",
            (a.to(E4M3), b.to(E4M3), half, two, "sum", 0, 0, name, [64, 64], None, None, wide, False),
        ),
    )[turn]
    want = getattr(torch.ops.symm_mem, call)(*args)
    torch.cuda.synchronize()
    before = it.stats().fallbacks
    with it.drop_in():
        got = getattr(torch.ops.symm_mem, call)(*args)
    try:
        assert it.stats().fallbacks == before, it.stats().fallbacks
        expect_same(got, want, call)
    except AssertionError as error:
        raise ValueError(f"DIFFERENT: {error}") from None


def test_torchs_own_operators():
    """All four; a try more for each that torch cannot run."""
    said = {}
    for turn, _ in itertools.product(range(4), range(2)):
        if turn in said and said[turn] is None:
            continue
        pool = Pool(seconds=45, **ENVIRONMENT)
        try:
            failed = [str(text) for kind, text in pool.answers(both, turn=turn) if kind != "done"]
        finally:
            pool.close()
        assert not any("DIFFERENT" in text for text in failed), failed
        said[turn] = failed[0].splitlines()[0] if failed else None
    print(
        {turn: text or "the same" for turn, text in said.items()},
        f"under MPS: {'CUDA_MPS_PIPE_DIRECTORY' in os.environ}",
    )
    cannot = {turn: text for turn, text in said.items() if text}
    if cannot:
        pytest.skip(f"torch's own operators do not run here, twice: {cannot}")
