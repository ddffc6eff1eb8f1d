"""Attention as pure functions on `[batch, heads, length, depth]`, one kind a file; and a loss."""

from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.blocks import from_blocks, to_blocks
from rt_keras.ops.cluster_strided import cluster_strided_attention
from rt_keras.ops.cross_entropy import chunked_cross_entropy
from rt_keras.ops.full import full_attention
from rt_keras.ops.hashed import hash_buckets, hashed_attention
from rt_keras.ops.local import local_attention
from rt_keras.ops.nearest import nearest_attention
from rt_keras.ops.random import random_attention
from rt_keras.ops.routing import cluster_statistics, commitment, nearest_centroid, normalize
from rt_keras.ops.strided import strided_attention

__all__ = [
    "balanced_attention",
    "chunked_cross_entropy",
    "cluster_statistics",
    "cluster_strided_attention",
    "commitment",
    "from_blocks",
    "full_attention",
    "hash_buckets",
    "hashed_attention",
    "local_attention",
    "nearest_attention",
    "nearest_centroid",
    "normalize",
    "random_attention",
    "strided_attention",
    "to_blocks",
]
