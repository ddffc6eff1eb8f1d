"""Decoding with the heads of one kind: the next positions, given a cache of those before them."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import move_axis, size


class CachedHeads:
    """Mixin of `HeadGroup`: what it does position by position, or chunk by chunk.

    A subclass whose outputs depend on no later position has `fill_cache` and `step`, and
    `read_chunk` and `reads_chunks` if it reads several positions in one pass.
    """

    # Whether a causal output depends on the positions up to its own alone, so that it can be
    # computed from a cache; and whether an output of cross-attention depends on no other query.
    cached_decoding = False
    cached_cross_attention = False
    # Whether the cache holds every position, so that it grows with the sequence.
    cache_grows = False
    # Whether `read_chunk` reads several positions in one pass, with rows at positions of their own,
    # padding at the right, dropout and statistics.
    reads_chunks = False

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

    def make_cache(self, query, value, key, count, max_length):
        """The cache that decoding continues from after the first positions.

        Args:
            query: `[batch, heads, length, depth]`.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            count: int scalar, how many of the positions count; the others may hold anything.
            max_length: int, how many positions there will be.

        Returns:
            A dictionary of tensors with the batch on axis 0. Their sizes depend on the group, and
            on `max_length` only for `FullHeads`, `StridedHeads` and grids.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        return self.fill_cache(
            query=query, key=key, value=value, count=count, max_length=max_length
        )

    def call_with_cache(
        self,
        query,
        value,
        key,
        cache,
        position,
        count=None,
        dropout=0.0,
        seed=None,
        training=False,
    ):
        """The causal output of the next positions, and the cache with them in it.

        Args:
            query: `[batch, heads, length, depth]`, of one position or of a chunk of a sequence.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            cache: the cache of `make_cache`, `new_cache` or the last call.
            position: int scalar, the number of positions before these; or int `[batch]`, that of
                each row, for one position, and for several if `reads_chunks`.
            count: int `[batch]`, how many of the positions count, the first ones; others are
                padding, which leaves a row's cache as it is. For one position, and for several if
                `reads_chunks`. None, the default, for all.
            dropout, seed: as in a call.
            training: bool, whether dropout is on and statistics are collected, if `carries_state`.
                Statistics are those of the chunk by itself. Defaults to False.

        Returns:
            `[batch, heads, length, value_depth]`, and the cache.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        query, key, value = (
            x if x is None else tf.convert_to_tensor(x) for x in (query, key, value)
        )
        options, inputs = {}, {"query": query, "key": key, "value": value}
        if count is not None:
            options["count"] = count
        if training:
            mask = None if count is None else tf.range(size(query, 2)) < count[:, None]
            masks = self.before_attention(query, value, mask, mask)
            options |= {"dropout": dropout, "seed": seed}
        # A step costs far less than a chunk of one position, which is computed as blocks.
        one = query.shape[2] == 1 and not training
        if one and tf.convert_to_tensor(position).shape.rank:
            # As many positions as rows, which loops need to know.
            position = tf.broadcast_to(position, [size(value, 0)])
        read = self.step if one else self.read_chunk
        output, cache = read(**inputs, cache=cache, position=position, **options)
        if training:
            self.after_attention(**inputs, **masks)
        return output, cache

    @property
    def carries_state(self):
        """Whether the cache is bounded, and a chunk of a text without an end reads it in one pass.

        With `dense_below` there must be an end.
        """
        bounded = self.cached_decoding and not self.cache_grows
        return bounded and self.reads_chunks and self.dense_below is None

    def _decodes_densely(self, max_length):
        if self.dense_below is None:
            return False
        length = tf.get_static_value(max_length) if tf.is_tensor(max_length) else max_length
        if length is None:
            raise ValueError(
                f"{self._described()} with dense_below={self.dense_below} need a max_length that "
                "is known when a function is traced. Received: a tensor"
            )
        return length < self.dense_below

    def fill_cache(self, *, query, key, value, count, max_length):
        """The group's cache: one call of a `..._cache` op."""
        raise NotImplementedError

    def step(self, *, query, key, value, cache, position, count=None):
        """The output and the cache of one position: one call of a `..._step` op.

        Rows may be at positions of their own, and those whose count is 0 keep their cache.
        """
        raise NotImplementedError

    def read_chunk(self, *, query, key, value, cache, position, **options):
        """The outputs and the cache of several positions: one call of a `..._chunk` op.

        Here, for kinds that have none, one step after the other. With `return_logsumexp` the
        outputs are a pair with the logsumexps of their logits, as those of a step are.
        """
        by_row = "count" in options or tf.convert_to_tensor(position).shape.rank > 0
        if by_row or "dropout" in options:
            raise ValueError(
                f"{self._described()} reads a chunk position by position: its rows are at one "
                "position and without padding, and it does not train on a cache"
            )
        inputs = {"query": query, "key": key, "value": value}
        of_positions = {name: move_axis(x, 2, 0) for name, x in inputs.items() if x is not None}
        length = size(value, 2)

        def step(index, cache, outputs):
            one = {name: x[index][:, :, None] for name, x in of_positions.items()}
            found, cache = self.step(
                cache=cache, position=position + index, **{"key": None, **one, **options}
            )
            # Beside the output, its logsumexp where that is asked for.
            found = found if isinstance(found, tuple) else (found,)
            return index + 1, cache, [x.write(index, y[:, :, 0]) for x, y in zip(outputs, found)]

        dtypes = [value.dtype]
        if options.get("return_logsumexp"):
            dtypes.append(accumulation_dtype(query.dtype))
        loop = 0, cache, [tf.TensorArray(dtype, length) for dtype in dtypes]
        _, cache, outputs = tf.while_loop(lambda index, *_: index < length, step, loop)
        found = tuple(move_axis(x.stack(), 0, 2) for x in outputs)
        return found if len(found) > 1 else found[0], cache

    def cross_attention_step(self, query, value, key, position, key_mask=None):
        """The output of one position that attends to another sequence.

        Args:
            query: `[batch, heads, queries, depth]`, any number of queries at the same position.
            value: `[batch, key_heads, keys, value_depth]`.
            key: `[batch, key_heads, keys, depth]`.
            position: int scalar.
            key_mask: bool `[batch, keys]`, False for padding, or None.

        Returns:
            `[batch, heads, queries, value_depth]`.

        Raises:
            ValueError: if `cached_cross_attention` is False.
        """
        if not self.cached_cross_attention:
            raise ValueError(f"{self._described()} cannot attend to a sequence one query at a time")
        return self.cross_step(
            query=query, key=key, value=value, position=position, key_mask=key_mask
        )

    def cross_step(self, *, query, key, value, position, **options):
        """The output of one position of cross-attention: one call of a `..._cross_step` op."""
        raise NotImplementedError

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        """The outputs of the first positions, which attend to another sequence."""
        return self(query, value, key, key_mask=key_mask, training=False)

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                f"{self._described()} cannot be decoded with a cache: an output depends on the "
                "whole sequence. Call the layer on all positions so far instead."
            )
