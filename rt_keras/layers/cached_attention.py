"""Decoding: attention of the next positions, given a cache of those before them."""

import tensorflow as tf

from rt_keras.layers.dropout import draw_seed
from rt_keras.ops.blocks import size


class CachedAttention:
    """Mixin of `MultiHeadAttention`: what it does position by position, or chunk by chunk.

    Outputs are those of one call on all positions. A cache holds what each head group keeps; see
    `CachedHeads`.
    """

    @property
    def cached_decoding(self):
        """Whether all groups can be decoded with a cache, and none has global tokens."""
        of_groups = all(group.cached_decoding for group in self.head_groups)
        return of_groups and self.num_global_tokens is None

    @property
    def cached_cross_attention(self):
        """Whether all groups can attend to another sequence one query at a time.

        A query alone does not know how many there will be, which `dense_below` goes by.
        """
        return all(
            group.cached_cross_attention and group.dense_below is None for group in self.head_groups
        )

    def new_cache(self, batch, max_length):
        """An empty cache.

        Args:
            batch: int or int scalar, rows of the cache.
            max_length: int, the number of positions that there will be.

        Returns:
            Tuple of the cache of each group.
        """
        self._check_cached()
        query_heads, _, value_heads = self._head_counts
        depths = self.query_dense.units // query_heads, self.value_dense.units // value_heads
        return tuple(group.new_cache(batch, max_length, *depths) for group in self.head_groups)

    def prefill(self, inputs, count, max_length):
        """Causal self-attention of the first positions, and the cache of their keys.

        Args:
            inputs: `[batch, length, features]`.
            count: int scalar, how many of the positions the cache holds.
            max_length: int, the number of positions that there will be.

        Returns:
            `[batch, length, output_shape]`, and the cache.
        """
        self._check_cached()
        outputs, caches = [], []
        for group, arguments in self._hand_out(*self._project(inputs, inputs, inputs)):
            caches.append(group.make_cache(*arguments, count, max_length))
            outputs.append(
                group(*arguments, use_causal_mask=True, training=False, total_length=max_length)
            )
        return self._merge(outputs), tuple(caches)

    def call_with_cache(self, inputs, cache, position, count=None, training=False):
        """Causal self-attention of the next positions, given the cache of those before them.

        Args:
            inputs: `[batch, length, features]`, of one position or of a chunk of the sequences.
            cache: the cache of `prefill`, `new_cache` or the last call.
            position: int scalar, the number of positions before these; or int `[batch]`, that of
                each row.
            count: int `[batch]`, how many of the positions count, the first ones; others are
                padding. None, the default, for all.
            training: bool, whether dropout is on and statistics are collected. Defaults to False.

        Returns:
            `[batch, length, output_shape]`, and the cache with these positions in it.

        Raises:
            ValueError: if the cache is not of this layer.

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
        if len(cache) != len(self.head_groups):
            raise ValueError(
                f"The cache is of {len(cache)} head groups; {self.name} has "
                f"{len(self.head_groups)}. It must come from this layer's prefill or new_cache."
            )
        outputs, caches = [], []
        options = {"count": count, "dropout": self.dropout, "training": training}
        handed_out = self._hand_out(*self._project(inputs, inputs, inputs, position))
        for (group, arguments), kept in zip(handed_out, cache):
            seed = draw_seed(self.seed_generator) if training and self.dropout else None
            output, kept = group.call_with_cache(*arguments, kept, position, seed=seed, **options)
            outputs.append(output)
            caches.append(kept)
        return self._merge(outputs), tuple(caches)

    def _check_cached(self):
        if self.num_global_tokens is not None:
            raise ValueError(
                f"{self.name} has num_global_tokens={self.num_global_tokens} and cannot be decoded "
                "with a cache, which keeps no keys of global tokens. Call the layer on all "
                "positions so far instead."
            )

    def make_cross_cache(self, value, value_mask=None):
        """The keys and values of another sequence, computed once for all queries.

        Args:
            value: `[batch, keys, features]`.
            value_mask: bool or int `[batch, keys]`, 0 for padding; or None.

        Returns:
            A dictionary for `call_with_cross_cache`.
        """
        _, keys, values = self._project(None, value, value)
        mask = None if value_mask is None else tf.cast(value_mask, tf.bool)
        return {"key": keys, "value": values, "options": {"key_mask": mask}}

    def call_with_cross_cache(self, query, cross_cache, position=None):
        """Cross-attention of one position, or of the first ones.

        Args:
            query: `[batch, length, features]` for the first positions; `[batch, 1, features]` for
                one. In the latter case the batch may be a multiple of the cache's: each row of
                the cache then serves as many consecutive queries, the beams of a search.
            cross_cache: the dictionary of `make_cross_cache`.
            position: int scalar; None, the default, for the first positions.

        Returns:
            `[batch, length, output_shape]`.
        """
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


def _fold_beams(x, batch):
    """`[batch * beams, heads, 1, depth]` to `[batch, heads, beams, depth]`."""
    beams = size(x, 0) // batch
    x = tf.reshape(x, [batch, beams, x.shape[1], x.shape[3]])
    return tf.transpose(x, [0, 2, 1, 3])


def _unfold_beams(x):
    """`[batch, heads, beams, depth]` to `[batch * beams, heads, 1, depth]`."""
    shape = [size(x, 0) * size(x, 2), x.shape[1], 1, x.shape[3]]
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), shape)
