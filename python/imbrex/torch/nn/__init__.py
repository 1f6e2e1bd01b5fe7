"""Layers that are split over the ranks of a group: linear ones of tensor-parallel models, and embedding tables."""

from ..embeddings import Bags, ShardedEmbeddingBag
from .linear import ColumnParallelLinear, RowParallelLinear

__all__ = ["Bags", "ColumnParallelLinear", "RowParallelLinear", "ShardedEmbeddingBag"]
