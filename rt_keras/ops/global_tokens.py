"""Global tokens: a few positions that see all others and are seen by all, with any heads."""

import typing

import tensorflow as tf

from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import gather_rows, real_positions, size, smaller
from rt_keras.ops.full import full_attention
from rt_keras.ops.nearest.assign import normalize


class GlobalTokens(typing.NamedTuple):
    """The global tokens of a batch, from `find_global_tokens`.

    Args:
        is_global: bool `[batch, length]`.
        places: int32 `[batch, tokens]`, their positions, followed by arbitrary others if there are
            fewer.
        real: bool `[batch, tokens]`, True for the `places` of global tokens.
    """

    is_global: tf.Tensor
    places: tf.Tensor
    real: tf.Tensor


def find_global_tokens(global_mask, count):
    """Finds the positions of the global tokens, in tensors of static shapes.

    Args:
        global_mask: bool `[batch, length]`, True for global tokens.
        count: int, maximum number of global tokens in a sequence. Only the first ones are used.

    Returns:
        `GlobalTokens`.

    Raises:
        ValueError: if there are more than `count`, outside of compiled functions.

    Source: Beltagy et al. 2020, Longformer, section 3.1.

    >>> find_global_tokens([[False, True, False, True]], count=2).places.numpy().tolist()
    [[1, 3]]
    """
    global_mask = tf.cast(global_mask, tf.bool)
    number = tf.cumsum(tf.cast(global_mask, tf.int32), axis=1)
    most = tf.get_static_value(tf.reduce_max(number))
    if most is not None and most > count:
        raise ValueError(
            f"There can be at most {count} global tokens in a sequence. Received: a mask of {most}"
        )
    is_global, length = global_mask & (number <= count), size(global_mask, 1)
    count = smaller(count, length)
    # Earlier tokens get larger numbers.
    order = tf.where(is_global, length - tf.range(length), 0)
    largest, places = tf.math.top_k(order, count)
    return GlobalTokens(is_global, places, largest > 0)


def global_attention(
    attend,
    tokens,
    *,
    query,
    key,
    value,
    use_query_key_norm=False,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=0.0,
    seed=None,
    **options,
):
    """Adds global tokens to attention of any kind.

    With G the global tokens and N(i) the keys that query i sees in `attend`,

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over j in N(i) and G
    logit_ij = query_i · key_j / sqrt(depth)  for j in G; that of `attend` for others
    ```

    under one softmax that includes each key once. If i is in G, the sum is over all j. Relative
    positions and other changes to the logits of `attend` do not apply to the logits of global
    tokens. If causal, all j <= i. The cost is that of `attend` plus O(n · tokens).

    Args:
        attend: function that accepts the arguments by name and `return_logsumexp`, such as
            `local_attention`.
        tokens: `GlobalTokens`.
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        use_query_key_norm: bool, whether `attend` layer-normalizes queries and keys, which are then
            normalized here too. Defaults to False.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding, which no query sees; or None. If `key`
            is None, `query_mask` is used instead.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        **options: further arguments of `attend`.

    Returns:
        `[batch, heads, length, value_depth]`. A query without keys gets 0.

    Source: Beltagy et al. 2020, Longformer, section 3.1.

    >>> from rt_keras.ops import local_attention
    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> tokens = find_global_tokens(tf.range(10)[None] == 0, count=1)
    >>> global_attention(local_attention, tokens, query=x, key=x, value=x, block_size=2).shape
    TensorShape([1, 2, 10, 4])
    """
    shared = key is None
    key_mask = query_mask if shared else key_mask
    others = ~tokens.is_global & real_positions(size(value, 2), key_mask)
    seeds = [None] * 3 if seed is None else tf.unstack(tf.random.split(seed, 3))
    masks = {
        "query_mask": others if shared else query_mask,
        "key_mask": None if shared else others,
    }
    random = [{"dropout": dropout, "seed": seed} for seed in seeds]
    options |= {"causal": causal, "return_logsumexp": True, **random[0]}
    attended = attend(query=query, key=key, value=value, **masks, **options)
    compared = normalize if use_query_key_norm else tf.convert_to_tensor
    query = compared(query)
    key = query if shared else compared(key)
    places, positions = tokens.places, tf.range(size(query, 2))
    to_global = full_attention(
        query,
        _at(places, key),
        _at(places, value),
        query_mask=query_mask,
        key_mask=tokens.real,
        attention_mask=places[:, None] <= positions[:, None] if causal else None,
        return_logsumexp=True,
        **random[1],
    )
    output = merge_sets(attended, to_global)
    global_output = full_attention(
        _at(places, query),
        key,
        value,
        query_mask=tokens.real,
        key_mask=key_mask,
        attention_mask=positions <= places[..., None] if causal else None,
        **random[2],
    )
    return tf.where(tokens.is_global[:, None, :, None], _put_back(global_output, tokens), output)


def _at(places, x):
    """Gathers the rows of global tokens, `[batch, heads, tokens, depth]`, from all positions."""
    return tf.gather(x, places, axis=2, batch_dims=1)


def _put_back(output, tokens):
    """Puts outputs of global tokens at their positions, `[batch, heads, length, depth]`."""
    number = tf.cumsum(tf.cast(tokens.is_global, tf.int32), axis=1) - 1  # [batch, length]
    indices = tf.maximum(number, 0), tokens.places
    return gather_rows(output, *(tf.repeat(x[:, None], output.shape[1], axis=1) for x in indices))
