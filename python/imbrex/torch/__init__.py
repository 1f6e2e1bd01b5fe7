"""
Imbrex for PyTorch: tensor-parallel products that hide their collective.

Example:
    >>> import imbrex.torch
    >>> y = imbrex.torch.matmul_reduce_scatter(h, weight.t(), group)
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        f"imbrex.torch needs PyTorch 2.10 or later, which cannot be imported ({_error}): pip install 'torch>=2.10'"
    ) from None

_version = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in _torch.__version__.split(".")[:2])
if _version < (2, 10):
    raise ImportError(f"imbrex.torch needs PyTorch 2.10 or later; this is {_torch.__version__}")

from . import fake as _fake  # noqa: E402
from . import nn, parallel  # noqa: E402
from .drop_in import drop_in  # noqa: E402
from .groups import check, connect, describe, destroy, restore, trim, warm_up  # noqa: E402
from .ops import (  # noqa: E402
    all_gather_matmul,
    matmul_all_reduce,
    matmul_all_to_all,
    matmul_reduce_scatter,
)
from .packed import matmul_all_reduce_packed, put_back  # noqa: E402
from .reductions import all_reduce, all_reduce_rms_norm  # noqa: E402
from .stats import Stats, stats  # noqa: E402

_fake.register()

__all__ = [
    "Stats",
    "all_gather_matmul",
    "all_reduce",
    "all_reduce_rms_norm",
    "check",
    "connect",
    "describe",
    "destroy",
    "drop_in",
    "matmul_all_reduce",
    "matmul_all_reduce_packed",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
    "nn",
    "parallel",
    "put_back",
    "restore",
    "stats",
    "trim",
    "warm_up",
]
