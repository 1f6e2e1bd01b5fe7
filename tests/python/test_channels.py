"""SMs that are left to NCCL: how many it may take, as far as that is known, and when too few are told of."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import imbrex
import imbrex.torch as it
from imbrex.torch import channels

UNSET = -(2**31)  # as NCCL has it


class StandInNccl:
    """As ProcessGroupNCCL, as far as it is asked."""

    def __init__(self, max_ctas: int) -> None:
        self.options = SimpleNamespace(config=SimpleNamespace(max_ctas=max_ctas))


def group_with(backend: Any, kind: str = "cuda") -> Any:
    return SimpleNamespace(_device_types=[torch.device(kind)], _get_backend=lambda device: backend)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A torch that has NCCL, an environment that does not speak of it, and nothing told yet."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", StandInNccl, raising=False)
    monkeypatch.setattr(channels, "_warned", False)
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("configured", "environment", "ctas"),
    [
        (UNSET, {}, None),
        (8, {}, 8),
        (UNSET, {"NCCL_MAX_CTAS": "24"}, 24),
        (8, {"NCCL_MAX_CTAS": "24"}, 24),
        (8, {"NCCL_MAX_CTAS": "none"}, 8),
        (8, {"NCCL_MAX_CTAS": "-1"}, 8),
        (UNSET, {"NCCL_MAX_NCHANNELS": "12"}, 12),
        (8, {"NCCL_MAX_NCHANNELS": "12"}, 8),
        (UNSET, {"NCCL_MAX_CTAS": "24", "NCCL_MAX_NCHANNELS": "12"}, 12),
        (UNSET, {"NCCL_MAX_NRINGS": "4"}, 4),
    ],
)
def test_what_nccl_may_take(known, configured, environment, ctas):
    for name, value in environment.items():
        known.setenv(name, value)
    assert channels.most_ctas_of(group_with(StandInNccl(configured))) == ctas


def test_groups_without_nccl_say_nothing(known):
    assert channels.most_ctas_of(group_with(StandInNccl(8), "cpu")) is None
    assert channels.most_ctas_of(group_with(object())) is None
    known.delattr(dist, "ProcessGroupNCCL")
    assert channels.most_ctas_of(group_with(StandInNccl(8))) is None


def test_too_few_are_told_of_once():
    with pytest.warns(UserWarning, match=r"sms_for_others=16: kernels of NCCL in group 'a' may take 32 SMs"):
        channels.warn_of_few_sms(group_with(StandInNccl(32)), "a", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        channels.warn_of_few_sms(group_with(StandInNccl(32)), "b", 16)


@pytest.mark.parametrize(("ctas", "left"), [(32, 32), (32, 0), (UNSET, 1)])
def test_nothing_is_told_of_enough(ctas, left):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        channels.warn_of_few_sms(group_with(StandInNccl(ctas)), "a", left)


def test_torch_says_it_so():
    """What the group's options are called in the torch that is there."""
    real = getattr(distributed_c10d, "ProcessGroupNCCL", None)
    if real is None or not hasattr(real, "Options"):
        pytest.skip("this torch has no NCCL")
    assert real.Options().config.max_ctas == UNSET


def refused_of(given: int) -> str:
    fresh = dist.new_group([0, 1, 2, 3])
    with pytest.raises(imbrex.InvalidInput) as refused:
        it.connect(fresh, sms_for_others=given)
    return str(refused.value)


def ranks_differ() -> str:
    return refused_of(16 * (dist.get_rank() % 2))


def one_is_negative() -> str:
    return refused_of(-1 if dist.get_rank() == 2 else 0)


def test_all_ranks_connect_alike(ranks):
    told = "sms_for_others is 0 on rank 0 and 16 on rank 1: it must be the same on every rank"
    assert ranks.run(ranks_differ) == [told] * 4


def test_what_one_rank_refuses_all_do(ranks):
    texts = ranks.run(one_is_negative)
    assert texts[2].startswith("sms_for_others is -1: it must be an integer from 0")
    assert texts[0].startswith("rank 2: sms_for_others is -1")
