"""Attention as pure functions of `[batch, heads, length, depth]`, a file or folder a kind.

Each begins with its naive version, the equation in NumPy; then come the fast one, and the cache,
the step and the chunk for decoding. Terms used in these files:

- block: consecutive positions that attend together, in the order of the sequence or, for routing,
  in the order of (cluster, position); sparse kinds compute block-sparse attention;
- window: the keys for a block of queries; masks select those that each query sees;
- chunk: several positions that are computed after a cache of earlier ones;
- step: one such position;
- slice: the heads, blocks or positions that are computed at a time to bound memory;
- tile: some queries and the keys that they attend to, computed together;
- part: some rows of a block, computed without the keys after the last of these rows;
- member: a position that a cluster picked or that belongs to it.
"""

from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.blocks import from_blocks, to_blocks
from rt_keras.ops.causal_clustered import causal_clustered_attention
from rt_keras.ops.clustered import clustered_attention
from rt_keras.ops.content_blocks.attend import selected_blocks_attention
from rt_keras.ops.first_tokens import first_tokens_attention
from rt_keras.ops.full import full_attention
from rt_keras.ops.gated_delta import gated_delta_rule
from rt_keras.ops.global_tokens import find_global_tokens, global_attention
from rt_keras.ops.hamming import hamming_groups
from rt_keras.ops.local.windows import local_attention
from rt_keras.ops.losses.cross_entropy import chunked_cross_entropy
from rt_keras.ops.losses.ctc import ctc_loss
from rt_keras.ops.lsh import lsh_attention, lsh_buckets
from rt_keras.ops.nearest.assign import cluster_statistics, commitment, nearest_centroid, normalize
from rt_keras.ops.nearest.attention import nearest_attention
from rt_keras.ops.persistent import persistent_attention
from rt_keras.ops.random import random_attention
from rt_keras.ops.strided import strided_attention

__all__ = [
    "balanced_attention",
    "causal_clustered_attention",
    "chunked_cross_entropy",
    "cluster_statistics",
    "clustered_attention",
    "commitment",
    "ctc_loss",
    "find_global_tokens",
    "first_tokens_attention",
    "from_blocks",
    "full_attention",
    "gated_delta_rule",
    "global_attention",
    "hamming_groups",
    "local_attention",
    "lsh_attention",
    "lsh_buckets",
    "nearest_attention",
    "nearest_centroid",
    "normalize",
    "persistent_attention",
    "random_attention",
    "selected_blocks_attention",
    "strided_attention",
    "to_blocks",
]
