"""How many SMs the NCCL of a process group may take, as far as it can be found out."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

_warned = False


def _number_in(name: str) -> int | None:
    """A positive number in the environment; NCCL ignores others."""
    try:
        number = int(os.environ.get(name, ""), 0)
    except ValueError:
        return None
    return number if number > 0 else None


def _nccl_of(group: Any) -> Any:
    """The NCCL backend of a process group, or None."""
    kind = getattr(dist, "ProcessGroupNCCL", None)
    if kind is None or all(device.type != "cuda" for device in group._device_types):
        return None
    backend = group._get_backend(torch.device("cuda"))
    return backend if isinstance(backend, kind) else None


def most_ctas_of(group: Any) -> int | None:
    """
    Thread blocks, an SM each, that a kernel of the group's NCCL may have.

    None where the group has no NCCL, or neither the environment nor the group's options say: NCCL decides then.
    """
    nccl = _nccl_of(group)
    if nccl is None:
        return None
    configured = getattr(getattr(nccl.options, "config", None), "max_ctas", 0)  # negative where it is not set
    ctas = _number_in("NCCL_MAX_CTAS") or (configured if configured > 0 else None)
    limits = [ctas, _number_in("NCCL_MAX_NCHANNELS"), _number_in("NCCL_MAX_NRINGS")]
    return min((limit for limit in limits if limit is not None), default=None)


def warn_of_few_sms(group: Any, name: str, sms_for_others: int) -> None:
    """Warns, once in a process, where the group's NCCL may take more SMs than are left to it."""
    global _warned
    if sms_for_others == 0 or _warned:
        return
    ctas = most_ctas_of(group)
    if ctas is None or ctas <= sms_for_others:
        return
    _warned = True
    warnings.warn(
        f"sms_for_others={sms_for_others}: kernels of NCCL in group '{name}' may take {ctas} SMs, and one that takes "
        "more than are left does not begin while a kernel of Imbrex waits for a rank; see docs/pytorch.md, Beside NCCL",
        stacklevel=3,
    )
