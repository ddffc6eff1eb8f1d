"""Ring buffers of the last members of each cluster, which do not grow with the sequence."""

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, flatten_blocks, fold_heads, size, sizes, split_blocks
from rt_keras.ops.nearest_tiles import from_probes, staircase
from rt_keras.ops.nearest_windows import attend_blocks, block_size_of
from rt_keras.ops.ranks import rank_in_clusters, sort_by_cluster
from rt_keras.ops.slices import over_blocks, slices_of_blocks

# Minimum number of queries in a block, below which small matrices waste time.
MIN_BLOCK_SIZE = 8


def add_members(rings, members, of_members, num_clusters):
    """Adds members to rings, replacing the oldest ones.

    The r-th member of a cluster is in slot r modulo the ring's length.

    Args:
        rings: dictionary of "counts", int `[batch, heads, clusters]`, the number of members added
            so far, and of tensors `[batch, heads, clusters, window, ...]`. Other entries are kept.
        members: dictionary of `[batch, heads, length, ...]`, for each of those tensors.
        of_members: int `[batch, heads, 1, length]`, the clusters of the members; `num_clusters` for
            those in none.
        num_clusters: int, number of clusters.

    Returns:
        The updated dictionary.
    """
    window = size(rings["key"], 3)
    order, _, starts = sort_by_cluster(of_members, num_clusters)
    starts, ends = starts[..., :-2], starts[..., 1:-1]
    counts = rings["counts"] + ends - starts
    number = numbers_of_places(counts, window)
    added = number - rings["counts"][..., None]
    place = tf.clip_by_value(added + starts[..., None], 0, size(order, 2) - 1)
    shape = sizes(place)
    held = tf.gather(order, flatten_blocks(place), batch_dims=2)

    def ring(kept, new):
        new = tf.gather(tf.cast(new, kept.dtype), held, batch_dims=2)
        new = tf.reshape(new, [*shape, *new.shape[3:]])
        is_new = tf.reshape(added >= 0, [*shape, *[1] * (new.shape.rank - 4)])
        return tf.where(is_new, new, kept)

    changed = {name: ring(rings[name], x) for name, x in members.items()}
    return {**rings, **changed, "counts": counts}


def numbers_of_places(counts, window):
    """Returns the number of the member in each slot of a ring, negative for empty slots.

    Args:
        counts: int `[...]`, the number of members added so far.
        window: int, length of a ring.

    Returns:
        int `[..., window]`.

    >>> numbers_of_places(tf.constant([2, 5]), 3).numpy().tolist()
    [[0, 1, -1], [3, 4, 2]]
    """
    last = counts[..., None] - 1
    return last - (last - tf.range(window)) % window


def attend_to_rings(query, of_queries, rings, of_keys, options):
    """Computes attention of the queries of a chunk to the members in the rings.

    A query sees as many of the last members of its clusters as a ring is long. Members of the chunk
    up to its own position count first; attention to them is computed elsewhere.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        rings: dictionary of "key" and "value", `[batch, key_heads, clusters, window, ...]`,
            "counts", and optionally "positions", relative to the start of the chunk.
        of_keys: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.
        options: dictionary of the options of `attend_blocks`.

    Returns:
        `[batch, heads, length, value_depth]`, and the logsumexp of the logits,
        `[batch, heads, length]`.
    """
    # The number of the first member that a query sees.
    counts = counts_at(rings["counts"], of_queries, of_keys)
    first = tf.maximum(counts - size(rings["key"], 3), 0)
    lists = {name: rings[name] for name in ("key", "value", "positions") if name in rings}
    lists["number"] = numbers_of_places(rings["counts"], size(rings["key"], 3))
    stairs, per_block, lists = _on_tiles(query, of_queries, lists, first, tf.int32.max)

    def allowed(part, cut):
        return cut["number"][..., None, :] >= part["border"][..., None]

    options = {**options, "return_logsumexp": True}
    found = attend_blocks(per_block, lists, _cut, allowed, stairs.chunks, options)
    heads, key_heads = query.shape[1], size(of_queries, 1)
    return from_probes(stairs, *found, heads, size(of_queries, 2) * key_heads // heads, True)


def counts_at(counts, of_queries, of_keys):
    """Counts the members of the clusters of each query, up to its own position.

    Args:
        counts: int `[batch, key_heads, clusters]`, the number of members before the chunk.
        of_queries: int `[batch, key_heads, lists, length]`, the clusters of each query.
        of_keys: int `[batch, key_heads, 1, length]`, the clusters of the chunk's members.

    Returns:
        int `[batch, key_heads, lists, length]`.
    """
    rank, starts = rank_in_clusters(of_queries, of_keys, size(counts, 2) + 1, inclusive=True)
    rank -= tf.gather(starts[:, :, 0], of_queries, batch_dims=2)
    return rank + tf.gather(counts, of_queries, batch_dims=2)


def of_lists(function, query, of_queries, lists, border, none, dtypes):
    """Applies a function to queries and the lists of their clusters.

    Args:
        function: function of a dictionary of tiles, with "query", `[batch, heads, tiles, queries,
            depth]`, and "border", `[batch, heads, tiles, queries]`, and of a dictionary of their
            lists, `[batch, heads, tiles, members, ...]`. It returns
            `[batch, heads, tiles, queries, found]`, or a tuple of such tensors.
        query, of_queries, lists, border, none: see `_on_tiles`; here each head has its own keys.
        dtypes: the dtypes of the function's results.

    Returns:
        `[batch, heads, probes, length, found]`, or a tuple of such tensors.
    """
    stairs, per_block, lists = _on_tiles(query, of_queries, lists, border, none)

    def of_tiles(part):
        return function(part, {name: _cut(part[name], part) for name in lists})

    found = over_blocks(of_tiles, per_block, lists, stairs.chunks, dtypes)
    probes, length = size(of_queries, 2), size(of_queries, 3)
    return tf.nest.map_structure(lambda x: split_blocks(stairs.of_rows(x), probes, length), found)


def _on_tiles(query, of_queries, lists, border, none):
    """Sorts queries by cluster, and lays out tiles of their blocks and lists; see `staircase`.

    Args:
        query: `[batch, heads, length, depth]`, scaled.
        of_queries: int `[batch, key_heads, heads / key_heads * probes, length]`, the clusters of
            each query.
        lists: dictionary of `[batch, key_heads, clusters, members, ...]`, optionally with
            "positions", relative to the start of the chunk.
        border: int with the shape of `of_queries`, a number of a member that bounds those that a
            query sees.
        none: int, the border of a query that sees no member.

    Returns:
        The `Staircase`; a dictionary of its tiles' arguments, "query", "positions", "list" and
        "border", `[batch, key_heads, tiles, ...]`; and the lists, from which `_cut` gathers those
        of tiles.
    """
    heads, length = query.shape[1], size(query, 2)
    key_heads, num_clusters, window = (size(lists["key"], axis) for axis in (1, 2, 3))
    entries = size(of_queries, 2) * length
    probes = size(of_queries, 2) * key_heads // heads
    block_size = _block_size(entries, num_clusters, window)
    order, place, _ = sort_by_cluster(of_queries, num_clusters)
    column = tf.gather(flatten_blocks(of_queries), order, batch_dims=2)
    tiles = ceil_div(entries, block_size) + num_clusters - 1
    chunks = slices_of_blocks(key_heads, size(query, 0) * key_heads * tiles * block_size * window)
    stairs = staircase(column, order, place, block_size, num_clusters, chunks)
    border = stairs.of_sorted(tf.gather(flatten_blocks(border), order, batch_dims=2))
    sequence = tf.reshape(tf.range(size(query, 0) * key_heads), [-1, key_heads, 1])
    per_block = {
        "query": stairs.of_entries(fold_heads(tf.tile(query, [1, 1, probes, 1]), key_heads)),
        "positions": split_blocks(stairs.entry % length, stairs.count, block_size),
        "list": sequence * num_clusters + stairs.column,
        "border": tf.where(stairs.here, border, none),
    }
    lists = {"key_positions" if name == "positions" else name: x for name, x in lists.items()}
    return stairs, per_block, {name: tf.reshape(x, [-1, *x.shape[3:]]) for name, x in lists.items()}


def _cut(x, part):
    """Gathers the lists of a chunk of tiles."""
    return tf.gather(x, part["list"])


def _block_size(entries, num_clusters, window):
    """Returns the number of queries in a block: about as many as a cluster has."""
    most = block_size_of(window)
    if not isinstance(entries, int):
        return most
    return min(max(ceil_div(entries, num_clusters), MIN_BLOCK_SIZE), most)
