"""Logs the divergence of a model's heads and the stability of their clusters."""

import collections

import keras
import numpy as np
import tensorflow as tf

from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.layers.attention_calls import attention_calls
from rt_keras.layers.attention_scores import check_scores
from rt_keras.layers.head_divergence import head_divergences, pairs_by_kind


class WatchHeads(keras.callbacks.Callback):
    """Logs the divergence of heads and the stability of clusters on a fixed batch, every epoch.

    Each epoch's logs get

    - `divergence_i_A_B`, for the i-th attention layer and each pair of its kinds of heads A and B:
      the Jensen-Shannon divergence between the attention weights of the first such pair of heads,
      mean over positions. It is 0 for equal weights and ln 2 = 0.6931 for disjoint keys.
    - `routing_i_stable`, for the i-th trainable routing layer (as in `CentroidEMA`): the share of
      queries and keys whose nearest cluster has not changed since the previous epoch, or since the
      start of training; mean over heads.

    The model runs once on the batch, and each attention layer once for every 512 keys. This takes
    about as long as one or two training steps on the same batch.

    Args:
        inputs: a small batch of inputs of the model.

    Raises:
        ValueError: when training begins, if heads have no attention weights for single keys, such
            as `GatedDeltaHeads`.

    Source: Roy et al. 2021, section 6.

    >>> from rt_keras.callbacks import CentroidEMA
    >>> from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
    >>> inputs = keras.Input([16, 8])
    >>> attention = MultiHeadAttention([LocalHeads(1, 4), RoutingHeads(1, 4, 4)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> model.compile("sgd", "mse")
    >>> x = keras.random.normal([4, 16, 8])
    >>> callbacks = [CentroidEMA(), WatchHeads(x[:1])]
    >>> history = model.fit(x, x, verbose=0, callbacks=callbacks).history
    >>> [name for name in history if name.startswith("divergence") or name.endswith("stable")]
    ['divergence_0_LocalHeads_RoutingHeads', 'routing_0_stable']
    """

    def __init__(self, inputs):
        super().__init__()
        self.inputs = inputs

    def on_train_begin(self, logs=None):
        calls = attention_calls(self.model, self.inputs)
        check_scores(group for call in calls for group, *_ in call.groups)
        clusters = self._all_clusters(calls)
        # The clusters after the last epoch, the state of this callback.
        self.variables = [tf.Variable(x, trainable=False) for x in clusters.values()]

    def on_epoch_end(self, epoch, logs=None):
        if logs is None:
            return
        calls = attention_calls(self.model, self.inputs)
        for i, call in enumerate(calls):
            logs.update(_divergences(i, call))
        for before, (i, clusters) in zip(self.variables, self._all_clusters(calls).items()):
            logs[f"routing_{i}_stable"] = _mean(before.numpy() == clusters)
            before.assign(clusters)

    def _all_clusters(self, calls):
        """Returns the clusters of all queries and keys without padding, by index of the layer."""
        trained = [heads for heads in dict.fromkeys(routing_heads(self.model)) if heads.trainable]
        found = collections.defaultdict(list)
        for call in calls:
            for heads, _, clusters in call.clusters():
                if heads in trained:
                    found[trained.index(heads)] += [x[x >= 0] for x in clusters.values()]
        return {i: np.concatenate(found[i]) for i in sorted(found)}


def _divergences(i, call):
    """Returns the logs of the i-th attention layer."""
    pairs = {kinds: heads[0] for kinds, heads in pairs_by_kind(call.kinds).items()}
    if not pairs:
        return {}
    found = head_divergences(call, list(pairs.values()))
    return {
        f"divergence_{i}_{one}_{other}": _mean(values[~np.isnan(values)])
        for (one, other), values in zip(pairs, found)
    }


def _mean(values):
    return float(np.mean(values)) if values.size else float("nan")
