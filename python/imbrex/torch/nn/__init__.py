"""Layers that are split over the ranks of a group: linear ones of tensor-parallel models, and embedding tables."""

from ..bags import Bags
from ..embeddings import ShardedEmbeddingBag
from .linear import ColumnParallelLinear, RowParallelLinear

__all__ = ["Bags", "ColumnParallelLinear", "RowParallelLinear", "ShardedEmbeddingBag"]
