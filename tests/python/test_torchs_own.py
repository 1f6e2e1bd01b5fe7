"""
The drop-in beside torch's own four fused operators, in symmetric memory that ranks share a GPU for.

torch's kernels wait without a limit, and what is killed while it waits may take other ranks' work with it. So this
comes behind all other tests that use a GPU, in pools of its own, and what torch cannot do here is skipped, aloud.
"""

from __future__ import annotations

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


def both() -> dict[str, str]:
    """Each of the four operators, by torch and by Imbrex: the same. What torch says that it cannot."""
    import torch.distributed._symmetric_memory as symmetric

    symmetric._is_test_mode = False
    group = group_of(0, 1, 2, 3)
    rank, name = dist.get_rank(), group.group_name
    symmetric.enable_symm_mem_for_group(name)
    a, b = integers((64, 64), rank, torch.bfloat16), integers((64, 64), 9 + rank, torch.bfloat16).t()
    half, two, wide = torch.tensor(0.5), torch.tensor(2.0), torch.bfloat16
    a8, b8 = a.to(E4M3), b.t().to(E4M3).t()
    said = {}
    for call, args in (
        ("fused_all_gather_matmul", (a, [b], 0, name)),
        ("fused_matmul_reduce_scatter", (a, b, "sum", 0, name)),
        (
            "fused_all_gather_scaled_matmul",
            (a8, [b8], half, [two], 0, name, [None], [None], [wide], [False]),
        ),
        (
            "fused_scaled_matmul_reduce_scatter",
            (a8, b8, half, two, "sum", 0, 0, name, [64, 64], None, None, wide, False),
        ),
    ):
        before = it.stats().fallbacks
        with it.drop_in():
            got = getattr(torch.ops.symm_mem, call)(*args)
        assert it.stats().fallbacks == before, it.stats().fallbacks
        try:
            want = getattr(torch.ops.symm_mem, call)(*args)
            torch.cuda.synchronize()
        except Exception as error:
            said[call] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        expect_same(got, want, call)
    return said


def test_torchs_own_operators():
    """All four; twice, where torch cannot run one the first time or does not come back."""
    said: list[str] = []
    for _ in range(2):
        pool = Pool(seconds=60, **ENVIRONMENT)
        try:
            answers = pool.answers(both)
        finally:
            pool.close()
        wrong = [text for kind, text in answers if kind == "failed" and "AssertionError" in text]
        assert not wrong, wrong
        said = [str(told) for kind, told in answers if kind == "failed" or told]
        if not said:
            return
        print(said)
    pytest.skip(f"torch's own operators do not run here, in two tries: {said[0].splitlines()[0]}")
