"""`fit_centroids`: clusters the queries and keys of a trained model."""

import numpy as np
import tensorflow as tf

from rt_keras import progress
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_rules import moved_load_bias
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.attention_calls import AttentionCall
from rt_keras.layers.centroids import heads_with_centroids
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.models.adapted.batches import batches_of

# First step of the load biases, as a share of the largest possible score.
FIRST_STEP = 0.1


def fit_centroids(model, data, iterations=10, balancing_steps=30, verbose=1):
    """Sets the centroids of a model by k-means on the queries and keys of sample data.

    Each iteration moves each centroid to the mean of its members. Then the centroids stay fixed,
    and decreasing steps move the load biases until the clusters have about equal sizes. The data
    pass through the model once. Each layer is fitted when the data reach it, before it attends,
    because the queries of later layers depend on its outputs.

    In a model that was trained with full attention, queries and keys may lie apart, so the cluster
    of a query may contain few of the keys that matter to it. The result reports how many queries
    see any key. Only the loss of the model shows whether they see the right ones.

    Args:
        model: a model with `CentroidHeads`, such as one returned by `adapt`.
        data: a batch of inputs, or an iterable of batches of the same length, such as a
            `tf.data.Dataset`. For a task with a preprocessor, strings.
        iterations: int, number of k-means iterations. Defaults to 10.
        balancing_steps: int, number of steps of the load biases. With 0, clusters are not balanced.
            Defaults to 30.
        verbose: 0 for no output, 1 for a progress bar. Defaults to 1.

    Returns:
        Dictionary from the path of each head group to a dictionary of floats: "fullest", the share
        of members in the fullest cluster of any head, and "queries_with_keys", the share of queries
        that see at least one key.

    Raises:
        ValueError: if the model has no `CentroidHeads`, `iterations` is less than 1, `data` is
            empty, or its batches have different lengths.

    >>> import keras, rt_keras
    >>> from rt_keras.layers import RoutingHeads
    >>> inputs = keras.Input([16, 8])
    >>> attention = MultiHeadAttention([RoutingHeads(2, num_clusters=4, window_size=4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> found = rt_keras.fit_centroids(model, keras.random.normal([4, 16, 8]), verbose=0)
    >>> (of_heads,) = found.values()
    >>> of_heads["fullest"] < 0.5, 0 < of_heads["queries_with_keys"] <= 1
    (True, True)
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1. Received: {iterations}")
    layers = [
        layer
        for layer in dict.fromkeys(layers_inside(model, MultiHeadAttention))
        if heads_with_centroids(layer)
    ]
    if not layers:
        raise ValueError(f"{model.name} has no heads with centroids")
    inputs, found = _joined(batches_of(model, data)), {}
    with progress.bar("fitting centroids", len(layers), "layers", verbose=verbose) as update:

        def fit_layer(layer, groups):
            for group in groups:
                if group[0].has_centroids:
                    loads = _fit_heads(*group, iterations, balancing_steps)
                    fullest = float(np.max(loads / loads.sum(-1, keepdims=True)))
                    found[group[0].path] = {
                        "fullest": fullest,
                        "queries_with_keys": _queries_with_keys(layer, group),
                    }
            update(advance=1)

        try:
            for layer in layers:
                layer.observer = lambda groups, layer=layer: fit_layer(layer, groups)
            model(inputs, training=False)
        finally:
            for layer in layers:
                layer.observer = None
    return found


def _joined(batches):
    """Concatenates batches."""
    shapes = [[x.shape[1:] for x in tf.nest.flatten(batch)] for batch in batches]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"All batches of data must have the same length. Received: {shapes}")
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *batches)


def _queries_with_keys(layer, group):
    """Returns the share of the queries of a head group that see at least one key.

    A query sees a key if the sum of its attention weights is above 0.
    """
    sees = tf.cast(AttentionCall(layer, [group]).sums() > 0, tf.float32)
    mask = group[2]["query_mask"]
    mask = tf.ones_like(sees[:, 0]) if mask is None else tf.cast(mask, tf.float32)
    return float(tf.reduce_sum(sees * mask[:, None]) / (tf.reduce_sum(mask) * sees.shape[1]))


def _fit_heads(heads, arguments, options, iterations, balancing_steps):
    """Fits the centroids of a head group to the queries and keys of a call.

    Returns:
        The final number of members of each cluster, `[heads, clusters]`.
    """
    mover = CentroidEMA(
        decay=0.0,
        update="count",
        load_bias_step=0.0,
        initialize_from_batch=True,
        restart_after=1,
    )
    heads.updates.assign(tf.zeros_like(heads.updates))
    heads.load_bias.assign(tf.zeros_like(heads.load_bias))
    for _ in range(iterations):
        collect(heads, arguments, options)
        mover.update_heads(heads)
    # The largest possible score.
    depth = heads.centroids.shape[-1]
    for number in range(balancing_steps):
        step = FIRST_STEP * depth * (1 - number / balancing_steps)
        loads = _loads(heads, arguments, options)
        heads.load_bias.assign(moved_load_bias(heads.load_bias, loads, step))
    return _loads(heads, arguments, options).numpy()


def collect(heads, arguments, options):
    """Adds the queries and keys of a call to the statistics that update the centroids.

    Args:
        heads: a `CentroidHeads`.
        arguments, options: those of the call; see `AttentionCall`.
    """
    query, _, key = arguments
    masks = {name: options[name] for name in ("query_mask", "key_mask")}
    heads.collect(query=query, key=key, **masks)


def _loads(heads, arguments, options):
    """Returns the number of members of each cluster, `[heads, clusters]`."""
    collect(heads, arguments, options)
    loads = tf.reduce_sum(tf.convert_to_tensor(heads.member_counts), axis=0)
    heads.clear_statistics()
    return loads
