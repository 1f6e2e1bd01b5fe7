"""torch.autocast: products take the type that torch.mm would take there."""

from __future__ import annotations

from typing import Any

import torch

_WIDE = (torch.float32, torch.float16, torch.bfloat16)


# Whether any device type has autocast on. Every call asks, so no frame of Python lies between.
is_on = torch._C._is_any_autocast_enabled


def cast(*given: Any) -> Any:
    """
    The same tensors, and lists of them, as autocast has them for a product, if it is on for their device.

    Casts are recorded, as those of torch.mm are. Types of 8 bits, float64 and what is no tensor stay as they are.
    """
    return tuple([_cast(one) for one in given])


def _cast(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [_cast(one) for one in given]
    if not isinstance(given, torch.Tensor) or given.dtype not in _WIDE:
        return given
    kind = given.device.type
    return given.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else given
