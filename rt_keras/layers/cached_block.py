"""Decoding with a Transformer block: the next positions, given a cache of the previous ones."""

import tensorflow as tf

from rt_keras.ops.blocks import size


class CachedBlock:
    """Mixin of `TransformerBlock` for decoding position by position or chunk by chunk.

    A cache contains the cache of the block's attention; see `CachedAttention`. With `shift_tokens`,
    it also contains the features that the next position takes from the last one.
    """

    @property
    def cached_decoding(self):
        """Returns whether all heads support decoding with a cache; see `HeadGroup`."""
        cross = self.cross_attention
        return self.attention.cached_decoding and (cross is None or cross.cached_cross_attention)

    def new_cache(self, batch, max_length):
        """Returns an empty cache for `call_with_cache`.

        Args:
            batch: int or int scalar, number of rows.
            max_length: int, final number of positions.

        Returns:
            A dictionary of tensors.
        """
        cache = {"attention": self.attention.new_cache(batch, max_length)}
        if self.token_shift is not None:
            half = self.width - self.width // 2
            for name in self._names:
                cache[f"{name}_shift"] = tf.zeros([batch, half], self.compute_dtype)
        return cache

    def prefill(self, inputs, count, max_length, cross_cache=None):
        """Computes a causal call on the first positions, and their cache.

        Args:
            inputs: `[batch, length, width]`.
            count: int scalar, number of positions in the cache.
            max_length: int, final number of positions.
            cross_cache: dictionary returned by `cross_attention.make_cross_cache` for the encoder's
                output, if there are `cross_head_groups`. Defaults to None.

        Returns:
            `[batch, length, width]`, and the cache.
        """
        cache = {}

        def shift(name, x):
            cache[f"{name}_shift"] = self.token_shift.make_cache(x, count)
            return self.token_shift(x)

        def attention(x):
            output, cache["attention"] = self.attention.prefill(x, count, max_length)
            return output

        attentions = {
            "attention": attention,
            "cross_attention": lambda x: self.cross_attention.call_with_cross_cache(x, cross_cache),
        }
        return self._residuals(inputs, attentions, shift, None, False), cache

    def call_with_cache(
        self, inputs, cache, position, cross_cache=None, count=None, training=False
    ):
        """Computes a causal call on the next positions, given the cache of the previous ones.

        Args:
            inputs: `[batch, length, width]`. With `cross_head_groups` the length must be 1.
            cache: the cache of `prefill`, `new_cache` or the previous call.
            position: int scalar or `[batch]`, number of previous positions.
            cross_cache: dictionary returned by `cross_attention.make_cross_cache` for the encoder's
                output, if there are `cross_head_groups`. Defaults to None.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.
            training: bool, whether to apply dropout and collect statistics of routing heads.
                Defaults to False.

        Returns:
            `[batch, length, width]`, and the cache that includes these positions.
        """
        cache = dict(cache)
        mask = None
        if count is not None:
            mask = tf.range(size(inputs, 1)) < count[:, None]

        def shift(name, x):
            name = f"{name}_shift"
            output, cache[name] = self.token_shift.call_with_cache(x, cache[name], count)
            return output

        def attention(x):
            output, cache["attention"] = self.attention.call_with_cache(
                x, cache["attention"], position, count=count, training=training
            )
            return output

        attentions = {
            "attention": attention,
            "cross_attention": lambda x: self.cross_attention.call_with_cross_cache(
                x, cross_cache, position
            ),
        }
        return self._residuals(inputs, attentions, shift, mask, training), cache

    def call_in_place(self, inputs, cache, position, cross_cache=None):
        """Computes the next positions as `call_with_cache` does, and updates the cache.

        Args:
            inputs, position, cross_cache: see `call_with_cache`.
            cache: the cache, with a `tf.Variable` in place of each tensor.

        Returns:
            `[batch, length, width]`.
        """
        values = tf.nest.map_structure(tf.convert_to_tensor, cache)
        output, values = self.call_with_cache(inputs, values, position, cross_cache)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), cache, values)
        return output
