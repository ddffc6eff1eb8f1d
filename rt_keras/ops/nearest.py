"""Routing attention where each position belongs to its nearest centroid alone: strictly causal."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype, attend
from rt_keras.ops.blocks import (
    ceil_div,
    gather_rows,
    join_blocks,
    move_axis,
    overlapping_blocks,
    pad_axis,
    size,
    split_blocks,
)
from rt_keras.ops.chunks import num_slices, over_blocks, over_heads, slices_of_heads
from rt_keras.ops.ranks import rank_in_clusters, sort_by_cluster
from rt_keras.ops.relative import pair_bias
from rt_keras.ops.routing import centroid_scores, logit_bound, prepare


def nearest_attention(
    query,
    key,
    value,
    centroids,
    *,
    window_size,
    causal=False,
    num_probes=1,
    load_bias=None,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
):
    """Routing attention of each query to the keys of its nearest centroids, the last ones first.

    With q, k the normalised queries and keys and μ(x) = argmax_c centroid_c · x + load_bias_c,

    ```
    output_i = sum_(j in N(i)) softmax_j(q_i · (k_j + r_(i - j)) / sqrt(depth) + t_j) value_j
    ```

    where N(i) are the last `window_size` positions j <= i with μ(k_j) = μ(q_i); if not causal,
    the window_size // 2 before i and as many from i on as make up `window_size`. With
    `num_probes` p, N(i) is the union of this over the p centroids nearest to q_i: one softmax.

    Output i depends on positions up to i alone. Nothing is left out and nothing is chosen by rank
    over the sequence, so decoding needs the last `window_size` keys and values of each cluster.

    Positions are ordered by (cluster, position). Queries that are their own keys attend in that
    order as in local attention, in blocks of B = `window_size`, or of a part of it that is at
    most 128, at n · (window_size + B) products. Separate keys need twice that: see
    `_attend_tiles`. With p probes there are p times as many queries.

    Args:
        query: `[batch, heads, length, depth]`, not normalised.
        key: `[batch, heads, length, depth]`, or None for the queries themselves.
        value: `[batch, heads, length, value_depth]`.
        centroids: `[heads, clusters, depth]`.
        window_size: the most keys that a query attends to in one cluster.
        causal: whether query i sees key j only if j <= i.
        num_probes: clusters in which each query attends.
        load_bias: `[heads, clusters]`, added to the scores, or None for zeros.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0.
        key_mask: bool `[batch, length]`, False for padding, which belongs to no cluster. With
            shared queries and keys, None means `query_mask`.
        token_bias: `[batch, length]`, t above.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; further distances count as m.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query without keys gets 0.

    Raises:
        ValueError: if queries and keys differ in length.

    Source: Roy et al. 2021, section 4.1, the equation of X'_i; the exact parallel form is ours.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> nearest_attention(x, None, x, centroids, window_size=4, causal=True).shape
    TensorShape([1, 2, 12, 4])
    """
    length = size(query, 2)
    lengths = {query.shape[2], query.shape[2] if key is None else key.shape[2]}
    if len(lengths - {None}) > 1:
        raise ValueError(
            'Assignment "nearest" needs as many keys as queries; "balanced" does not. '
            f"Received: query of length {query.shape[2]}, key of length {key.shape[2]}."
        )
    tiles = 2 if key is not None or num_probes > 1 else 1
    keys = window_size + _block_size(window_size)
    heads = query.shape[1]
    logits = size(query, 0) * heads * length * num_probes * keys * tiles
    slices = slices_of_heads(heads, logits)
    return over_heads(
        lambda arguments: _nearest_attention(
            arguments, window_size, causal, num_probes, dropout, slices
        ),
        {
            "query": query,
            "key": key,
            "value": value,
            "centroids": centroids,
            "load_bias": load_bias,
            "relative_embeddings": relative_embeddings,
        },
        {"query_mask": query_mask, "key_mask": key_mask, "token_bias": token_bias, "seed": seed},
        logits,
        value.dtype,
    )


def _nearest_attention(arguments, window_size, causal, num_probes, dropout, slices):
    query, key = prepare(arguments["query"], arguments.get("key"))
    query_mask, key_mask = arguments.get("query_mask"), arguments.get("key_mask")
    if key is query and key_mask is None:
        key_mask = query_mask
    centroids, load_bias = arguments["centroids"], arguments.get("load_bias")
    num_clusters = centroids.shape[1]
    of_queries = clusters_of(query, centroids, load_bias, query_mask, num_probes)
    scaled = query * query.shape[-1] ** -0.5
    options = {
        "relative_embeddings": arguments.get("relative_embeddings"),
        "token_bias": arguments.get("token_bias"),
        "dropout": dropout,
        "seed": arguments.get("seed"),
        "slices": slices,
    }
    if key is query and key_mask is query_mask and num_probes == 1:
        return _attend_sorted(
            scaled, key, arguments["value"], of_queries, num_clusters, window_size, causal, options
        )
    of_keys = clusters_of(key, centroids, load_bias, key_mask, 1)
    return _attend_tiles(
        scaled,
        key,
        arguments["value"],
        of_queries,
        of_keys,
        num_clusters,
        window_size,
        causal,
        options,
    )


def clusters_of(x, centroids, load_bias, mask, count):
    """The `count` nearest clusters of each position, `[batch, heads, count, length]`.

    Padding gets a cluster of its own behind the last, where nothing attends.
    """

    def nearest(x):
        scores = centroid_scores(x, centroids, load_bias)
        if count == 1:
            return tf.argmax(scores, axis=-1, output_type=tf.int32)[:, :, None]
        return tf.linalg.matrix_transpose(tf.math.top_k(scores, count).indices)

    length, scores_of_one = size(x, 2), size(x, 0) * centroids.shape[0] * centroids.shape[1]
    slices = num_slices(length * scores_of_one)
    if slices == 1:
        clusters = nearest(x)
    else:
        x = split_blocks(tf.stop_gradient(x), slices, ceil_div(length, slices))
        clusters = tf.map_fn(nearest, move_axis(x, 2, 0), fn_output_signature=tf.int32)
        clusters = tf.concat(tf.unstack(clusters), axis=3)[..., :length]
    if mask is not None:
        clusters = tf.where(tf.cast(mask, tf.bool)[:, None, None], clusters, centroids.shape[1])
    return clusters


def _flat(x):
    """`[batch, heads, a, b, ...]` to `[batch, heads, a * b, ...]`."""
    return join_blocks(x, size(x, 2) * size(x, 3))


def _sorted_keys(key, value, order, place, options):
    """What windows are cut from: `[batch, heads, length, ...]`, in the order of the sorted keys."""
    found = {"key": gather_rows(key, order, place), "value": gather_rows(value, order, place)}
    if options["relative_embeddings"] is not None:
        found["key_positions"] = order
    if options["token_bias"] is not None:
        bias = tf.cast(options["token_bias"], key.dtype)[:, None, :, None]
        bias = tf.tile(bias, [1, size(key, 1), 1, 1])
        found["key_bias"] = gather_rows(bias, order, place)[..., 0]
    return found


def _attend_blocks(per_block, of_keys, windows, allowed, slices, probes, options):
    """Attention of blocks of queries to windows of the sorted keys, some of the blocks at a time.

    Args:
        per_block: what each block has, `[batch, heads, blocks, ...]`: "query", "positions" and
            what the functions need.
        of_keys: what windows are cut from, as of `_sorted_keys`.
        windows: function of one of `of_keys` and the arguments of a slice of the blocks, which
            cuts their windows, `[batch, heads, blocks, keys, ...]`.
        allowed: function of the arguments of a slice and its windows by name; returns which key
            each query attends to, bool `[batch, heads, blocks, queries, keys]`.
        slices: how many slices, a divisor of the number of blocks.
        probes: clusters in which each query attends.

    Returns:
        The output of each block's queries and, for several probes, the logarithm of the sum.
    """

    def attend_slice(part):
        cut = {name: windows(part[name], part) for name in of_keys}
        bias = cut["key_bias"][..., None, :] if "key_bias" in cut else None
        if "key_positions" in cut:
            relative = pair_bias(
                part["query"], part["relative_embeddings"], part["positions"], cut["key_positions"]
            )
            bias = relative if bias is None else bias + relative
        found = attend(
            part["query"],
            cut["key"],
            cut["value"],
            allowed(part, cut),
            bias=bias,
            bound=logit_bound(part["query"].shape[-1], bias),
            dropout=options["dropout"],
            seed=part.get("seed"),
        )
        return found[0] if probes == 1 else found

    shared = {**of_keys, **{name: options[name] for name in ("relative_embeddings", "seed")}}
    dtype = of_keys["value"].dtype
    if probes > 1:
        dtype = dtype, accumulation_dtype(dtype)
    return over_blocks(attend_slice, per_block, shared, slices, dtype)


def _in_slices(num_blocks, slices):
    """At least `num_blocks`, for all slices to have as many, and the number of slices."""
    if slices == 1:
        return num_blocks, 1
    at_once = ceil_div(num_blocks, slices)
    slices = ceil_div(num_blocks, at_once)
    return slices * at_once, slices


def _gathered_windows(of_keys, first, num_blocks, block_size, count, before):
    """Windows of `count` blocks, of which the first is any.

    Args:
        of_keys: dictionary of `[batch, heads, length, ...]`.
        first: int `[batch, heads, windows]`, the first block of each window.
        num_blocks: how many blocks there are, and so windows that differ.
        block_size: positions in a block.
        count: blocks in a window.
        before: zeros before the first position.

    Returns:
        The blocks of each entry; the number among them of each window's first; and a function of
        one of these and a dictionary with these numbers as "window", which cuts windows.
    """
    batch, heads = size(first, 0), size(first, 1)
    blocks = {}
    for name, x in of_keys.items():
        x = split_blocks(pad_axis(x, 2, before, 0), num_blocks, block_size)
        shape = [size(x, axis) for axis in range(x.shape.rank)]
        blocks[name] = tf.reshape(x, [batch * heads * num_blocks, *shape[3:]])

    def windows(x, part):
        x = tf.gather(x, part["window"][..., None] + tf.range(count))
        shape = [size(x, axis) for axis in range(x.shape.rank)]
        return tf.reshape(x, [*shape[:3], count * block_size, *shape[5:]])

    sequence = tf.reshape(tf.range(batch * heads), [batch, heads, 1])
    return blocks, sequence * num_blocks + first, windows


def _attend_sorted(query, key, value, clusters, num_clusters, window_size, causal, options):
    """Queries that are their own keys: local attention in the order of (cluster, position)."""
    length = size(query, 2)
    block_size = _block_size(window_size)
    num_blocks, slices = _in_slices(ceil_div(length, block_size), options["slices"])
    count = ceil_div(window_size, block_size) + 1
    before = window_size - 1 if causal else window_size // 2
    order, place, _ = sort_by_cluster(clusters, num_clusters)
    # Counted from the last: 0 for padding, and beyond both ends.
    clusters = num_clusters - tf.gather(clusters[:, :, 0], order, batch_dims=2)
    per_block = {
        "query": gather_rows(query, order, place),
        "positions": order,
        "clusters": clusters,
    }
    per_block = {name: split_blocks(x, num_blocks, block_size) for name, x in per_block.items()}
    of_keys = {**_sorted_keys(key, value, order, place, options), "key_clusters": clusters}
    steps = tf.range(count * block_size) - tf.range(block_size)[:, None]

    def allowed(part, cut):
        of_window = cut["key_clusters"][..., None, :]
        same = (of_window == part["clusters"][..., None]) & (of_window > 0)
        return same & (steps >= 0) & (steps < window_size)

    def windows(x, part):
        return overlapping_blocks(x, num_blocks, block_size, count, before)

    if slices > 1:
        first = tf.zeros([size(query, 0), size(query, 1), 1], tf.int32) + tf.range(num_blocks)
        of_keys, per_block["window"], windows = _gathered_windows(
            of_keys, first, num_blocks + count - 1, block_size, count, before
        )
    output = _attend_blocks(per_block, of_keys, windows, allowed, slices, 1, options)
    return gather_rows(join_blocks(output, length), place, order)


def _key_intervals(of_queries, of_keys, num_clusters, window_size, causal):
    """Places among the sorted keys that each query attends to, `[first, last)`.

    Args:
        of_queries: int `[batch, heads, probes, length]`, the clusters of each query.
        of_keys: int `[batch, heads, 1, length]`, that of each key.

    Returns:
        Two int32 `[batch, heads, probes * length]`. In the order of the sorted queries neither
        falls.
    """
    middle, starts = rank_in_clusters(of_queries, of_keys, num_clusters + 1, inclusive=causal)
    start, end = (tf.gather(starts[:, :, 0, i:], of_queries, batch_dims=2) for i in (0, 1))
    last = middle if causal else tf.minimum(middle - window_size // 2 + window_size, end)
    first = middle - (window_size if causal else window_size // 2)
    # Padding has the cluster behind the last; its queries get no keys.
    first = tf.where(of_queries < num_clusters, tf.maximum(first, start), last)
    return _flat(first), _flat(last)


def _attend_tiles(
    query, key, value, of_queries, of_keys, num_clusters, window_size, causal, options
):
    """Separate queries and keys: blocks of both sorted lists, met along a staircase.

    Keys and queries are sorted by (cluster, position) and cut into blocks. A query's keys are an
    interval of at most window_size ranks among the sorted keys, which ends in a key block kb and
    so lies in kb and the few blocks before it. Along the sorted queries neither their block qb
    nor kb falls, so each pair (qb, kb) that occurs has the tile t = qb + kb to itself: every query
    is computed on exactly one of the tiles, whose number is static.
    """
    length, probes = size(query, 2), size(of_queries, 2)
    entries = length * probes
    block_size = _block_size(window_size)
    look_back = ceil_div(window_size, block_size)
    query_blocks, key_blocks = ceil_div(entries, block_size), ceil_div(length, block_size)
    num_tiles, slices = _in_slices(query_blocks + key_blocks - 1, options["slices"])
    key_order, key_place, _ = sort_by_cluster(of_keys, num_clusters)
    query_order, query_place, _ = sort_by_cluster(of_queries, num_clusters)

    # The interval and the tile of each sorted query.
    intervals = _key_intervals(of_queries, of_keys, num_clusters, window_size, causal)
    first, last = (tf.gather(x, query_order, batch_dims=2) for x in intervals)
    key_block = tf.maximum(last - 1, 0) // block_size
    first, last = (split_blocks(x, query_blocks, block_size) for x in (first, last))
    key_block = split_blocks(key_block, query_blocks, block_size, fill=key_blocks - 1)
    tile = key_block + tf.range(query_blocks)[:, None]

    # The query block and the key block of each tile: query blocks follow one another, each from
    # the tile of its first query on.
    tiles = tf.range(num_tiles)
    begun = tf.cast(tile[:, :, None, :, 0] <= tiles[:, None], tf.int32)
    of_tile = tf.maximum(tf.reduce_sum(begun, axis=-1) - 1, 0)
    key_of_tile = tf.clip_by_value(tiles - of_tile, 0, key_blocks - 1)

    # For each entry the row of the tiles that computes it, and for each row its entry. A row
    # that computes nothing has no keys, so no gradient passes through it.
    row = join_blocks(tile * block_size + tf.range(block_size), entries)
    row = tf.gather(row, query_place, batch_dims=2)
    place = _flat(of_tile[..., None] * block_size + tf.range(block_size))
    entry = tf.gather(query_order, tf.minimum(place, entries - 1), batch_dims=2)

    query = gather_rows(tf.tile(query, [1, 1, probes, 1]), entry, row)
    per_block = {
        "query": split_blocks(query, num_tiles, block_size),
        "positions": split_blocks(entry % length, num_tiles, block_size),
        "key_block": key_of_tile,
    }
    # Those of a query that another tile computes: none.
    here = tf.gather(tile, of_tile, batch_dims=2) == tiles[:, None]
    per_block["first"] = tf.gather(first, of_tile, batch_dims=2)
    per_block["last"] = tf.where(here, tf.gather(last, of_tile, batch_dims=2), 0)
    count = look_back + 1
    of_keys, per_block["window"], windows = _gathered_windows(
        _sorted_keys(key, value, key_order, key_place, options),
        key_of_tile,
        key_blocks + look_back,
        block_size,
        count,
        look_back * block_size,
    )

    def allowed(part, _):
        ranks = (part["key_block"][..., None] - look_back) * block_size
        ranks = (ranks + tf.range(count * block_size))[..., None, :]
        return (ranks >= part["first"][..., None]) & (ranks < part["last"][..., None])

    found = _attend_blocks(per_block, of_keys, windows, allowed, slices, probes, options)
    if probes == 1:
        return gather_rows(_flat(found), row, entry)
    output, log_total = found
    output = gather_rows(_flat(output), row, entry)
    log_total = gather_rows(_flat(log_total)[..., None], row, entry)
    return _merge_probes(output, log_total, probes, length)


def _merge_probes(output, log_total, probes, length):
    """One softmax over the keys of all probes, from that of each and the logarithm of its sum."""
    output, log_total = (split_blocks(x, probes, length) for x in (output, log_total))
    share = tf.cast(tf.nn.softmax(log_total, axis=2), output.dtype)
    return tf.reduce_sum(share * output, axis=2)


# Rows of a block: fewer keys are computed in vain, and a matrix unit is still filled.
MAX_BLOCK_SIZE = 128


def _block_size(window_size):
    """The largest part of the window that is at most `MAX_BLOCK_SIZE`."""
    return ceil_div(window_size, ceil_div(window_size, MAX_BLOCK_SIZE))
