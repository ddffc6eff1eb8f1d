"""The callback that moves the centroids of routing heads."""

import keras
import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads

UPDATES = ("mean", "count")


class CentroidEMA(keras.callbacks.Callback):
    """Moves the centroids and load biases of every `RoutingHeads` in the model after each batch.

    With q_c and k_c the means of the queries and keys nearest to centroid c, n_c their number:

    ```
    "mean":   centroid_c = normalise(λ centroid_c + (1 - λ) / 2 q_c + (1 - λ) / 2 k_c)
    "count":  count_c = λ count_c + (1 - λ) n_c,   sum_c = λ sum_c + (1 - λ) (sum of members)
              centroid_c = sum_c / smoothed count_c
    load:     b_c = b_c - step clip(n_c / mean(n) - 1, -1, 1)
    ```

    "mean" takes (1 - λ) of one mean where queries are their own keys, or where c has only one of
    the two; "count" makes one update for the queries and a second for the keys. A centroid without
    members keeps its value. The load bias keeps clusters from collapsing into one: it comes from
    past batches alone, so causal routing stays causal. Statistics are summed over replicas; those
    of the s batches of one execution (`steps_per_execution`) make one update with λ^s.

    Each epoch's logs get, for the i-th routing layer, `routing_i_fullest` (share of the positions
    in the fullest cluster of any head; 1 / clusters if even), `routing_i_empty` (number of
    clusters, over the heads, that got nothing) and `routing_i_entropy` (of the shares, over
    log(clusters), mean over the heads: 1 if even, 0 if all is in one).

    Args:
        decay: λ.
        update: "mean" (the paper) or "count" (its authors' code).
        load_bias_step: how far a batch may move a load bias, in units of the scores
            `centroid · x`. 0 for no load bias.
        initialize_from_batch: whether centroids start from members of the first batch in place of
            noise.
        restart_after: batches after which a cluster that stays empty restarts from a member of
            the last batch, or None for never.

    Raises:
        ValueError: if a number is out of range, `update` is unknown, or the model has no
            `RoutingHeads`.

    Source: Roy et al. 2021, algorithm 1; load bias: Wang et al. 2024, Auxiliary-Loss-Free Load
    Balancing Strategy for Mixture-of-Experts.

    >>> callback = CentroidEMA(decay=0.99, restart_after=100)
    >>> callback.update
    'mean'
    """

    def __init__(
        self,
        decay=0.999,
        update="mean",
        load_bias_step=0.1,
        initialize_from_batch=False,
        restart_after=None,
    ):
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1). Received: decay={decay}")
        if update not in UPDATES:
            raise ValueError(f"update must be one of {UPDATES}. Received: update={update!r}")
        if load_bias_step < 0:
            raise ValueError(
                f"load_bias_step must be at least 0. Received: load_bias_step={load_bias_step}"
            )
        if restart_after is not None and restart_after < 1:
            raise ValueError(
                f"restart_after must be None or at least 1. Received: restart_after={restart_after}"
            )
        self.decay = decay
        self.update = update
        self.load_bias_step = load_bias_step
        self.initialize_from_batch = initialize_from_batch
        self.restart_after = restart_after

    def on_train_begin(self, logs=None):
        # A layer that is used twice has one state.
        self._heads = list(dict.fromkeys(routing_heads(self.model)))
        if not self._heads:
            raise ValueError("CentroidEMA needs a model with RoutingHeads. Found none.")
        for heads in self._heads:
            heads.has_centroid_updates = True
        self._update_all = None

    def on_epoch_begin(self, epoch, logs=None):
        if self._update_all is not None:
            for members in self._epoch_members:
                members.assign(tf.zeros_like(members))

    def on_train_batch_end(self, batch, logs=None):
        with self.model.distribute_strategy.scope():
            if self._update_all is None:
                # Not before the first batch: only then is every layer sure to be built.
                self._epoch_members = [_zeros_like(x.load_bias) for x in self._heads]
                self._empty_batches = [_zeros_like(x.load_bias) for x in self._heads]
                self._update_all = tf.function(self._update_heads)
            self._update_all()

    def on_epoch_end(self, epoch, logs=None):
        if logs is None or self._update_all is None:
            return
        for i, members in enumerate(self._epoch_members):
            fullest, empty, entropy = cluster_use(members)
            logs[f"routing_{i}_fullest"] = float(fullest)
            logs[f"routing_{i}_empty"] = int(empty)
            logs[f"routing_{i}_entropy"] = float(entropy)

    def _update_heads(self):
        for heads, epoch_members, empty_batches in zip(
            self._heads, self._epoch_members, self._empty_batches
        ):
            members = tf.reduce_sum(tf.convert_to_tensor(heads.member_counts), axis=0)
            batches = tf.convert_to_tensor(heads.member_batches)
            epoch_members.assign_add(members)
            empty_batches.assign(tf.where(members > 0, 0.0, empty_batches + batches))
            self._move_centroids(heads, empty_batches)
            heads.load_bias.assign(moved_load_bias(heads.load_bias, members, self.load_bias_step))
            heads.updates.assign(heads.updates + 1)
            for statistic in (heads.member_counts, heads.member_sums, heads.member_batches):
                statistic.assign(tf.zeros_like(statistic))

    def _move_centroids(self, heads, empty_batches):
        counts, sums, batches, samples, centroids = (
            tf.convert_to_tensor(x)
            for x in (
                heads.member_counts,
                heads.member_sums,
                heads.member_batches,
                heads.member_samples,
                heads.centroids,
            )
        )
        decay = tf.pow(tf.cast(self.decay, centroids.dtype), batches)
        if self.update == "mean":
            samples = tf.math.l2_normalize(samples, axis=-1)
            moved = mean_update(centroids, counts, sums, decay)
        else:
            averages = tf.convert_to_tensor(heads.average_counts), heads.average_sums
            batches = tf.maximum(batches, 1.0)
            averages = moving_averages(*averages, counts / batches, sums / batches, decay)
            moved = count_update(centroids, counts, *averages)
            heads.average_counts.assign(averages[0])
            heads.average_sums.assign(averages[1])
        self._assign_or_start_over(heads, moved, samples, empty_batches)

    def _assign_or_start_over(self, heads, moved, samples, empty_batches):
        """Assigns the moved centroids, but members to those that start from one now."""
        start = tf.zeros_like(heads.load_bias, dtype=tf.bool)
        if self.initialize_from_batch:
            start |= tf.equal(heads.updates, 0.0)
        if self.restart_after is not None:
            start |= empty_batches >= float(self.restart_after)
            empty_batches.assign(tf.where(start, 0.0, empty_batches))
        heads.centroids.assign(tf.where(start[..., None], samples, moved))
        if self.update == "count":
            heads.average_counts.assign(tf.where(start, 1.0, heads.average_counts))
            sums = tf.where(start[..., None], samples, heads.average_sums)
            heads.average_sums.assign(sums)


def routing_heads(layer):
    """The `CentroidHeads` inside a layer, in the order of its layers."""
    if isinstance(layer, CentroidHeads):
        return [layer]
    return [heads for inner in layer._layers for heads in routing_heads(inner)]


def mean_update(centroids, counts, sums, decay):
    """Centroids moved towards the means of their members, and normalised.

    Args:
        centroids: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, number of members among queries, and among keys.
        sums: `[sources, heads, clusters, depth]`, sums of the members.
        decay: λ of this update.

    Returns:
        `[heads, clusters, depth]`; a centroid without members is as it was.
    """
    found = tf.cast(counts > 0, counts.dtype)
    means = tf.math.divide_no_nan(sums, counts[..., None])
    sources = tf.reduce_sum(found, axis=0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(means, axis=0), sources[..., None])
    moved = tf.math.l2_normalize(decay * centroids + (1 - decay) * mean, axis=-1)
    return tf.where(sources[..., None] > 0, moved, centroids)


def moving_averages(average_counts, average_sums, counts, sums, decay):
    """Moving averages of counts and sums after one update for each source.

    Args:
        average_counts: `[heads, clusters]`.
        average_sums: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, of a batch.
        sums: `[sources, heads, clusters, depth]`, of a batch.
        decay: λ of one update.

    Returns:
        Both averages.
    """
    for count, total in zip(tf.unstack(counts), tf.unstack(sums)):
        average_counts = decay * average_counts + (1 - decay) * count
        average_sums = decay * average_sums + (1 - decay) * total
    return average_counts, average_sums


def count_update(centroids, counts, average_counts, average_sums):
    """Centroids as moving averages of their members.

    ```
    centroid_c = sum_c / ((count_c + ε) / (N + clusters ε) N),   N = sum of the counts, ε = 1e-5
    ```

    Args:
        centroids: `[heads, clusters, depth]`.
        counts: `[sources, heads, clusters]`, of the batch that was averaged last.
        average_counts: `[heads, clusters]`.
        average_sums: `[heads, clusters, depth]`.

    Returns:
        `[heads, clusters, depth]`; a centroid without members in the batch is as it was.
    """
    total = tf.reduce_sum(average_counts, axis=-1, keepdims=True)
    clusters = tf.cast(tf.shape(average_counts)[-1], total.dtype)
    smoothed = (average_counts + 1e-5) / (total + clusters * 1e-5) * total
    moved = tf.math.divide_no_nan(average_sums, smoothed[..., None])
    found = tf.reduce_sum(counts, axis=0) > 0
    return tf.where(found[..., None], moved, centroids)


def moved_load_bias(load_bias, members, step):
    """Load biases moved against the load of their clusters, centred on 0 for each head.

    Args:
        load_bias: `[heads, clusters]`.
        members: `[heads, clusters]`, members of each cluster since the last update.
        step: the furthest that a bias moves.

    Returns:
        `[heads, clusters]`, as it was for a head without any members.
    """
    mean = tf.reduce_mean(members, axis=-1, keepdims=True)
    load = tf.math.divide_no_nan(members, mean)
    moved = load_bias - step * tf.clip_by_value(load - 1, -1, 1)
    moved -= tf.reduce_mean(moved, axis=-1, keepdims=True)
    return tf.where(mean > 0, moved, load_bias)


def cluster_use(members):
    """How evenly clusters are used.

    Args:
        members: `[heads, clusters]`, number of members of each cluster.

    Returns:
        Three scalars: the share of the fullest cluster of any head, the number of empty clusters,
        and the entropy of the shares over log(clusters), mean over the heads.

    >>> [float(x) for x in cluster_use(tf.constant([[2.0, 2.0], [4.0, 0.0]]))]
    [1.0, 1.0, 0.5]
    """
    share = tf.math.divide_no_nan(members, tf.reduce_sum(members, axis=-1, keepdims=True))
    clusters = tf.cast(tf.shape(members)[-1], members.dtype)
    entropy = -tf.reduce_sum(tf.math.xlogy(share, share), axis=-1)
    even = tf.maximum(tf.math.log(clusters), 1e-6)
    empty = tf.math.count_nonzero(tf.equal(members, 0), dtype=tf.int32)
    return tf.reduce_max(share), empty, tf.reduce_mean(entropy / even)


def _zeros_like(variable):
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
