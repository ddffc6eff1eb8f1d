"""Attention to what clusters remember of long ago."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.attend import MASKED, accumulation_dtype, attend, merge
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    move_axis,
    places_of_rows,
    repeat_heads,
    size,
    split_blocks,
)
from rt_keras.ops.decode import like, put_rows
from rt_keras.ops.local_piece import JoinedPiece
from rt_keras.ops.nearest import clusters_of
from rt_keras.ops.ranks import sort_by_cluster
from rt_keras.ops.rings import attend_to_lists, counts_at
from rt_keras.ops.routing import prepare
from rt_keras.ops.selection import least_of_largest

EVICTIONS = ("oldest", "random", "least_attended", "merged")
# What `attend_blocks` can do besides.
_OPTIONS = {"relative_embeddings": None, "bound": None, "activation": "softmax"}


class _Routed(NamedTuple):
    """Queries and keys as logits have them, and the clusters of both."""

    query: tf.Tensor
    key: tf.Tensor
    of_queries: tf.Tensor
    of_keys: tf.Tensor


def empty_memory(
    batch, heads, num_clusters, depth, value_depth, dtype, *, memory_length, block_size, eviction
):
    """The memory of clusters before the first position.

    Args:
        batch: int or int scalar.
        heads, num_clusters, depth, value_depth: ints.
        dtype: that of keys and values.
        memory_length: int, members that a cluster remembers.
        block_size: int, positions after which a memory changes, at most `memory_length`.
        eviction: one of `EVICTIONS`; see `memory_piece`.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, clusters, memory_length, ...]`; "number",
        int like these, the number of each member in its cluster, -1 where there is none yet;
        "counts", int `[batch, heads, clusters]`, how many members there have been; "new_key",
        "new_value" and "new_cluster", `[batch, heads, block_size, ...]`, of the block that has not
        ended; and, for "least_attended", "used" and "asked" like "number": how much attention a
        member got, and of how many queries.
    """
    shape = [batch, heads, num_clusters, memory_length]
    memory = {
        "key": tf.zeros([*shape, depth], dtype),
        "value": tf.zeros([*shape, value_depth], dtype),
        "number": tf.fill(shape, -1),
        "counts": tf.zeros(shape[:3], tf.int32),
        "new_key": tf.zeros([batch, heads, block_size, depth], dtype),
        "new_value": tf.zeros([batch, heads, block_size, value_depth], dtype),
        "new_cluster": tf.fill([batch, heads, block_size], num_clusters),
    }
    if eviction == "least_attended":
        memory |= {name: tf.zeros(shape, tf.float32) for name in ("used", "asked")}
    return memory


def memory_piece(
    query,
    key,
    value,
    memory,
    position,
    centroids,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    num_probes=1,
    load_bias=None,
    scale=None,
    normalize=True,
    are_keys=None,
    count=None,
    dropout=0.0,
    seed=None,
):
    """Causal attention of the positions of a piece to what their clusters remember.

    With r the number of members that the cluster of query i has had up to i, and M(i) the members
    that it remembers since the last block ended, but for its last `window_size` ones, of numbers
    from r - window_size on, which `nearest_attention` sees:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over the memory_keys best j in M(i)
    logit_ij = s query_i · key_j / sqrt(depth)
    ```

    Each time that a block of positions ends, its members are put into the memories of their
    clusters: of a cluster that has had more than `window_size` in the block that has not ended, the
    first of those are out of sight until then. Where there is no room, others go:

    - "oldest": those that came first;
    - "random": any, all being equally likely;
    - "least_attended": those to which the queries of their cluster attended least, on average over
      all queries since they came;
    - "merged": none. The oldest ones are joined, two by two, into their means.

    No gradient passes through the memory: queries alone learn. The gradient goes through all blocks
    again, so one memory exists at a time.

    Args:
        query: `[batch, heads, length, depth]`, not normalised.
        key: `[batch, heads, length, depth]`, the routed key of each position, not normalised.
        value: `[batch, key_heads, length, value_depth]`.
        memory: the memory of `empty_memory` or of the last piece.
        position: int scalar, the piece's first position; or int `[batch]`, that of each row.
        centroids: `[key_heads, clusters, depth]`.
        window_size: int, how many of the last members of its cluster a query does not see here.
        memory_keys: int, the most members that a query sees in one memory.
        eviction: one of `EVICTIONS`. Defaults to "oldest".
        num_probes: int, clusters in whose memories a query attends. Defaults to 1.
        load_bias: `[key_heads, clusters]`, or None for zeros.
        scale: `[heads]`, s above; None for ones.
        normalize: bool, whether logits are of normalised vectors. Defaults to True.
        are_keys: bool `[batch or 1, length]`, which positions have a key; None for all.
        count: int scalar or `[batch]`, how many of the piece's positions count, the first ones;
            None, the default, for all.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`, 0 for a query without keys; the logsumexp
        `[batch, heads, length]`; and the memory after these positions.

    Source: ours. Attention to the nearest keys of a memory without a gradient: Wu et al. 2022,
    Memorizing Transformers, section 3; joined members: Rae et al. 2020, section 3.

    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(1, 2, 3, 4, 4, x.dtype, **sizes)
    >>> output, _, memory = memory_piece(
    ...     x, x, x, memory, 0, centroids, window_size=2, memory_keys=4
    ... )
    >>> output.shape, int(tf.reduce_max(memory["counts"])) > 0
    (TensorShape([1, 2, 50, 4]), True)
    """
    num_clusters = centroids.shape[1]
    length, block_size = size(query, 2), size(memory["new_key"], 2)
    joined = JoinedPiece(position, count, length, block_size, block_size, look_back=0)
    whole = isinstance(position, int) and position % block_size == 0
    num_blocks = ceil_div(length, block_size) + (not whole)

    def blocks(aligned):
        """`[batch, heads, length, ...]` to `[blocks, batch, heads, block_size, ...]`."""
        aligned = aligned[:, :, : num_blocks * block_size]
        return move_axis(split_blocks(aligned, num_blocks, block_size), 2, 0)

    routed = _routed(query, key, centroids, load_bias, num_probes, normalize, are_keys)
    new = _members(routed, value)
    sequences = {
        name: joined.join(memory[f"new_{name}"], tf.stop_gradient(x)) for name, x in new.items()
    }
    asked = tf.range(length) < places_of_rows(length if count is None else count, 0)
    asked = tf.broadcast_to(asked, [size(query, 0), length])
    of_blocks = {
        "query": blocks(joined.align_queries(_scaled(routed.query, scale))),
        "query_cluster": blocks(
            joined.align_queries(tf.linalg.matrix_transpose(routed.of_queries))
        ),
        "asked": blocks(joined.align_queries(asked[:, None])),
        "real": blocks(joined.real[:, None]),
        **{name: blocks(joined.align(x)) for name, x in sequences.items()},
    }
    if dropout:
        of_blocks["seed"] = tf.random.split(seed, num_blocks)
    kept = {name: x for name, x in memory.items() if not name.startswith("new_")}

    def attend_block(block, kept):
        of_queries = tf.linalg.matrix_transpose(block["query_cluster"])
        of_keys = tf.where(block["real"], block["cluster"], num_clusters)[:, :, None]
        border = counts_at(kept["counts"], of_queries, of_keys) - window_size - 1
        options = {"dropout": dropout, "seed": block.get("seed")}

        def allowed(part, lists):
            return _best(part, lists, memory_keys)

        def attend_kept(kept):
            return attend_to_lists(
                block["query"], of_queries, _lists(kept), border, -1, allowed, _OPTIONS | options
            )

        output, logsumexp = attend_kept(kept)
        kept = _with_use(kept, of_queries, block["asked"], attend_kept)
        # A block has ended when its last position is there.
        ended = block["real"] & block["real"][..., -1:]
        of_keys = tf.where(ended, block["cluster"], num_clusters)
        kept = _remember(kept, block["key"], block["value"], of_keys, eviction)
        return (output, logsumexp), kept

    dtypes = value.dtype, accumulation_dtype(query.dtype)
    (output, logsumexp), kept = _over_blocks(attend_block, of_blocks, kept, dtypes)
    output, logsumexp = (
        joined.of_piece(join_blocks(move_axis(x, 0, 2), joined.total)) for x in (output, logsumexp)
    )
    rings = {f"new_{name}": joined.ring_of(x) for name, x in sequences.items()}
    return output, logsumexp, like({**kept, **rings}, memory)


def memory_step(
    query,
    key,
    value,
    memory,
    position,
    centroids,
    *,
    window_size,
    memory_keys,
    eviction="oldest",
    num_probes=1,
    load_bias=None,
    scale=None,
    normalize=True,
    are_keys=None,
):
    """`memory_piece` of one position, of which all rows have the same.

    Args:
        query, key: `[batch, heads, 1, depth]`.
        value: `[batch, key_heads, 1, value_depth]`.
        memory: the memory of `empty_memory`, of the last piece or step.
        position: int scalar.
        centroids, window_size, memory_keys, eviction, num_probes, load_bias, scale, normalize,
            are_keys: see `memory_piece`.

    Returns:
        `[batch, heads, 1, value_depth]`, `[batch, heads, 1]`, and the memory.

    >>> x, centroids = tf.random.normal([1, 2, 1, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"memory_length": 16, "block_size": 10, "eviction": "oldest"}
    >>> memory = empty_memory(1, 2, 3, 4, 4, x.dtype, **sizes)
    >>> memory_step(x, x, x, memory, 0, centroids, window_size=2, memory_keys=4)[0].shape
    TensorShape([1, 2, 1, 4])
    """
    num_clusters, block_size = centroids.shape[1], size(memory["new_key"], 2)
    routed = _routed(query, key, centroids, load_bias, num_probes, normalize, are_keys)
    place = position % block_size
    new = {
        name: put_rows(memory[f"new_{name}"], place, x)
        for name, x in _members(routed, value).items()
    }
    of_new = tf.where(tf.range(block_size) <= place, new["cluster"], num_clusters)
    sought = routed.of_queries[..., 0]
    arrived = tf.reduce_sum(tf.cast(of_new[:, :, None] == sought[..., None], tf.int32), axis=3)
    border = tf.gather(memory["counts"], sought, batch_dims=2) + arrived - window_size - 1
    kept = {name: x for name, x in memory.items() if not name.startswith("new_")}
    # One for each probe.
    asked = tf.repeat(_scaled(routed.query, scale)[:, :, None], num_probes, axis=2)

    def attend_sought(kept):
        lists = {name: tf.gather(x, sought, batch_dims=2) for name, x in _lists(kept).items()}
        allowed = _best({"query": asked, "border": border[..., None]}, lists, memory_keys)
        bias = lists["key_bias"][..., None, :] if "key_bias" in lists else None
        outputs, logsumexps = attend(asked, lists["key"], lists["value"], allowed, bias=bias)
        return merge(outputs, logsumexps, axis=2), tf.reduce_logsumexp(logsumexps, axis=2)

    output, logsumexp = attend_sought(kept)
    kept = _with_use(kept, routed.of_queries, True, attend_sought)
    kept = tf.cond(
        place == block_size - 1,
        lambda: _remember(kept, new["key"], new["value"], of_new, eviction),
        lambda: kept,
    )
    rings = {f"new_{name}": x for name, x in new.items()}
    return output, logsumexp, like({**kept, **rings}, memory)


def _routed(query, key, centroids, load_bias, num_probes, normalize, are_keys):
    routed_query, routed_key = prepare(query, key)
    query, key = (routed_query, routed_key) if normalize else prepare(query, key, normalized=False)
    return _Routed(
        query,
        key,
        clusters_of(routed_query, centroids, load_bias, None, num_probes),
        clusters_of(routed_key, centroids, load_bias, are_keys, 1)[:, :, 0],
    )


def _members(routed, value):
    """What a block that has not ended keeps of its positions."""
    value = repeat_heads(value, routed.key.shape[1])
    return {"key": routed.key, "value": value, "cluster": routed.of_keys}


def _scaled(query, scale):
    query *= query.shape[3] ** -0.5
    return query if scale is None else query * tf.cast(scale, query.dtype)[:, None, None]


def _lists(kept):
    """What is attended to of a memory."""
    return {name: kept[name] for name in ("key", "value", "number", "key_bias") if name in kept}


def _best(part, lists, count):
    """Which members queries see: of those that they may see the best.

    Args:
        part: dictionary of "query", `[..., queries, depth]`, and of "border", int
            `[..., queries]`, the number of the last member that each may see.
        lists: dictionary of "key", `[..., members, depth]`, and "number", `[..., members]`.
        count: int, how many.

    Returns:
        bool `[..., queries, members]`.
    """
    number = lists["number"][..., None, :]
    there = (number >= 0) & (number <= part["border"][..., None])
    if count >= lists["key"].shape[-2]:
        return there
    logits = tf.matmul(
        tf.stop_gradient(part["query"]), tf.stop_gradient(lists["key"]), transpose_b=True
    )
    return there & (logits >= least_of_largest(logits, there, count))


def _with_use(kept, of_queries, asked, attend_kept):
    """A memory that knows how much queries attended to its members, if it asks for that.

    The weight of a member is the derivative of the logsumexp by its bias.

    Args:
        kept: the memory.
        of_queries: int `[batch, heads, probes, length]`, the clusters of each query.
        asked: bool, broadcastable to `[batch, heads, length]`, which queries count.
        attend_kept: function of a memory, which returns an output and its logsumexp
            `[batch, heads, length]`.
    """
    if "used" not in kept:
        return kept
    bias = tf.zeros_like(kept["used"])
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(bias)
        _, logsumexp = attend_kept({**kept, "key_bias": bias})
        total = tf.reduce_sum(tf.where(asked & (logsumexp > MASKED / 2), logsumexp, 0))
    queries = tf.one_hot(of_queries, size(kept["counts"], 2))
    queries *= tf.cast(asked, queries.dtype)[..., None, :, None] if tf.is_tensor(asked) else 1
    return {
        **kept,
        "used": kept["used"] + tf.cast(tape.gradient(total, bias), tf.float32),
        "asked": kept["asked"] + tf.reduce_sum(queries, axis=[2, 3])[..., None],
    }


def _remember(kept, key, value, of_keys, eviction):
    """A memory with more members, in place of others where there is no room.

    Args:
        kept: the memory.
        key, value: `[batch, heads, length, ...]`, at most as many as a cluster remembers.
        of_keys: int `[batch, heads, length]`, their clusters; that behind the last for none.
        eviction: one of `EVICTIONS`.
    """
    num_clusters, places = size(kept["key"], 2), size(kept["key"], 3)
    order, _, starts = sort_by_cluster(of_keys[:, :, None], num_clusters)
    starts, ends = starts[..., :-2, None], starts[..., 1:-1, None]
    held = tf.reduce_sum(tf.cast(kept["number"] >= 0, tf.int32), axis=3, keepdims=True)
    gone = tf.maximum(held + ends - starts - places, 0)
    ranking = _first_to_go(kept, eviction)

    def candidates(which):
        """Members by their place among all those held, the first to go first, and the new ones."""
        old, new = tf.minimum(which, places - 1), which - held
        if ranking is not None:
            old = tf.gather(ranking, old, batch_dims=3)
        arrived = {
            "number": kept["counts"][..., None] + new,
            "used": tf.zeros(tf.shape(which)),
            "asked": tf.zeros(tf.shape(which)),
        }
        new = tf.clip_by_value(new + starts, 0, size(order, 2) - 1)
        new = tf.gather(order, new, batch_dims=2)
        arrived |= {"key": tf.gather(key, new, batch_dims=2)}
        arrived |= {"value": tf.gather(value, new, batch_dims=2)}

        def one_of_both(name):
            x = tf.gather(kept[name], old, batch_dims=3)
            is_old = tf.reshape(which < held, [*_sizes(which), *[1] * (x.shape.rank - 4)])
            return tf.where(is_old, x, tf.cast(arrived[name], x.dtype))

        return {name: one_of_both(name) for name in kept if name != "counts"}

    place = tf.range(places)
    found = candidates(place + (tf.minimum(place + 1, gone) if eviction == "merged" else gone))
    if eviction == "merged":
        # The oldest ones two by two, any other with itself.
        others = candidates(place + tf.minimum(place, gone))
        for name in ("key", "value"):
            found[name] = (found[name] + others[name]) / 2
    there = place < held + ends - starts - gone
    found["number"] = tf.where(there, found["number"], -1)
    return {**found, "counts": kept["counts"] + (ends - starts)[..., 0]}


def _first_to_go(kept, eviction):
    """The places of a memory, those that go first first and empty ones last; None for their order.

    Returns:
        int `[batch, heads, clusters, memory_length]`.
    """
    if eviction in ("oldest", "merged"):
        return None
    if eviction == "random":
        value = _mixed(kept["number"], kept["counts"][..., None])
    else:
        # What nobody could attend to yet stays.
        value = tf.where(kept["asked"] > 0, kept["used"] / tf.maximum(kept["asked"], 1), 1e30)
    value = tf.where(kept["number"] >= 0, value, value.dtype.max)
    return tf.argsort(value, axis=-1)


def _mixed(number, counts):
    """Numbers from 0 up that look random, float32: as often as these are given, the same."""
    x = tf.cast(number, tf.uint32) * 2654435761 + tf.cast(counts, tf.uint32) * 2246822519
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.cast(shift, tf.uint32)))
        x *= factor
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(8, tf.uint32)), tf.float32)


def _over_blocks(attend_block, of_blocks, kept, dtypes):
    """Attention of one block after the other, each to what is remembered when it begins.

    Gradients are those of the queries alone. They are computed from the first block to the last,
    along with the memory once more.

    Args:
        attend_block: function of a block's dictionary and of a memory, which returns the outputs,
            a tuple, and the memory after the block.
        of_blocks: dictionary of `[blocks, ...]`, "query" among them.
        kept: the memory before the first block.
        dtypes: those of the outputs.

    Returns:
        The outputs, `[blocks, ...]` each, and the memory after the last block.
    """
    names, count = list(kept), size(of_blocks["query"], 0)

    def loop(function, dtypes):
        def step(index, kept, found):
            block = {name: x[index] for name, x in of_blocks.items()}
            outputs, after = function(index, block, kept)
            found = [array.write(index, x) for array, x in zip(found, outputs)]
            return index + 1, like(after, kept), found

        start = tf.constant(0), kept, [tf.TensorArray(dtype, count) for dtype in dtypes]
        _, after, found = tf.while_loop(
            lambda index, *_: index < count, step, start, maximum_iterations=count
        )
        return [array.stack() for array in found], after

    @tf.custom_gradient
    def over(query):
        def forward(index, block, kept):
            return attend_block({**block, "query": query[index]}, kept)

        def gradient(*upstream):
            def backward(index, block, kept):
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    asked = query[index]
                    tape.watch(asked)
                    outputs, after = attend_block({**block, "query": asked}, kept)
                return [tape.gradient(outputs, asked, [x[index] for x in upstream[:2]])], after

            return loop(backward, [query.dtype])[0][0]

        outputs, after = loop(forward, dtypes)
        return (*outputs, *(after[name] for name in names)), gradient

    (*outputs,) = over(of_blocks["query"])
    return outputs[:2], dict(zip(names, outputs[2:]))


def _sizes(x):
    return [size(x, axis) for axis in range(x.shape.rank)]
