"""
Imbrex: matrix products that hide the collective that depends on them.

The operators here take NumPy's arrays and those of any library that speaks DLPack; `imbrex.torch` holds those for
PyTorch.
"""

from __future__ import annotations

from ._doctor import doctor
from ._embeddings import EmbeddingAllToAll, EmbeddingShard, EmbeddingTable, Placement, place_tables
from ._errors import Error, InvalidInput
from ._operators import all_gather_matmul, matmul_all_reduce, matmul_all_to_all, matmul_reduce_scatter
from ._packed import PackedLayout, matmul_all_reduce_packed, put_back
from ._reductions import all_reduce, all_reduce_rms_norm
from ._report import Report
from ._world import World

__all__ = [
    "EmbeddingAllToAll",
    "EmbeddingShard",
    "EmbeddingTable",
    "Error",
    "InvalidInput",
    "PackedLayout",
    "Placement",
    "Report",
    "World",
    "all_gather_matmul",
    "all_reduce",
    "all_reduce_rms_norm",
    "doctor",
    "matmul_all_reduce",
    "matmul_all_reduce_packed",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
    "place_tables",
    "put_back",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("imbrex")
    raise AttributeError(f"module 'imbrex' has no attribute '{name}'")
