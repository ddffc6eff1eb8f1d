"""Attention as pure functions on `[batch, heads, length, depth]`, one kind a file."""

from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.full import full_attention
from rt_keras.ops.local import local_attention
from rt_keras.ops.nearest import nearest_attention
from rt_keras.ops.routing import cluster_statistics, commitment, nearest_centroid, normalize

__all__ = [
    "balanced_attention",
    "cluster_statistics",
    "commitment",
    "full_attention",
    "local_attention",
    "nearest_attention",
    "nearest_centroid",
    "normalize",
]
