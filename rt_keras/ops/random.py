"""Random routing: clusters whose members are drawn at random, the baseline of routing."""

import tensorflow as tf

from rt_keras.ops.blocks import size
from rt_keras.ops.members import cluster_attention, top_members


def random_attention(
    query,
    key,
    value,
    *,
    num_clusters,
    window_size,
    routing_seed,
    causal=False,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Attention inside clusters whose members are drawn at random, whatever the content.

    As `balanced_attention`, with a random number in the place of each score: Q_c and K_c are the
    `window_size` positions with the highest ones, the same positions in every sequence of a
    length. So nothing depends on content but the attention inside: what routing must do better
    than. With `causal`, output i depends on positions up to i alone.

    Args:
        query, key, value: as those of `balanced_attention`.
        num_clusters: how many clusters there are.
        window_size: members of a cluster; all positions where there are fewer.
        routing_seed: int `[heads, 2]`, what the members of each head are drawn by.
        causal, query_mask, key_mask, token_bias, relative_embeddings, dropout, seed: as those of
            `balanced_attention`.

    Returns:
        `[batch, heads, queries, value_depth]`.

    Source: Roy et al. 2021, section 5.1, the Random Transformer.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> seeds = tf.constant([[1, 2], [3, 4]])
    >>> random_attention(
    ...     x, x, x, num_clusters=3, window_size=4, routing_seed=seeds, causal=True
    ... ).shape
    TensorShape([1, 2, 12, 4])
    """

    def members(x, mask, count, arguments):
        shape = [num_clusters, size(x, 2)]
        scores = tf.map_fn(
            # Left to itself, XLA would draw other members than eager execution does.
            lambda head_seed: tf.random.stateless_uniform(shape, head_seed, alg="philox"),
            arguments["routing_seed"],
            fn_output_signature=tf.float32,
        )
        scores = tf.broadcast_to(scores[None], [size(x, 0), x.shape[1], *shape])
        return top_members(scores, mask, count)

    return cluster_attention(
        members,
        {
            "query": query,
            "key": key,
            "value": value,
            "routing_seed": routing_seed,
            "relative_embeddings": relative_embeddings,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "token_bias": token_bias, "seed": seed},
        num_clusters=num_clusters,
        window_size=window_size,
        causal=causal,
        dropout=dropout,
        reference_block_size=None,
    )
