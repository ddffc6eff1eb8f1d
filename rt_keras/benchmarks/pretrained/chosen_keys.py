"""Keys chosen by their logits or at random, a reference for sparse attention."""

import dataclasses

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key
from rt_keras.layers.key_sets import FirstTokens, KeySet
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.ops.attend import MASKED, attend
from rt_keras.ops.blocks import (
    ceil_div,
    fold_heads,
    join_blocks,
    move_axis,
    places_of_rows,
    size,
    split_blocks,
)
from rt_keras.ops.decode import write_chunk
from rt_keras.ops.full_decode import full_cache
from rt_keras.ops.largest import are_largest

# Number of queries whose logits of all keys are in memory at once.
QUERIES_AT_ONCE = 128


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class ChosenKeys(KeySet):
    """The keys with the largest logits of each query, or random ones.

    They are chosen among the keys that the `Window` and `FirstTokens` of the same union leave out,
    and with a causal mask among those before the query. Finding them computes all logits at a cost
    of O(n²), so this set is not for use, but a bound on what other sets of the same union can
    reach.

    Args:
        num_keys: int, maximum number of keys that a query sees. Defaults to 128.
        at_random: bool, whether to choose random keys. Defaults to False.
        others: the other sets of the union; set by the union.

    Raises:
        ValueError: if `num_keys` is out of range.

    Source: ours.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), ChosenKeys(3)])
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    name = "chosen"
    cache_grows = True
    reads_chunks = True

    num_keys: int = key(128, "maximum number of keys that a query sees", AT_LEAST_1)
    at_random: bool = key(False, "whether to choose random keys")
    others: tuple | None = in_union()

    def beside(self, others):
        return dataclasses.replace(self, others=tuple(others))

    def attend(self, heads, chunk, joins):
        own = tf.range(size(chunk.query, 2))[None]
        found = self._in_blocks(chunk, chunk.keys, chunk.value, own)
        return found if joins else found[0]

    def prefill_state(self, heads, chunk, max_length):
        return full_cache(chunk.keys, chunk.value, max_length=max_length)

    def read_chunk(self, heads, chunk, states, joins):
        cache = write_chunk(
            states[self.name], chunk.position, chunk.count, key=chunk.keys, value=chunk.value
        )
        own = places_of_rows(chunk.position, tf.range(size(chunk.query, 2)))
        found = self._in_blocks(chunk, cache["key"], cache["value"], own)
        return found if joins else found[0], cache

    decode_step = read_chunk

    def _in_blocks(self, chunk, key, value, own):
        """Computes attention of queries at positions `own`, `[batch or 1, queries]`, in blocks."""
        query, length = chunk.query, chunk.query.shape[2]
        if length <= QUERIES_AT_ONCE:
            return self._attend(query, key, value, own, chunk)
        count = ceil_div(length, QUERIES_AT_ONCE)
        blocks = split_blocks(query, count, QUERIES_AT_ONCE)
        own = split_blocks(own[:, None, :, None], count, QUERIES_AT_ONCE)
        output, logsumexp = tf.map_fn(
            lambda block: self._attend(block[0], key, value, block[1][:, 0, :, 0], chunk),
            (move_axis(blocks, 2, 0), move_axis(own, 2, 0)),
            fn_output_signature=(value.dtype, tf.float32),
            parallel_iterations=1,
        )
        output = join_blocks(move_axis(output, 0, 2), length)
        return output, join_blocks(move_axis(logsumexp, 0, 2)[..., None], length)[..., 0]

    def _attend(self, query, key, value, own, chunk):
        heads, key_heads = query.shape[1], key.shape[1]
        folded = fold_heads(query * query.shape[3] ** -0.5, key_heads)
        # The heads of one key head count as additional queries of it.
        far = self._far(own, tf.range(size(key, 2)), chunk)[:, None]
        far = tf.tile(far, [1, 1, heads // key_heads, 1])
        scores = tf.matmul(folded, key, transpose_b=True)
        if self.at_random:
            seed = tf.stack([own[0, 0], heads])
            scores = tf.random.stateless_uniform(tf.shape(scores), seed)
        seen = are_largest(tf.where(far, scores, tf.cast(MASKED, scores.dtype)), self.num_keys)
        output, logsumexp = attend(folded, key, value, (far, seen))
        return fold_heads(output, heads), fold_heads(logsumexp[..., None], heads)[..., 0]

    def _far(self, own, places, chunk):
        """Returns the mask of visible keys outside other sets, `[batch or 1, queries, keys]`."""
        own = own[:, :, None]
        far = places <= own if chunk.causal else tf.fill(tf.shape(own + places), True)
        if chunk.mask_of_keys is not None:
            far &= tf.cast(chunk.mask_of_keys, tf.bool)[:, None]
        for other in self.others or ():
            if isinstance(other, FirstTokens):
                far &= places >= other.num_first_tokens
            else:
                far &= ~other.covers(own, places)
        return far
