"""The callback that moves the centroids of routing heads."""

import keras
import tensorflow as tf

from rt_keras.callbacks.centroid_rules import (
    count_update,
    mean_update,
    moved_load_bias,
    moving_averages,
)
from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, SHARE_BELOW_1, check, one_of
from rt_keras.layers.centroids import heads_with_centroids


class CentroidEMA(keras.callbacks.Callback):
    """Moves the centroids and load biases of every `RoutingHeads` in the model after each batch.

    With q_c and k_c the means of the queries and keys nearest to centroid c, n_c their number:

    ```
    "mean":   centroid_c = normalise(λ centroid_c + (1 - λ) / 2 q_c + (1 - λ) / 2 k_c)
    "count":  count_c = λ count_c + (1 - λ) n_c,   sum_c = λ sum_c + (1 - λ) (sum of members)
              centroid_c = sum_c / smoothed count_c
    load:     b_c = b_c - step clip(n_c / mean(n) - 1, -1, 1)
    ```

    "mean" takes (1 - λ) of one mean if queries are their own keys, or if c has members among only
    one of the two; "count" makes one update for the queries and a second for the keys. A centroid
    without members keeps its value. The load bias keeps clusters from collapsing into one. It
    depends on past batches alone, so causal routing stays causal. Statistics are summed over
    replicas; those of the s batches of one execution (`steps_per_execution`) make one update with
    λ^s. Layers with `trainable=False` are left alone.

    In a custom training loop, call `set_model` once before the loop and `update_centroids` after
    each batch.

    Each epoch's logs get, for the i-th routing layer that is trained: `routing_i_fullest`, the
    share of positions in the fullest cluster of any head (1 / clusters if even);
    `routing_i_empty`, the number of empty clusters, summed over heads; `routing_i_entropy`, the
    entropy of the shares over log(clusters), mean over heads (1 if even, 0 if all are in one); and
    `routing_i_load_bias`, the largest absolute value of a load bias.

    Args:
        decay: float λ in [0, 1). Defaults to 0.999.
        update: "mean" (the paper), the default, or "count" (its authors' code).
        load_bias_step: float, the furthest that a load bias moves in one batch, in units of the
            scores `centroid · x`. Defaults to 0.1; 0 for no load bias.
        initialize_from_batch: bool, whether centroids start from members of the first batch instead
            of noise. Defaults to False.
        restart_after: int, the number of batches after which a cluster that stays empty restarts
            from a member of the last batch; None, the default, for never.

    Raises:
        ValueError: if a number is out of range, `update` is unknown, or the model has no
            `RoutingHeads`.

    Source: Roy et al. 2021, algorithm 1; load bias: Wang et al. 2024, Auxiliary-Loss-Free Load
    Balancing Strategy for Mixture-of-Experts.

    With `fit`:

    >>> from rt_keras.layers import MultiHeadAttention, RoutingHeads
    >>> inputs = keras.Input([16, 8])
    >>> attention = MultiHeadAttention([RoutingHeads(2, num_clusters=4, window_size=4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> model.compile("sgd", "mse")
    >>> x = keras.random.normal([4, 16, 8])
    >>> history = model.fit(x, x, verbose=0, callbacks=[CentroidEMA(decay=0.99)])
    >>> [name for name in sorted(history.history) if name != "loss"]
    ['routing_0_empty', 'routing_0_entropy', 'routing_0_fullest', 'routing_0_load_bias']

    In a custom training loop:

    >>> centroid_ema = CentroidEMA(decay=0.99)
    >>> centroid_ema.set_model(model)
    >>> optimizer = keras.optimizers.SGD()
    >>> @tf.function(jit_compile=True)
    ... def train_step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean((model(x, training=True) - x) ** 2) + sum(model.losses)
    ...     gradients = tape.gradient(loss, model.trainable_variables)
    ...     optimizer.apply(gradients, model.trainable_variables)
    ...     centroid_ema.update_centroids()
    ...     return loss
    >>> train_step(x).shape
    TensorShape([])
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
        check("decay", decay, SHARE_BELOW_1)
        check("update", update, one_of("mean", "count"))
        check("load_bias_step", load_bias_step, NOT_NEGATIVE)
        if restart_after is not None:
            check("restart_after", restart_after, AT_LEAST_1)
        self.decay = decay
        self.update = update
        self.load_bias_step = load_bias_step
        self.initialize_from_batch = initialize_from_batch
        self.restart_after = restart_after
        self._heads = None

    def set_model(self, model):
        """Tells the callback which model's centroids to move. `fit` calls it.

        Args:
            model: a model whose layers have all been made.

        Raises:
            ValueError: if it has no `RoutingHeads`.
        """
        super().set_model(model)
        # A layer that is used twice has one state.
        self._heads = list(dict.fromkeys(routing_heads(model)))
        if not self._heads:
            raise ValueError("CentroidEMA needs a model with RoutingHeads. Found none.")
        for heads in self._heads:
            heads.has_centroid_updates = True

    def update_centroids(self):
        """Moves the centroids and load biases by the batches since the last update.

        A custom training loop calls it after each batch: eagerly or in a `tf.function`, compiled by
        XLA or not, inside `strategy.run` or, better, after it.

        Returns:
            For each routing layer that is trained, the number of members of its clusters since the
            last update, `[heads, clusters]`.

        Raises:
            RuntimeError: if there was no `set_model` before.
        """
        if self._heads is None:
            raise RuntimeError(
                "CentroidEMA has no model: call set_model(model) once before the training loop"
            )
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return self._update_all()
        # All replicas move the one state together.
        return replica.merge_call(lambda strategy: self._update_all())

    def on_train_begin(self, logs=None):
        # The members of the epoch, for each layer: what the callback carries from step to step.
        self.variables, self._count_update = [], None
        if all(heads.built for heads in self._trained_heads()):
            self._start_counting()

    def on_epoch_begin(self, epoch, logs=None):
        for members in self.variables:
            members.assign(tf.zeros_like(members))

    def on_train_batch_end(self, batch, logs=None):
        with self.model.distribute_strategy.scope():
            # Some models are built by their first batch.
            if self._count_update is None:
                self._start_counting()
            self._count_update()

    def on_epoch_end(self, epoch, logs=None):
        if logs is None:
            return
        for i, (heads, members) in enumerate(zip(self._trained_heads(), self.variables)):
            fullest, empty, entropy = cluster_use(members)
            logs[f"routing_{i}_fullest"] = float(fullest)
            logs[f"routing_{i}_empty"] = int(empty)
            logs[f"routing_{i}_entropy"] = float(entropy)
            load_bias = tf.convert_to_tensor(heads.load_bias)
            logs[f"routing_{i}_load_bias"] = float(tf.reduce_max(tf.abs(load_bias)))

    def _start_counting(self):
        with self.model.distribute_strategy.scope():
            self.variables = [_zeros_like(heads.load_bias) for heads in self._trained_heads()]
        self._count_update = tf.function(self._update_and_count)

    def _trained_heads(self):
        return [heads for heads in self._heads if heads.trainable]

    def _update_and_count(self):
        for epoch_members, members in zip(self.variables, self.update_centroids()):
            epoch_members.assign_add(members)

    def _update_all(self):
        return [self.update_heads(heads) for heads in self._trained_heads()]

    def update_heads(self, heads):
        """Moves the centroids and load biases of one layer by the batches since the last update.

        Args:
            heads: a `CentroidHeads`.

        Returns:
            The number of members of its clusters since then, `[heads, clusters]`.
        """
        members = tf.reduce_sum(tf.convert_to_tensor(heads.member_counts), axis=0)
        empty_batches = tf.convert_to_tensor(heads.empty_batches) + heads.member_batches
        empty_batches = tf.where(members > 0, tf.zeros_like(members), empty_batches)
        self._move_centroids(heads, empty_batches)
        heads.load_bias.assign(moved_load_bias(heads.load_bias, members, self.load_bias_step))
        heads.updates.assign(heads.updates + 1)
        heads.clear_statistics()
        return members

    def _move_centroids(self, heads, empty_batches):
        counts, sums, batches, samples = (
            tf.convert_to_tensor(getattr(heads, f"member_{name}"))
            for name in ("counts", "sums", "batches", "samples")
        )
        centroids = tf.convert_to_tensor(heads.centroids)
        decay = tf.pow(tf.cast(self.decay, centroids.dtype), batches)
        if self.update == "mean":
            samples = tf.math.l2_normalize(samples, axis=-1)
            moved = mean_update(centroids, counts, sums, decay)
        else:
            averages = tf.convert_to_tensor(heads.average_counts), heads.average_sums
            batches = tf.maximum(batches, tf.ones_like(batches))
            averages = moving_averages(*averages, counts / batches, sums / batches, decay)
            moved = count_update(centroids, counts, *averages)
            heads.average_counts.assign(averages[0])
            heads.average_sums.assign(averages[1])
        self._assign_or_start_over(heads, moved, samples, empty_batches)

    def _assign_or_start_over(self, heads, moved, samples, empty_batches):
        """Assigns the moved centroids, but members to those that start from one now."""
        start = tf.zeros_like(empty_batches, dtype=tf.bool)
        if self.initialize_from_batch:
            start |= tf.equal(heads.updates, 0)
        if self.restart_after is not None:
            start |= empty_batches >= self.restart_after
        heads.empty_batches.assign(tf.where(start, tf.zeros_like(empty_batches), empty_batches))
        heads.centroids.assign(tf.where(start[..., None], samples, moved))
        if self.update == "count":
            counts = tf.convert_to_tensor(heads.average_counts)
            heads.average_counts.assign(tf.where(start, tf.ones_like(counts), counts))
            sums = tf.where(start[..., None], samples, heads.average_sums)
            heads.average_sums.assign(sums)


def routing_heads(layer):
    """The `CentroidHeads` inside a layer, in the order of its layers."""
    return heads_with_centroids(layer)


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
