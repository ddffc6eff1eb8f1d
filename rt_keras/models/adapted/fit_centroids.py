"""`fit_centroids`: clusters for the queries and keys of a model that is already trained."""

import numpy as np
import tensorflow as tf

from rt_keras import progress
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_rules import moved_load_bias
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.models.adapted.batches import batches_of

# The first step of a load bias, as a share of the largest score.
FIRST_STEP = 0.1


def fit_centroids(model, data, iterations=10, balancing_steps=30, verbose=1):
    """Sets the centroids of a model by k-means on the queries and keys of sample data.

    Each iteration moves a centroid to the mean of its members. Then the centroids stay, and steps
    that become smaller move the load biases until clusters are about equally large. The layers are
    fitted one after the other, as the queries of each depend on the heads before it.

    Args:
        model: a model with `CentroidHeads`, such as `adapt` makes.
        data: a batch of inputs, or an iterable of batches such as a `tf.data.Dataset`; for a task
            with a preprocessor, strings. All queries and keys of a layer are kept at once.
        iterations: int, iterations of k-means. Defaults to 10.
        balancing_steps: int, steps of the load biases; 0 leaves clusters as uneven as they are.
            Defaults to 30.
        verbose: 0 for silence, 1 for a progress bar. Defaults to 1.

    Returns:
        Dictionary from the path of each group of heads to the share of members in the fullest
        cluster of any of its heads.

    Raises:
        ValueError: if the model has no `CentroidHeads`, `iterations` is less than 1 or there are no
            data.

    >>> import keras, rt_keras
    >>> from rt_keras.layers import RoutingHeads
    >>> inputs = keras.Input([16, 8])
    >>> attention = MultiHeadAttention([RoutingHeads(2, num_clusters=4, window_size=4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> fullest = rt_keras.fit_centroids(model, keras.random.normal([4, 16, 8]), verbose=0)
    >>> list(fullest.values())[0] < 0.5
    True
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1. Received: {iterations}")
    layers = [
        layer
        for layer in dict.fromkeys(layers_inside(model, MultiHeadAttention))
        if layers_inside(layer, CentroidHeads)
    ]
    if not layers:
        raise ValueError(f"{model.name} has no heads with centroids")
    batches, fullest = batches_of(model, data), {}
    for layer in progress.track(layers, "fitting centroids", len(layers), "layers", verbose):
        calls = [
            call
            for inputs in batches
            for call in attention_calls(model, inputs)
            if call.layer is layer
        ]
        for number, heads in enumerate(layer.head_groups):
            if isinstance(heads, CentroidHeads):
                vectors = [call.groups[number] for call in calls]
                loads = _fit_heads(heads, vectors, iterations, balancing_steps)
                fullest[heads.path] = float(np.max(loads / loads.sum(-1, keepdims=True)))
    return fullest


def _fit_heads(heads, calls, iterations, balancing_steps):
    """Fits a group of heads; returns the number of members, `[heads, clusters]`, at the end."""
    mover = CentroidEMA(
        decay=0.0,
        update="count",
        load_bias_step=0.0,
        initialize_from_batch=True,
        restart_after=len(calls),
    )
    heads.updates.assign(tf.zeros_like(heads.updates))
    heads.load_bias.assign(tf.zeros_like(heads.load_bias))
    for _ in range(iterations):
        _collect_all(heads, calls)
        mover.update_heads(heads)
    # The largest score there is.
    depth = heads.centroids.shape[-1]
    for number in range(balancing_steps):
        step = FIRST_STEP * depth * (1 - number / balancing_steps)
        heads.load_bias.assign(moved_load_bias(heads.load_bias, _loads(heads, calls), step))
    return _loads(heads, calls).numpy()


def collect(heads, arguments, options):
    """Adds what heads were called with to the statistics that move their centroids.

    Args:
        heads: a `CentroidHeads`.
        arguments, options: of the call, as `AttentionCall` keeps them.
    """
    query, _, key = arguments
    masks = {name: options[name] for name in ("query_mask", "key_mask")}
    heads.collect(query=query, key=key, **masks)


def _collect_all(heads, calls):
    for _, arguments, options in calls:
        collect(heads, arguments, options)


def _loads(heads, calls):
    """The members of each cluster, `[heads, clusters]`."""
    _collect_all(heads, calls)
    loads = tf.reduce_sum(tf.convert_to_tensor(heads.member_counts), axis=0)
    heads.clear_statistics()
    return loads
