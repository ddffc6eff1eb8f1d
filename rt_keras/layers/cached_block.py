"""Decoding with a Transformer block: the next positions, given a cache of those before them."""

import tensorflow as tf

from rt_keras.ops.blocks import size


class CachedBlock:
    """Mixin of `TransformerBlock`: what it does position by position, or chunk by chunk.

    A cache holds that of the block's attention, see `CachedAttention`, and, with `shift_tokens`,
    the features that the next position takes from the last one.
    """

    @property
    def cached_decoding(self):
        """Whether all heads can be decoded with a cache; see `HeadGroup`."""
        cross = self.cross_attention
        return self.attention.cached_decoding and (cross is None or cross.cached_cross_attention)

    def new_cache(self, batch, max_length):
        """An empty cache for `call_with_cache`.

        Args:
            batch: int or int scalar, rows of the cache.
            max_length: int, the number of positions that there will be.

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
        """A causal call on the first positions, and their cache.

        Args:
            inputs: `[batch, length, width]`, or a pair of such tensors, the two streams of
                `ReversibleBlocks`.
            count: int scalar, how many of the positions the cache holds.
            max_length: int, the number of positions that there will be.
            cross_cache: the dictionary of `cross_attention.make_cross_cache` for the encoder's
                output, if there are `cross_head_groups`.

        Returns:
            `[batch, length, width]`, or a pair of such tensors, and the cache.
        """
        cache = {}

        def shift(name, x):
            cache[f"{name}_shift"] = self.token_shift.make_cache(x, count)
            return self.token_shift(x)

        def attention(x):
            output, cache["attention"] = self.attention.prefill(x, count, max_length)
            return output

        functions = {
            "attention": attention,
            "cross_attention": lambda x: self.cross_attention.call_with_cross_cache(x, cross_cache),
            "feed_forward": lambda x: self._fed_forward(x, None, False),
        }
        return self._residuals(inputs, functions, shift, False), cache

    def call_with_cache(
        self, inputs, cache, position, cross_cache=None, count=None, training=False
    ):
        """A causal call on the next positions, given those before them.

        Args:
            inputs: `[batch, length, width]`, or a pair of such tensors, the two streams of
                `ReversibleBlocks`. With `cross_head_groups` the length must be 1.
            cache: the cache of `prefill`, `new_cache` or the last call.
            position: int scalar, the number of positions before these; or int `[batch]`, that of
                each row.
            cross_cache: the dictionary of `cross_attention.make_cross_cache` for the encoder's
                output, if there are `cross_head_groups`.
            count: int `[batch]`, how many of the positions count, the first ones; others are
                padding. None, the default, for all.
            training: bool, whether dropout is on and routing heads collect statistics. Defaults to
                False.

        Returns:
            `[batch, length, width]`, or a pair of such tensors, and the cache with these positions
            in it.
        """
        cache = dict(cache)
        mask = None
        if count is not None:
            length = size(tf.nest.flatten(inputs)[0], 1)
            mask = tf.range(length) < count[:, None]

        def shift(name, x):
            name = f"{name}_shift"
            output, cache[name] = self.token_shift.call_with_cache(x, cache[name], count)
            return output

        def attention(x):
            output, cache["attention"] = self.attention.call_with_cache(
                x, cache["attention"], position, count=count, training=training
            )
            return output

        functions = {
            "attention": attention,
            "cross_attention": lambda x: self.cross_attention.call_with_cross_cache(
                x, cross_cache, position
            ),
            "feed_forward": lambda x: self._fed_forward(x, mask, training),
        }
        return self._residuals(inputs, functions, shift, training), cache
