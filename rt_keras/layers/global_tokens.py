"""Global tokens in `MultiHeadAttention`: checks and arguments of the head groups."""

from rt_keras.layers.head_options import positive_int


def check_global_tokens(num_global_tokens, head_groups):
    """Raises a ValueError if a layer with these head groups does not support global tokens.

    Args:
        num_global_tokens: int or None.
        head_groups: list of head groups.
    """
    if num_global_tokens is None:
        return
    positive_int("num_global_tokens", num_global_tokens)
    for group in head_groups:
        if not group.abilities.global_tokens:
            raise ValueError(
                f"{group.kind} do not support global tokens, which share a softmax with "
                "other keys. FullHeads, LocalHeads, LocalRoutingHeads, StridedHeads, and "
                "RoutingHeads of assignment 'nearest' do. Received: "
                f"num_global_tokens={num_global_tokens}"
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
