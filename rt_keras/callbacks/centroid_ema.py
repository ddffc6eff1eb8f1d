"""The callback that updates the centroids of routing heads."""

import keras
import tensorflow as tf

from rt_keras.arguments import AT_LEAST_1, NOT_NEGATIVE, SHARE_BELOW_1, check, one_of
from rt_keras.callbacks.centroid_rules import (
    count_update,
    mean_update,
    moved_load_bias,
    moving_averages,
)
from rt_keras.layers.centroids import centroids_inside


class CentroidEMA(keras.callbacks.Callback):
    """Updates the centroids and load biases of every `RoutingHeads` in the model after each batch.

    Let q_c and k_c be the means of the queries and keys nearest to centroid c, and n_c their
    number:

    ```
    "mean":   centroid_c = normalize(λ centroid_c + (1 - λ) / 2 q_c + (1 - λ) / 2 k_c)
    "count":  count_c = λ count_c + (1 - λ) n_c,   sum_c = λ sum_c + (1 - λ) (sum of members)
              centroid_c = sum_c / smoothed count_c
    load:     b_c = b_c - step clip(n_c / mean(n) - 1, -1, 1)
    ```

    If queries and keys are the same, or c has members among only one of the two, "mean" uses
    (1 - λ) of that single mean. "count" makes one update for the queries and a second one for the
    keys. A centroid without members keeps its value.

    The load bias, a form of load balancing, keeps clusters from collapsing into one. It depends
    only on past batches, so causal routing stays causal. Statistics are summed over replicas. The s
    batches of one execution (`steps_per_execution`) make one update with λ^s. Layers with
    `trainable=False` do not change.

    In a custom training loop, call `set_model` once before the loop and `update_centroids` after
    each batch.

    Each epoch's logs get, for the i-th trainable routing layer:

    - `routing_i_fullest`: the share of positions in the fullest cluster of any head (1 / clusters
      for an even load);
    - `routing_i_empty`: the number of empty clusters, summed over heads;
    - `routing_i_entropy`: the entropy of the shares over log(clusters), mean over heads (1 for an
      even load, 0 for a single cluster);
    - `routing_i_load_bias`: the largest absolute value of a load bias.

    Args:
        decay: float λ in [0, 1). Defaults to 0.999.
        update: string, "mean" (as in the paper) or "count" (as in its authors' code). Defaults to
            "mean".
        load_bias_step: float, the maximum change of a load bias in one batch, in units of the
            scores `centroid · x`; 0 disables the load bias. Defaults to 0.1.
        initialize_from_batch: bool, whether to initialize centroids with members of the first batch
            instead of noise. Defaults to False.
        restart_after: int, the number of batches after which an empty cluster restarts from a
            member of the last batch. Defaults to None, never.

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
        self._centroid_layers = None

    def set_model(self, model):
        """Sets the model whose centroids are updated. `fit` calls this method.

        Args:
            model: a model in which all layers have been created.

        Raises:
            ValueError: if the model has no `RoutingHeads`.
        """
        super().set_model(model)
        # A shared layer has one state.
        self._centroid_layers = list(dict.fromkeys(centroids_inside(model)))
        if not self._centroid_layers:
            raise ValueError("CentroidEMA needs a model with RoutingHeads. Found none.")
        for layer in self._centroid_layers:
            layer.has_updates = True

    def update_centroids(self):
        """Updates the centroids and load biases with the batches since the last update.

        A custom training loop calls this method after each batch: eagerly or in a `tf.function`,
        compiled by XLA or not, and inside `strategy.run` or, preferably, after it.

        Returns:
            A list with one tensor `[heads, clusters]` for each trainable routing layer, the number
            of members of its clusters since the last update.

        Raises:
            RuntimeError: if `set_model` was not called before.
        """
        if self._centroid_layers is None:
            raise RuntimeError(
                "CentroidEMA has no model: call set_model(model) once before the training loop"
            )
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return self._update_all()
        # All replicas update the one state together.
        return replica.merge_call(lambda strategy: self._update_all())

    def on_train_begin(self, logs=None):
        # A model that another loop trains has none.
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and self.model.built and not optimizer.built:
            # Variables that are created in the first step make TensorFlow trace it twice.
            optimizer.build(self.model.trainable_variables)
        # The members in the epoch, for each layer, are the state of this callback.
        self.variables, self._count_update = [], None
        # Without what is left of a training that was interrupted.
        for layer in self._trained_layers():
            if layer.built:
                layer.clear_statistics()
        if all(layer.built for layer in self._trained_layers()):
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
        for i, (layer, members) in enumerate(zip(self._trained_layers(), self.variables)):
            fullest, empty, entropy = cluster_use(members)
            logs[f"routing_{i}_fullest"] = float(fullest)
            logs[f"routing_{i}_empty"] = int(empty)
            logs[f"routing_{i}_entropy"] = float(entropy)
            load_bias = tf.convert_to_tensor(layer.load_bias)
            logs[f"routing_{i}_load_bias"] = float(tf.reduce_max(tf.abs(load_bias)))

    def _start_counting(self):
        with self.model.distribute_strategy.scope():
            biases = [layer.load_bias for layer in self._trained_layers()]
            self.variables = [tf.Variable(tf.zeros_like(x), trainable=False) for x in biases]
            optimizer, self._scale = getattr(self.model, "optimizer", None), None
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                self._scale = tf.Variable(optimizer.dynamic_scale, trainable=False)
        self._count_update = tf.function(self._update_and_count, autograph=False)

    def _trained_layers(self):
        return [layer for layer in self._centroid_layers if layer.trainable]

    def _update_and_count(self):
        if self._scale is not None:
            scale = tf.convert_to_tensor(self.model.optimizer.dynamic_scale)
            for layer in self._trained_layers():
                # Loss scaling lowers its scale when it skips a step.
                layer.clear_statistics(unless=scale >= self._scale)
            self._scale.assign(scale)
        for epoch_members, members in zip(self.variables, self.update_centroids()):
            epoch_members.assign_add(members)

    def _update_all(self):
        return [self._update_layer(layer) for layer in self._trained_layers()]

    def _update_layer(self, layer):
        """Updates the centroids and load biases of one layer with the batches since the last time.

        Returns:
            The number of members of its clusters in these batches, `[heads, clusters]`.
        """
        counts, sums, batches, samples = (
            tf.convert_to_tensor(getattr(layer, f"member_{name}"))
            for name in ("counts", "sums", "batches", "samples")
        )
        members = tf.reduce_sum(counts, axis=0)
        empty_batches = tf.convert_to_tensor(layer.empty_batches) + batches
        empty_batches = tf.where(members > 0, tf.zeros_like(members), empty_batches)
        moved = self._moved_centroids(layer, counts, sums, batches)
        self._assign_or_start_over(layer, moved, samples, empty_batches, batches > 0)
        layer.load_bias.assign(moved_load_bias(layer.load_bias, members, self.load_bias_step))
        layer.updates.assign(layer.updates + tf.cast(batches > 0, layer.updates.dtype))
        layer.clear_statistics()
        return members

    def _moved_centroids(self, layer, counts, sums, batches):
        centroids = tf.convert_to_tensor(layer.centroids)
        decay = tf.pow(tf.cast(self.decay, centroids.dtype), batches)
        if self.update == "mean":
            return mean_update(centroids, counts, sums, decay)
        averages = tf.convert_to_tensor(layer.average_counts), layer.average_sums
        batches = tf.maximum(batches, tf.ones_like(batches))
        averages = moving_averages(*averages, counts / batches, sums / batches, decay)
        layer.average_counts.assign(averages[0])
        layer.average_sums.assign(averages[1])
        return count_update(centroids, counts, *averages)

    def _assign_or_start_over(self, layer, moved, samples, empty_batches, has_batch):
        """Assigns the updated centroids, or samples to those that start or restart from one."""
        if self.update == "mean":
            samples = tf.math.l2_normalize(samples, axis=-1)
        start = tf.zeros_like(empty_batches, dtype=tf.bool)
        if self.initialize_from_batch:
            start |= tf.equal(layer.updates, 0)
        if self.restart_after is not None:
            start |= empty_batches >= self.restart_after
        start &= has_batch
        layer.empty_batches.assign(tf.where(start, tf.zeros_like(empty_batches), empty_batches))
        layer.centroids.assign(tf.where(start[..., None], samples, moved))
        if self.update == "count":
            counts = tf.convert_to_tensor(layer.average_counts)
            layer.average_counts.assign(tf.where(start, tf.ones_like(counts), counts))
            layer.average_sums.assign(tf.where(start[..., None], samples, layer.average_sums))


def cluster_use(members):
    """Computes the balance of cluster sizes.

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
