"""Heads that attend to a union of sets of keys under one softmax."""

import keras
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.keras_internals import all_layers_of
from rt_keras.layers.abilities import Abilities
from rt_keras.layers.each_document import attend_to_each
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.saved_arguments import with_layers
from rt_keras.ops.attend import merge_sets
from rt_keras.ops.blocks import size
from rt_keras.ops.caches import pad_to


@keras.saving.register_keras_serializable(package="rt_keras")
class Heads(HeadGroup):
    """Heads whose queries attend to the keys of several sets under one softmax.

    With the output o_s of attention to set s alone, and z_s the logsumexp of its logits,

    ```
    output = sum_s exp(z_s) o_s / sum_s exp(z_s)
    ```

    The sets of a union are disjoint by position: those with a `Window` leave out its keys. The
    heads have the abilities that all of their sets have, such as decoding with a bounded cache. The
    sets are layers, which the union builds and saves; each belongs to one union.

    Most kinds of heads are functions that return a union, such as `rt_keras.layers.LocalHeads`.

    Args:
        num_heads: int, number of heads in the group.
        key_sets: list of `rt_keras.layers.key_sets.KeySet`, at most one of each class.
        share_qk: bool, whether queries are also keys. Defaults to False.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if `key_sets` is not such a list, or a set cannot be merged with the others.

    Source: ours. One softmax over a window and selected keys: after Wu et al. 2022, Memorizing
    Transformers.

    >>> from rt_keras.layers.key_sets import Cluster, Persistent, Window
    >>> heads = Heads(2, [Window(4), Cluster(4, window_size=4), Persistent(2)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    def __init__(self, num_heads, key_sets, share_qk=False, **kwargs):
        super().__init__(num_heads, **kwargs)
        if not (key_sets and all(isinstance(x, KeySet) for x in key_sets)):
            example = "[Window(64), Cluster(16, window_size=48)]"
            needed = f"a list of at least one set of keys, such as {example}"
            raise wrong_value("key_sets", needed, key_sets)
        names = [x.state_name for x in key_sets]
        if len(set(names)) < len(names):
            raise wrong_value("key_sets", "of different classes", key_sets)
        self.key_sets = list(key_sets)
        self.share_qk = bool(share_qk)
        for key_set in self.key_sets:
            key_set.join([x for x in self.key_sets if x is not key_set], self.share_qk)
        alone = [x for x in self.key_sets if not x.abilities.joined]
        if len(names) > 1 and alone:
            others = ", ".join(repr(x) for x in self.key_sets if x is not alone[0])
            raise ValueError(
                f"{alone[0]!r} cannot be joined with other sets of keys under one softmax. "
                f"Received: {others}"
            )

    @property
    def abilities(self):
        union = Abilities.of_union(x.abilities for x in self.key_sets)
        # A set without it attends to the documents one after the other.
        return union._replace(documents=True)

    @property
    def kind(self):
        return " + ".join(x.describe() for x in self.key_sets)

    @property
    def centroids(self):
        """The `Centroids` of the sets of keys, or None."""
        return next((x.centroids for x in self.key_sets if x.centroids is not None), None)

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        for key_set in self.key_sets:
            if key_set.built:
                raise ValueError(
                    f"{key_set!r} is part of other heads. Give each head group its own sets of keys"
                )
            key_set.check_rotation(self.rotated_at)
            # The sets compute in the dtype of the union.
            for layer in (key_set, *all_layers_of(key_set)):
                layer.dtype_policy = self.dtype_policy
            key_set.build(query_shape, value_shape or query_shape)

    def attend(self, inputs, return_logsumexp=False):
        length = size(inputs.value, 2)
        parts = [x for x in self._inputs_of_sets(inputs) if not x[0].is_out_of_reach(length)]
        join = return_logsumexp or len(parts) > 1
        results = [self._attend_to_set(key_set, part, join) for key_set, part in parts]
        result = _join(results, return_logsumexp)
        if inputs.query_mask is None or len(parts) == 1:
            return result
        # Padding attends to sets without positions, so its outputs must be set to 0.
        real = tf.cast(inputs.query_mask, tf.bool)[:, None, :, None]
        output, *logsumexp = result if return_logsumexp else (result,)
        output = tf.where(real, output, tf.zeros_like(output))
        return (output, *logsumexp) if return_logsumexp else output

    def _attend_to_set(self, key_set, inputs, join):
        if inputs.documents is None or key_set.abilities.documents:
            return key_set.attend(inputs, join)
        furthest = key_set.furthest_left_out if join else None
        return attend_to_each(self, key_set.attend, inputs, join, furthest)

    def _inputs_of_sets(self, inputs):
        """Returns each set of keys with its inputs, all with different seeds.

        The seed is split as if the sets were merged one after the other.
        """
        seed, seeds = inputs.seed, []
        for _ in self.key_sets[1:]:
            last = seed
            if seed is not None:
                seed, last = tf.unstack(tf.random.split(seed, 2))
            seeds.insert(0, last)
        seeds.insert(0, seed)
        parts = [inputs._replace(seed=x) for x in seeds]
        return list(zip(self.key_sets, parts, strict=True))

    def clustered_vectors(self, inputs):
        with_centroids = next(x for x in self.key_sets if x.centroids is not None)
        return with_centroids.clustered_vectors(inputs)

    def prefill_cache(self, inputs, max_length):
        sets = [x for x in self.key_sets if not x.is_out_of_reach(max_length)]
        states = {x.state_name: x.prefill_state(inputs, max_length) for x in sets}
        return {name: state for name, state in states.items() if state}

    def attend_step(self, inputs, cache, return_logsumexp=False):
        parts = self._sets_in_reach(inputs, cache)
        join, results, states = return_logsumexp or len(parts) > 1, [], {}
        for key_set, part in parts:
            name = key_set.state_name
            result, states[name] = key_set.attend_step(part, cache.get(name, {}), join)
            results.append(result)
        return _join(results, return_logsumexp), _without_empty(states)

    def attend_chunk(self, inputs, cache, return_logsumexp=False):
        parts = self._sets_in_reach(inputs, cache)
        join, results, states = return_logsumexp or len(parts) > 1, [], {}
        for key_set, part in parts:
            name = key_set.state_name
            result, states[name] = key_set.attend_chunk(part, cache.get(name, {}), join)
            results.append(result)
        return _join(results, return_logsumexp), _without_empty(states)

    def _sets_in_reach(self, inputs, cache):
        """Returns the sets with their inputs, but those that no query of the cache reaches."""
        return [
            (key_set, part)
            for key_set, part in self._inputs_of_sets(inputs)
            if key_set.state_name in cache or key_set.furthest_left_out is None
        ]

    def attend_across(self, inputs):
        # A union of several sets does not support cross-attention.
        return self.key_sets[0].attend_across(inputs)

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        length = self.key_sets[0].cross_length(size(query, 2), size(value, 2))
        output = super().cross_attention_prefill(pad_to(query, length), value, key, key_mask)
        return output[:, :, : size(query, 2)]

    def get_config(self):
        sets = [keras.saving.serialize_keras_object(x) for x in self.key_sets]
        return {**super().get_config(), "key_sets": sets, "share_qk": self.share_qk}

    @classmethod
    def from_config(cls, config):
        return cls(**with_layers(config, "key_sets"))


def _join(results, return_logsumexp):
    """Merges the attention to each set under one softmax."""
    if len(results) == 1:
        return results[0]
    return merge_sets(*results, return_logsumexp=return_logsumexp)


def _without_empty(states):
    return {name: state for name, state in states.items() if state}
