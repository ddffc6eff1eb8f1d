"""Decoding with attention: the next positions, given a cache of the previous ones."""

import tensorflow as tf

from rt_keras.layers.document_caches import read_documents
from rt_keras.layers.dropout import draw_seed
from rt_keras.layers.projections import ROLES
from rt_keras.ops.blocks import size


class CachedAttention:
    """Mixin of `MultiHeadAttention` for decoding with a KV cache, by position or by chunk.

    The outputs equal those of one call on all positions. The cache contains the cache of each head
    group; see `CachedHeads`. With `conv_kernel_size`, its last entry holds the last queries, keys
    and values before the convolutions.
    """

    @property
    def cached_decoding(self):
        """Returns whether all groups support a cache and there are no global tokens."""
        of_groups = all(group.cached_decoding for group in self.head_groups)
        return of_groups and self.num_global_tokens is None

    @property
    def reads_chunks(self):
        """Returns whether all groups read several positions in one pass; see `CachedHeads`."""
        return all(group.reads_chunks for group in self.head_groups)

    @property
    def cached_cross_attention(self):
        """Returns whether all groups support cross-attention of one query at a time.

        `conv_kernel_size` must be None, since no cache contains the previous queries.
        """
        return self.conv_kernel_size is None and all(
            group.cached_cross_attention for group in self.head_groups
        )

    def new_cache(self, batch, max_length):
        """Returns an empty cache.

        Args:
            batch: int or int scalar, number of rows.
            max_length: int, final number of positions.

        Returns:
            Tuple with the cache of each group and, with `conv_kernel_size`, a dictionary of the
            last queries, keys and values.
        """
        self._check_cached()
        query_heads, _, value_heads = self._head_counts
        depths = self.query_dense.units // query_heads, self.value_dense.units // value_heads
        caches = [group.new_cache(batch, max_length, *depths) for group in self.head_groups]
        convolutions = {role: self._convolution_of(role) for role in ROLES}
        last = {role: x.new_cache(batch) for role, x in convolutions.items() if x is not None}
        return self._joined(caches, last)

    def _joined(self, caches, last):
        """Returns the cache: those of the groups and the last vectors for the convolutions."""
        return tuple(caches) if self.conv_kernel_size is None else (*caches, last)

    def prefill(self, inputs, count, max_length):
        """Computes causal self-attention of the first positions, and the cache of their keys.

        Args:
            inputs: `[batch, length, features]`.
            count: int scalar, number of positions in the cache.
            max_length: int, final number of positions.

        Returns:
            `[batch, length, output_shape]`, and the cache.
        """
        self._check_cached()
        if inputs.shape[1] == 0:
            return self._no_outputs(inputs), self.new_cache(size(inputs, 0), max_length)
        outputs, caches, last = [], [], {}

        def convolve(role, x):
            last[role] = self._convolution_of(role).make_cache(x, count)
            return self._convolution_of(role)(x)

        handed_out = self._hand_out(*self._project(inputs, inputs, inputs, convolve=convolve))
        for (group, arguments), gates in zip(handed_out, self._hand_out_gates(inputs)):
            output, cache = group.prefill(*arguments, count, max_length, **gates)
            outputs.append(output)
            caches.append(cache)
        return self._merge(outputs), self._joined(caches, last)

    def call_with_cache(
        self, inputs, cache, position, count=None, training=False, segment_ids=None
    ):
        """Computes causal self-attention of the next positions, given the cache.

        Args:
            inputs: `[batch, length, features]`, one position or a chunk of the sequences.
            cache: the cache of `prefill`, `new_cache` or the previous call.
            position: int scalar or `[batch]`, number of previous positions.
            count: int `[batch]` or None, number of positions that are not padding; the padding
                follows them. None for all. Defaults to None.
            training: bool, whether to apply dropout and collect statistics. Defaults to False.
            segment_ids: int `[batch, length]` or None, the document of each position, as in a call.
                `position` counts those of a row's first document alone, which begins with the chunk
                if it is 0. Each of the others begins with an empty cache. Defaults to None.

        Returns:
            `[batch, length, output_shape]`, and the cache that includes these positions, with
            `segment_ids` those of each row's last document.

        Raises:
            ValueError: if the cache has another number of entries, or `segment_ids` are given in
                training.

        >>> import keras
        >>> from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
        >>> layer = MultiHeadAttention([LocalHeads(2, 4), RoutingHeads(2, 4, 4)])
        >>> x = keras.random.normal([1, 9, 32])
        >>> expected = layer(x, x, use_causal_mask=True)
        >>> output, cache = layer.prefill(x[:, :8], count=8, max_length=9)
        >>> output, cache = layer.call_with_cache(x[:, 8:], cache, position=8)
        >>> bool(keras.ops.max(keras.ops.abs(output - expected[:, 8:])) < 1e-5)
        True
        """
        entries = len(self.head_groups) + (self.conv_kernel_size is not None)
        if len(cache) != entries:
            raise ValueError(
                f"The cache has {len(cache)} entries but that of {self.name} has {entries}. It "
                "must come from this layer's prefill or new_cache."
            )
        if inputs.shape[1] == 0:
            return self._no_outputs(inputs), cache
        if segment_ids is not None:
            given = inputs, cache, position, count, training, segment_ids
            return read_documents(self, *given, self.reads_chunks)
        outputs, caches, last = [], [], {}

        def convolve(role, x):
            layer = self._convolution_of(role)
            x, last[role] = layer.call_with_cache(x, cache[-1][role], count)
            return x

        options = {"count": count, "dropout": self.dropout, "training": training}
        handed_out = self._hand_out(*self._project(inputs, inputs, inputs, position, convolve))
        for (group, arguments), kept, gates in zip(handed_out, cache, self._hand_out_gates(inputs)):
            options["seed"] = draw_seed(self.seed_generator) if training and self.dropout else None
            output, kept = group.call_with_cache(*arguments, kept, position, **options, **gates)
            outputs.append(output)
            caches.append(kept)
        return self._merge(outputs), self._joined(caches, last)

    def _no_outputs(self, inputs):
        shape = self.compute_output_shape(inputs.shape, inputs.shape)
        return tf.zeros([size(inputs, 0), *shape[1:]], self.compute_dtype)

    def _check_cached(self):
        if self.num_global_tokens is not None:
            raise ValueError(
                f"{self.name} has num_global_tokens={self.num_global_tokens} and cannot be decoded "
                "with a cache, which contains no keys of global tokens. Call the layer on all "
                "positions so far instead."
            )

    def make_cross_cache(self, value, value_mask=None):
        """Computes the keys and values of another sequence once for all queries.

        Args:
            value: `[batch, keys, features]`.
            value_mask: bool or int `[batch, keys]`, 0 for padding; or None. Defaults to None.

        Returns:
            A dictionary for `call_with_cross_cache`.

        Raises:
            ValueError: if `conv_kernel_size` is not None.
        """
        self._check_cross_cache()
        _, keys, values = self._project(None, value, value)
        mask = None if value_mask is None else tf.cast(value_mask, tf.bool)
        return {"key": keys, "value": values, "options": {"key_mask": mask}}

    def call_with_cross_cache(self, query, cross_cache, position=None):
        """Computes cross-attention of one position, or of the first positions.

        Args:
            query: `[batch, length, features]` for the first positions; `[batch, 1, features]` for
                one position. In the latter case, the batch may be a multiple of the cache's: each
                row of the cache then serves several consecutive queries, the beams of a beam
                search.
            cross_cache: dictionary returned by `make_cross_cache`.
            position: int scalar, or None for the first positions. Defaults to None.

        Returns:
            `[batch, length, output_shape]`.

        Raises:
            ValueError: if `conv_kernel_size` is not None.
        """
        self._check_cross_cache()
        options, outputs = cross_cache["options"], []
        queries, _, _ = self._project(query, None, None, 0 if position is None else position)
        for group, (of_group, value, key) in self._hand_out(
            queries, cross_cache["key"], cross_cache["value"]
        ):
            if position is None:
                outputs.append(group.cross_attention_prefill(of_group, value, key, **options))
                continue
            beams = _fold_beams(of_group, size(value, 0))
            outputs.append(
                _unfold_beams(group.cross_attention_step(beams, value, key, position, **options))
            )
        return self._merge(outputs)

    def _check_cross_cache(self):
        if self.conv_kernel_size is not None:
            raise ValueError(
                "conv_kernel_size must be None for cross-attention with a cache, which contains no "
                f"previous queries. Received: conv_kernel_size={self.conv_kernel_size} of "
                f"{self.name}. Call the layer on all positions so far instead."
            )


def _fold_beams(x, batch):
    """Reshapes `[batch * beams, heads, 1, depth]` to `[batch, heads, beams, depth]`."""
    beams = size(x, 0) // batch
    x = tf.reshape(x, [batch, beams, x.shape[1], x.shape[3]])
    return tf.transpose(x, [0, 2, 1, 3])


def _unfold_beams(x):
    """Reshapes `[batch, heads, beams, depth]` to `[batch * beams, heads, 1, depth]`."""
    shape = [size(x, 0) * size(x, 2), x.shape[1], 1, x.shape[3]]
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), shape)
