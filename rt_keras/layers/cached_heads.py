"""Decoding with the heads of one kind: the next positions, given a cache of those before them."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import move_axis, repeat_heads, size
from rt_keras.ops.full_decode import full_cache, full_step
from rt_keras.ops.full_piece import full_piece


class CachedHeads:
    """Mixin of `HeadGroup`: what it does position by position, or piece by piece.

    A subclass whose outputs depend on no later position has `fill_cache` and `step`, and `piece`
    and `reads_pieces` if it reads several positions in one pass.
    """

    # Whether a causal output depends on the positions up to its own alone, so that it can be
    # computed from a cache; and whether an output of cross-attention depends on no other query.
    cached_decoding = False
    cached_cross_attention = False
    # Whether the cache holds every position, so that it grows with the sequence.
    cache_grows = False
    # Whether `piece` reads several positions in one pass, with rows at positions of their own,
    # padding at the right, dropout and statistics.
    reads_pieces = False

    # Whether `step` takes rows at positions of their own. For others it is called row by row.
    steps_by_row = False

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
        query, key = self.with_positions(query, query if key is None else key)
        if self._decodes_densely(max_length):
            return {"full": full_cache(key, value, max_length=max_length)}
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
            query: `[batch, heads, length, depth]`, of one position or of a piece of a sequence.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            cache: the cache of `make_cache`, `new_cache` or the last call.
            position: int scalar, the number of positions before these; or int `[batch]`, that of
                each row, for one position, and for several if `carries_state`.
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
        query, key, value = (
            x if x is None else tf.convert_to_tensor(x) for x in (query, key, value)
        )
        options = self._tables()
        query, key = self.with_positions(query, key)
        inputs = {"query": query, "key": key, "value": value}
        if count is not None:
            options["count"] = count
        if training:
            mask = None if count is None else tf.range(size(query, 2)) < count[:, None]
            masks = self.before_attention(query, value, mask, mask)
            options |= {"dropout": dropout, "seed": seed}
        one = query.shape[2] == 1 and not training and count is None
        if one and tf.convert_to_tensor(position).shape.rank:
            return self._step_of_rows(inputs, cache, position, options)
        read = self._step if one else self._piece
        output, cache = read(inputs, cache, position, options)
        if training:
            if not self.groups_queries:
                key, value = (repeat_heads(x, self.num_heads) for x in (key, value))
            self.after_attention(query=query, key=key, value=value, **masks)
        return output, cache

    def _step(self, inputs, cache, position, options):
        """The output and the cache of one position, of all rows the same."""
        return self._attend_cached(full_step, self.step, inputs, cache, position, options)

    def _piece(self, inputs, cache, position, options):
        """The outputs and the cache of several positions."""
        return self._attend_cached(full_piece, self.piece, inputs, cache, position, options)

    def _attend_cached(self, dense, sparse, inputs, cache, position, options):
        """Attends by one of two ops: the one for sequences below `dense_below`, or the kind's."""
        if "full" in cache:
            if inputs["key"] is None:
                inputs = {**inputs, "key": inputs["query"]}
            options = {**options, "activation": self.attention_activation}
            output, kept = dense(**inputs, cache=cache["full"], position=position, **options)
            return output, {"full": kept}
        if self.persistent_keys is not None:
            sparse = functools.partial(self._with_persistent, sparse)
        return sparse(**inputs, cache=cache, position=position, **options)

    def _step_of_rows(self, inputs, cache, position, options):
        """One position of each row, where rows are at positions of their own.

        A step costs far less than a piece of one position, which is computed as blocks.
        """
        # As many positions as rows, which loops need to know.
        position = tf.broadcast_to(position, [size(inputs["value"], 0)])
        if self.steps_by_row or "full" in cache:
            return self._step(inputs, cache, position, options)
        inputs = {name: x for name, x in inputs.items() if x is not None}

        def step(row):
            arguments, kept, place = row
            arguments, kept = tf.nest.map_structure(lambda x: x[None], (arguments, kept))
            found, kept = self._step({"key": None, **arguments}, kept, place, options)
            return tf.nest.map_structure(lambda x: x[0], (found, kept))

        kinds = tf.nest.map_structure(lambda x: x.dtype, cache)
        rows = inputs, cache, position
        output, after = tf.map_fn(step, rows, fn_output_signature=(inputs["value"].dtype, kinds))
        return output, tf.nest.map_structure(
            lambda x, before: tf.ensure_shape(x, before.shape), after, cache
        )

    @property
    def carries_state(self):
        """Whether the cache is bounded, and a piece of a text without an end reads it in one pass.

        With `dense_below` there must be an end.
        """
        bounded = self.cached_decoding and not self.cache_grows
        return bounded and self.reads_pieces and self.dense_below is None

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

    def fill_cache(self, *, query, key, value, count, max_length, **options):
        """The group's cache: one call of a `..._cache` op."""
        raise NotImplementedError

    def step(self, *, query, key, value, cache, position, **options):
        """The output and the cache of one position: one call of a `..._step` op."""
        raise NotImplementedError

    def piece(self, *, query, key, value, cache, position, **options):
        """The outputs and the cache of several positions: one call of a `..._piece` op.

        Here, for kinds that have none, one step after the other. With `return_logsumexp` the
        outputs are a pair with the logsumexps of their logits, as those of a step are.
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
        query, key = self.with_positions(query, key)
        return self.cross_step(
            query=query,
            key=key,
            value=value,
            position=position,
            key_mask=key_mask,
            **self._tables(),
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
