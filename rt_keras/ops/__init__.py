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

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "balanced_attention": "balanced",
    "causal_clustered_attention": "causal_clustered",
    "chunked_cross_entropy": "losses.cross_entropy",
    "cluster_statistics": "nearest.assign",
    "clustered_attention": "clustered",
    "commitment": "nearest.assign",
    "ctc_loss": "losses.ctc",
    "find_global_tokens": "global_tokens",
    "first_tokens_attention": "first_tokens",
    "from_blocks": "blocks",
    "full_attention": "full",
    "gated_delta_rule": "gated_delta",
    "global_attention": "global_tokens",
    "hamming_groups": "hamming",
    "local_attention": "local.windows",
    "lsh_attention": "lsh",
    "lsh_buckets": "lsh",
    "nearest_attention": "nearest.attention",
    "nearest_centroid": "nearest.assign",
    "normalize": "nearest.assign",
    "persistent_attention": "persistent",
    "random_attention": "random",
    "selected_blocks_attention": "content_blocks.attend",
    "strided_attention": "strided",
    "to_blocks": "blocks",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
