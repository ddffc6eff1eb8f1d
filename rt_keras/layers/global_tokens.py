"""Global tokens in `MultiHeadAttention`: checks and arguments of the head groups."""

from rt_keras.layers.head_options import positive_int


def check_global_tokens(num_global_tokens, global_projections, head_groups):
    """Raises a ValueError if a layer with these head groups does not support global tokens.

    Args:
        num_global_tokens: int or None.
        global_projections: bool.
        head_groups: list of head groups.
    """
    if num_global_tokens is None:
        if global_projections:
            raise ValueError("global_projections=True needs num_global_tokens. Received: None")
        return
    positive_int("num_global_tokens", num_global_tokens)
    for group in head_groups:
        if not group.takes_global_tokens:
            raise ValueError(
                f"{group._described()} do not support global tokens, which share a softmax with "
                "other keys. FullHeads, LocalHeads, LocalRoutingHeads, StridedHeads, and "
                "RoutingHeads of assignment 'nearest' do, with attention_activation 'softmax' and "
                f"no persistent keys. Received: num_global_tokens={num_global_tokens}"
            )


def check_global_mask(global_mask, num_global_tokens, query, value, attention_mask=None):
    """Raises a ValueError if a call does not support a `global_mask`.

    Args:
        global_mask: `[batch, length]`.
        num_global_tokens: int or None, maximum number of global tokens.
        query, value: `[batch, length, features]`.
        attention_mask: mask of query-key pairs, or None. Defaults to None.
    """
    if num_global_tokens is None:
        raise ValueError(
            "global_mask needs a layer with num_global_tokens, the maximum number of global "
            "tokens per sequence. Received: num_global_tokens=None"
        )
    if attention_mask is not None:
        raise ValueError(
            "global_mask cannot be combined with an attention_mask of [batch, queries, keys]: "
            "global tokens see every key. Pass query_mask, value_mask or use_causal_mask."
        )
    inputs = {"global_mask": global_mask, "query": query, "value": value}
    lengths = {name: x.shape[1] for name, x in inputs.items()}
    if len(set(lengths.values()) - {None}) > 1:
        given = ", ".join(f"{name} of length {length}" for name, length in lengths.items())
        raise ValueError(
            "global_mask is only for self-attention, with one mask [batch, length] for queries "
            f"and keys. Received: {given}."
        )


def with_global_tokens(calls, tokens):
    """Adds global tokens to the arguments of head groups.

    Args:
        calls: list of head groups, each with its arguments and its options.
        tokens: `rt_keras.ops.global_tokens.GlobalTokens` of all heads.

    Returns:
        A list like `calls`. Each group gets the queries, keys and values of its heads.
    """
    found, head = [], 0
    for group, arguments, options in calls:
        heads = slice(head, head + group.num_heads)
        own = {
            name: None if x is None else x[:, heads]
            for name, x in (("query", tokens.query), ("key", tokens.key), ("value", tokens.value))
        }
        found.append((group, arguments, {**options, "global_tokens": tokens._replace(**own)}))
        head += group.num_heads
    return found


def with_values(options, value):
    """Returns the options of a group's call for other values, which also apply to global tokens.

    Args:
        options: dictionary of the options.
        value: `[batch, heads, length, value_depth]`.
    """
    if "global_tokens" not in options:
        return options
    return {**options, "global_tokens": options["global_tokens"]._replace(value=value)}
