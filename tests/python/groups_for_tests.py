"""Groups of some of the ranks, made once in each process."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch.distributed as dist


@cache
def group_of(*members: int) -> Any:
    """The group of these ranks, made by all ranks."""
    return dist.new_group(list(members))


def first(count: int) -> Any:
    """The group of the first `count` ranks; for the others None: they sit out."""
    group = group_of(*range(count))
    return group if dist.get_rank() < count else None
