"""Global tokens in `MultiHeadAttention`: their checks, and their part in the calls of groups."""

from rt_keras.layers.head_options import positive_int


def check_global_tokens(num_global_tokens, global_projections, head_groups):
    """Raises a ValueError if a layer of some head groups cannot have global tokens.

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
                f"{group._described()} cannot have global tokens, which join the keys of a query "
                "under one softmax. FullHeads, LocalHeads, LocalRoutingHeads, StridedHeads, and "
                "RoutingHeads of assignment 'nearest' can, with attention_activation 'softmax' and "
                f"no persistent keys. Received: num_global_tokens={num_global_tokens}"
            )


def check_global_mask(global_mask, num_global_tokens, query, value, attention_mask=None):
    """Raises a ValueError if a call cannot have a `global_mask`.

    Args:
        global_mask: `[batch, length]`.
        num_global_tokens: int or None, how many the layer can have.
        query, value: `[batch, length, features]`.
        attention_mask: mask of pairs, or None.
    """
    if num_global_tokens is None:
        raise ValueError(
            "global_mask needs a layer with num_global_tokens, the most global tokens that a "
            "sequence can have."
        )
    if attention_mask is not None:
        raise ValueError(
            "global_mask goes with no attention_mask of [batch, queries, keys]: global tokens see "
            "every key. Give query_mask, value_mask or use_causal_mask."
        )
    inputs = {"global_mask": global_mask, "query": query, "value": value}
    lengths = {name: x.shape[1] for name, x in inputs.items()}
    if len(set(lengths.values()) - {None}) > 1:
        given = ", ".join(f"{name} of length {length}" for name, length in lengths.items())
        raise ValueError(
            "global_mask is for self-attention, one mask [batch, length] for queries and keys. "
            f"Received: {given}."
        )


def with_global_tokens(calls, tokens):
    """The calls of head groups with global tokens among their options.

    Args:
        calls: list of head groups, each with its arguments and its options.
        tokens: `rt_keras.ops.global_tokens.GlobalTokens` of all heads.

    Returns:
        A list like `calls`. Each group has the queries, keys and values of its own heads.
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
    """The options of a group's call for other values, which global tokens see too.

    Args:
        options: dictionary of the options.
        value: `[batch, heads, length, value_depth]`.
    """
    if "global_tokens" not in options:
        return options
    return {**options, "global_tokens": options["global_tokens"]._replace(value=value)}
