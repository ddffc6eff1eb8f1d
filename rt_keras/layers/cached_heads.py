"""Decoding with the heads of one kind: the next positions, given a KV cache of the others."""

import tensorflow as tf

from rt_keras.ops.attend import accumulation_dtype
from rt_keras.ops.blocks import move_axis, size


class CachedHeads:
    """Mixin of `HeadGroup` for decoding with a KV cache, position by position or chunk by chunk.

    A subclass whose outputs depend on no later position defines `prefill_cache` and `decode_step`.
    If it reads several positions in one pass, it also defines `read_chunk` and `reads_chunks`.
    """

    # Whether a causal output depends only on positions up to its own, so that it can be computed
    # with a cache; and whether an output of cross-attention depends on no other query.
    cached_decoding = False
    cached_cross_attention = False
    # Whether the cache contains every position and so grows with the sequence.
    cache_grows = False
    # Whether `read_chunk` reads several positions in one pass, with different positions per row,
    # padding on the right, dropout and statistics.
    reads_chunks = False

    def new_cache(self, batch, max_length, key_depth, value_depth):
        """Returns an empty cache; see `make_cache`.

        Args:
            batch: int or scalar tensor, number of rows.
            max_length: int, final number of positions.
            key_depth: int, depth of a head's keys.
            value_depth: int, depth of a head's values.

        Returns:
            A dictionary of tensors.
        """
        query, key, value = (
            tf.zeros([batch, heads, 1, depth], self.compute_dtype)
            for heads, depth in (
                (self.num_heads, key_depth),
                (self.num_key_value_heads, key_depth),
                (self.num_key_value_heads, value_depth),
            )
        )
        gates, number = None, self.num_gates(value_depth)
        if number:
            gates = tf.zeros([batch, self.num_heads, 1, number], self.compute_dtype)
        key = None if self.share_qk else key
        return self.make_cache(query, value, key, 0, max_length, gates)

    def prefill(self, query, value, key, count, max_length, gates=None):
        """Computes the causal outputs of the first positions, and their cache.

        Args:
            query, value, key, count, max_length, gates: see `make_cache`.

        Returns:
            `[batch, heads, length, value_depth]`, and the cache.
        """
        gates = {} if gates is None else {"gates": gates}
        output = self(query, value, key, use_causal_mask=True, training=False, **gates)
        return output, self.make_cache(query, value, key, count, max_length, **gates)

    def make_cache(self, query, value, key, count, max_length, gates=None):
        """Returns the cache after the first positions.

        Args:
            query: `[batch, heads, length, depth]`.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            count: int scalar, number of positions in the cache. The other positions may have any
                content.
            max_length: int, final number of positions.
            gates: `[batch, heads, length, gates]`; see `HeadGroup.num_gates`. Defaults to None, for
                kinds without gates.

        Returns:
            A dictionary of tensors with the batch on axis 0. Their sizes depend on the group, and
            on `max_length` only if `cache_grows`.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        options = {"count": count, "max_length": max_length}
        if gates is not None:
            options["gates"] = gates
        return self.prefill_cache(query=query, key=key, value=value, **options)

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
        gates=None,
    ):
        """Computes the causal outputs of the next positions and adds these to the cache.

        Args:
            query: `[batch, heads, length, depth]`, one position or a chunk of a sequence.
            value: `[batch, key_heads, length, value_depth]`.
            key: `[batch, key_heads, length, depth]`; None if `share_qk`.
            cache: the cache of `make_cache`, `new_cache` or the previous call.
            position: int scalar, number of previous positions. Also int `[batch]`, one number per
                row, for one position, or for several if `reads_chunks`.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them and does not change the cache. For one position, or for several if
                `reads_chunks`. None for all. Defaults to None.
            dropout, seed: see the call arguments of `HeadGroup`.
            training: bool, whether to apply dropout and collect statistics, if `can_be_stateful`.
                Statistics are those of the chunk alone. Defaults to False.
            gates: see `make_cache`. Defaults to None.

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
        if gates is not None:
            options["gates"] = tf.convert_to_tensor(gates)
        if training:
            mask = None if count is None else tf.range(size(query, 2)) < count[:, None]
            masks = self.before_attention(query, value, mask, mask)
            options |= {"dropout": dropout, "seed": seed}
        # A step costs far less than a chunk of one position, which is computed in blocks.
        one = query.shape[2] == 1 and not training
        if one and tf.convert_to_tensor(position).shape.rank:
            # Loops need one position per row.
            position = tf.broadcast_to(position, [size(value, 0)])
        read = self.decode_step if one else self.read_chunk
        output, cache = read(**inputs, cache=cache, position=position, **options)
        if training:
            self.after_attention(**inputs, **masks)
        return output, cache

    @property
    def can_be_stateful(self):
        """Returns whether the cache is bounded and chunks of a text are read in one pass."""
        return self.cached_decoding and not self.cache_grows and self.reads_chunks

    def prefill_cache(self, *, query, key, value, count, max_length):
        """Returns the group's cache, computed by one `..._cache` op."""
        raise NotImplementedError

    def decode_step(self, *, query, key, value, cache, position, count=None):
        """Computes the output and the cache of one position with one `..._step` op.

        Rows may be at different positions. Rows with a count of 0 keep their cache.
        """
        raise NotImplementedError

    def read_chunk(self, *, query, key, value, cache, position, **options):
        """Computes the outputs and the cache of several positions with one `..._chunk` op.

        This default, for kinds without such an op, runs one step after the other. With
        `return_logsumexp`, the outputs are a pair with the logsumexps of their logits, as in a
        step.
        """
        by_row = "count" in options or tf.convert_to_tensor(position).shape.rank > 0
        if by_row or "dropout" in options:
            raise ValueError(
                f"{self._described()} read a chunk position by position and do not support "
                "different positions per row, padding, or training with a cache"
            )
        inputs = {"query": query, "key": key, "value": value}
        of_positions = {name: move_axis(x, 2, 0) for name, x in inputs.items() if x is not None}
        length = size(value, 2)

        def step(index, cache, outputs):
            one = {name: x[index][:, :, None] for name, x in of_positions.items()}
            found, cache = self.decode_step(
                cache=cache, position=position + index, **{"key": None, **one, **options}
            )
            # A pair of the output and its logsumexp, if requested.
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
        """Computes the output of one position that attends to another sequence.

        Args:
            query: `[batch, heads, queries, depth]`, any number of queries at the same position.
            value: `[batch, key_heads, keys, value_depth]`.
            key: `[batch, key_heads, keys, depth]`.
            position: int scalar.
            key_mask: bool `[batch, keys]`, False for padding, or None. Defaults to None.

        Returns:
            `[batch, heads, queries, value_depth]`.

        Raises:
            ValueError: if `cached_cross_attention` is False.
        """
        if not self.cached_cross_attention:
            raise ValueError(f"{self._described()} do not support cross-attention by position")
        return self.cross_step(
            query=query, key=key, value=value, position=position, key_mask=key_mask
        )

    def cross_step(self, *, query, key, value, position, **options):
        """Computes the cross-attention of one position with one `..._cross_step` op."""
        raise NotImplementedError

    def cross_attention_prefill(self, query, value, key, key_mask=None):
        """Computes the outputs of the first positions, which attend to another sequence."""
        return self(query, value, key, key_mask=key_mask, training=False)

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                f"{self._described()} cannot be decoded with a cache: each output depends on the "
                "whole sequence. Call the layer on all positions so far instead."
            )
