"""Decoding with the heads of one kind: the next positions, given a cache of those before them."""

import functools

import tensorflow as tf

from rt_keras.ops.blocks import move_axis, size
from rt_keras.ops.full_decode import full_cache, full_step
from rt_keras.ops.full_piece import full_piece


class CachedHeads:
    """Mixin of `HeadGroup`: what it does position by position, or piece by piece.

    A subclass whose outputs depend on no later position has `fill_cache` and `step`, and `piece` if
    it reads several positions in one pass.
    """

    # Whether a causal output depends on the positions up to its own alone, so that it can be
    # computed from a cache; and whether an output of cross-attention depends on no other query.
    cached_decoding = False
    cached_cross_attention = False
    # Whether the cache holds every position, so that it grows with the sequence.
    cache_grows = False

    def new_cache(self, batch, max_length, key_depth, value_depth):
        """An empty cache; see `make_cache`.

        Args:
            batch: int or scalar tensor, rows of the cache.
            max_length: int, how many positions there will be.
            key_depth: int, depth of a head's keys.
            value_depth: int, depth of a head's values.
        """
        query, key, value = (
            tf.zeros([batch, heads, 1, depth], self.compute_dtype)
            for heads, depth in (
                (self.num_heads, key_depth),
                (self.key_heads, key_depth),
                (self.key_heads, value_depth),
            )
        )
        return self.make_cache(query, value, None if self.share_qk else key, 0, max_length)

    def make_cache(self, query, value, key, count, max_length, token_bias=None):
        """The cache that decoding continues from after the first positions.

        Args:
            query: `[batch, heads, length, depth]`.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            count: int scalar, how many of the positions count; the others may hold anything.
            max_length: int, how many positions there will be.
            token_bias: `[batch, length]`; zeros if None and the group takes one.

        Returns:
            A dictionary of tensors with the batch on axis 0. Their sizes depend on the group, and
            on `max_length` only for `FullHeads`, `StridedHeads` and grids.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        query, key = self.with_positions(query, query if key is None else key)
        options = self._cached_token_bias(token_bias, key)
        if self._decodes_densely(max_length):
            return {"full": full_cache(key, value, max_length=max_length, **options)}
        return self.fill_cache(key=key, value=value, count=count, max_length=max_length, **options)

    def call_with_cache(
        self,
        query,
        value,
        key,
        cache,
        position,
        token_bias=None,
        count=None,
        dropout=0.0,
        seed=None,
        training=False,
    ):
        """The causal output of the next positions, and the cache with them in it.

        Args:
            query: `[batch, heads, length, depth]`, of one position or of a piece of a sequence.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            cache: the cache of `make_cache`, `new_cache` or the last call.
            position: int scalar, the number of positions before these; or int `[batch]`, that of
                each row, if `carries_state`.
            token_bias: `[batch, length]`, or None.
            count: int `[batch]`, how many of the positions count, the first ones, if
                `carries_state`; others are padding. None, the default, for all.
            dropout, seed: as in a call.
            training: bool, whether dropout is on and statistics are collected, if `carries_state`.
                Statistics are those of the piece by itself. Defaults to False.

        Returns:
            `[batch, heads, length, value_depth]`, and the cache.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        options = {**self._tables(), **self._cached_token_bias(token_bias, value)}
        query, key = self.with_positions(query, key)
        inputs = {"query": query, "key": key, "value": value}
        by_row = count is not None or tf.convert_to_tensor(position).shape.rank > 0
        if count is not None:
            options["count"] = count
        if training:
            mask = None if count is None else tf.range(size(query, 2)) < count[:, None]
            masks = self.before_attention(query, value, mask, mask)
            options |= {"dropout": dropout, "seed": seed}
        one = query.shape[2] == 1 and not training and not by_row
        if "full" in cache:
            inputs["key"] = query if key is None else key
            attend = full_step if one else full_piece
            output, kept = attend(**inputs, cache=cache["full"], position=position, **options)
            cache = {"full": kept}
        else:
            attend = self.step if one else self.piece
            if self.persistent_keys is not None:
                attend = functools.partial(self._with_persistent, attend)
            output, cache = attend(**inputs, cache=cache, position=position, **options)
        if training:
            self.after_attention(query=query, key=key, value=value, **masks)
        return output, cache

    @property
    def carries_state(self):
        """Whether the cache is bounded, and a piece of a sequence reads it in one pass."""
        return self.cached_decoding and not self.cache_grows

    def _decodes_densely(self, max_length):
        if self.dense_below is None or tf.is_tensor(max_length):
            return False
        return max_length < self.dense_below

    def fill_cache(self, *, key, value, count, max_length, **options):
        """The group's cache: one call of a `..._cache` op."""
        raise NotImplementedError

    def step(self, *, query, key, value, cache, position, **options):
        """The output and the cache of one position: one call of a `..._step` op."""
        raise NotImplementedError

    def piece(self, *, query, key, value, cache, position, token_bias=None, **options):
        """The outputs and the cache of several positions: one call of a `..._piece` op.

        Here, for kinds that have none, one step after the other.
        """
        by_row = "count" in options or tf.convert_to_tensor(position).shape.rank > 0
        if by_row or "dropout" in options:
            raise ValueError(
                f"{self._described()} reads a piece position by position: its rows are at one "
                "position and without padding, and it does not train on a cache"
            )
        inputs = {"query": query, "key": key, "value": value}
        of_positions = {name: move_axis(x, 2, 0) for name, x in inputs.items() if x is not None}
        length = size(value, 2)

        def step(index, cache, outputs):
            one = {name: x[index][:, :, None] for name, x in of_positions.items()}
            if token_bias is not None:
                options["token_bias"] = token_bias[:, index, None]
            output, cache = self.step(
                cache=cache, position=position + index, **{"key": None, **one, **options}
            )
            return index + 1, cache, outputs.write(index, output[:, :, 0])

        loop = 0, cache, tf.TensorArray(value.dtype, length)
        _, cache, outputs = tf.while_loop(lambda index, *_: index < length, step, loop)
        return move_axis(outputs.stack(), 0, 2), cache

    def cross_attention_step(self, query, value, key, position, key_mask=None, token_bias=None):
        """The output of one position that attends to another sequence.

        Args:
            query: `[batch, heads, queries, depth]`, any number of queries at the same position.
            value: `[batch, key_heads, keys, value_depth]`.
            key: `[batch, key_heads, keys, depth]`.
            position: int scalar.
            key_mask: bool `[batch, keys]`, False for padding, or None.
            token_bias: `[batch, keys]`, or None.

        Returns:
            `[batch, heads, queries, value_depth]`.

        Raises:
            ValueError: if `cached_cross_attention` is False.
        """
        if not self.cached_cross_attention:
            raise ValueError(f"{self._described()} cannot attend to a sequence one query at a time")
        options = {**self._tables(), **self._token_bias(token_bias)}
        query, key = self.with_positions(query, key)
        return self.cross_step(
            query=query, key=key, value=value, position=position, key_mask=key_mask, **options
        )

    def cross_step(self, *, query, key, value, position, **options):
        """The output of one position of cross-attention: one call of a `..._cross_step` op."""
        raise NotImplementedError

    def cross_attention_prefill(self, query, value, key, key_mask=None, token_bias=None):
        """The outputs of the first positions, which attend to another sequence."""
        return self(query, value, key, key_mask=key_mask, token_bias=token_bias, training=False)

    def _cached_token_bias(self, token_bias, keys):
        """The token bias of keys that a cache keeps: zeros if there is none but it takes one."""
        if token_bias is None and self.token_bias is not None:
            token_bias = tf.zeros([size(keys, 0), size(keys, 2)], self.compute_dtype)
        return self._token_bias(token_bias)

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                f"{self._described()} cannot be decoded with a cache: an output depends on the "
                "whole sequence. Call the layer on all positions so far instead."
            )
