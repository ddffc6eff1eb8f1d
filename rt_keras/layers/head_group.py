"""What all head groups are: heads of one kind inside `MultiHeadAttention`."""

import keras
import tensorflow as tf

from rt_keras.ops.blocks import size

TOKEN_BIASES = (None, "fixed", "trainable")


class HeadGroup(keras.layers.Layer):
    """So many heads of one kind, with their state; subclasses say which keys a query sees.

    `MultiHeadAttention` projects its inputs once and hands each group its heads. A group is called
    with `(query, value, key, ...)`, each `[batch, heads, length, depth]`, and returns
    `[batch, heads, length, value_depth]`. A subclass writes `attend`, one call of an op.

    Where `cached_decoding` is True, a group also decodes one position at a time: `make_cache` keeps
    what later positions need of the first ones, and `call_with_cache` adds one position and gives
    the output that a causal call on the whole sequence has there. Where `cached_cross_attention`
    is True, `cross_attention_step` does so for attention to another sequence.

    Args:
        num_heads: heads in the group.
        max_relative_distance: m, for relative positions: each head learns a vector for each
            distance -m ... m, added to the keys that far away (further ones count as m). None for
            no relative positions. Source: Shaw et al. 2018, Self-Attention with Relative Position
            Representations, section 3.2.
        token_bias: what to do with a `token_bias` in the call, `[batch, keys]`: None, not to take
            it; "fixed" or "trainable", to add it to the logits of each key, times a scalar weight
            that starts at 1.
        **kwargs: those of `keras.layers.Layer`.
    """

    # Whether queries are their own keys: `key` is then None.
    share_qk = False
    # Whether any attention_mask of [batch, queries, keys] will do.
    takes_attention_mask = False
    # Whether the group computes what the code of the paper's authors does, where that differs.
    # Relative positions are then the same for all heads, and are added to the values too.
    reference = False
    # Whether a causal output depends on the positions up to its own alone, and so can be had from
    # a cache; and whether an output of attention to another sequence depends on no other query.
    cached_decoding = False
    cached_cross_attention = False

    def __init__(self, num_heads, max_relative_distance=None, token_bias=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int("num_heads", num_heads)
        if max_relative_distance is not None:
            positive_int("max_relative_distance", max_relative_distance)
        self.max_relative_distance = max_relative_distance
        if token_bias not in TOKEN_BIASES:
            raise ValueError(
                f"token_bias must be one of {TOKEN_BIASES}. Received: token_bias={token_bias!r}"
            )
        self.token_bias = token_bias
        self.relative_embeddings = self.relative_values = self.token_bias_weight = None

    @property
    def state_dtype(self):
        """What centroids and statistics are kept in: float32 under every policy but float64."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def build(self, query_shape, value_shape=None, key_shape=None):
        if self.max_relative_distance is not None:
            self.relative_embeddings = self._relative("relative_embeddings", query_shape[-1])
            if self.reference:
                depth = (value_shape or query_shape)[-1]
                self.relative_values = self._relative("relative_values", depth)
        if self.token_bias is not None:
            self.token_bias_weight = self.add_weight(
                name="token_bias_weight",
                shape=(),
                initializer="ones",
                trainable=self.token_bias == "trainable",
            )
        self.built = True

    def _relative(self, name, depth):
        initializer = keras.initializers.RandomNormal(stddev=depth**-0.5)
        if self.reference:
            initializer = keras.initializers.VarianceScaling(0.2, "fan_avg", "uniform")
        heads = 1 if self.reference else self.num_heads
        shape = (heads, 2 * self.max_relative_distance + 1, depth)
        return self.add_weight(name=name, shape=shape, initializer=initializer)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        key_mask=None,
        attention_mask=None,
        token_bias=None,
        use_causal_mask=False,
        dropout=0.0,
        seed=None,
        training=None,
    ):
        if attention_mask is not None and not self.takes_attention_mask:
            raise ValueError(
                f"{type(self).__name__} cannot take an attention_mask of [batch, queries, keys]: "
                "it never forms that matrix. Give query_mask, value_mask or use_causal_mask, or an "
                "attention_mask of [batch, 1, keys]."
            )
        options = {
            "causal": use_causal_mask,
            "query_mask": query_mask,
            "key_mask": key_mask,
            "dropout": dropout if training else 0.0,
            "seed": seed,
        }
        if attention_mask is not None:
            options["attention_mask"] = attention_mask
        if token_bias is not None and self.token_bias is not None:
            options["token_bias"] = self._weighted(token_bias)
        return self.attend(query, key, value, {**options, **self._tables()})

    def attend(self, query, key, value, options):
        """Attention of these heads; `options` are the keyword arguments that all ops share."""
        raise NotImplementedError

    def _weighted(self, token_bias):
        weight = keras.ops.cast(self.token_bias_weight, self.compute_dtype)
        return weight * keras.ops.cast(token_bias, weight.dtype)

    def _tables(self):
        """What the group learns of relative positions, by its name in the ops."""
        names = ("relative_embeddings", "relative_values")
        tables = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {name: keras.ops.convert_to_tensor(table) for name, table in tables.items()}

    # Decoding.

    def new_cache(self, batch, max_length, key_depth, value_depth):
        """The cache of no positions yet; see `make_cache`.

        Args:
            batch: rows of the cache, an int or a scalar tensor.
            max_length: how many positions there will be.
            key_depth, value_depth: of a head.
        """
        key, value = (
            tf.zeros([batch, self.num_heads, 1, depth], self.compute_dtype)
            for depth in (key_depth, value_depth)
        )
        return self.make_cache(key, value, None if self.share_qk else key, 0, max_length)

    def make_cache(self, query, value, key, count, max_length, token_bias=None):
        """What later positions need of the first ones.

        Args:
            query, value, key: as in a call.
            count: int scalar, how many of their positions count; the others may hold anything.
            max_length: how many positions there will be.
            token_bias: `[batch, length]`; 0 where there is none but the group takes it.

        Returns:
            A dictionary of tensors with the batch on axis 0, whose size depends on the group, and
            only with `FullHeads`, `StridedHeads` and grids on `max_length`.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        key = query if key is None else key
        options = self._bias_of(token_bias, key)
        return self.fill_cache(key, value, count, max_length, options)

    def call_with_cache(self, query, value, key, cache, position, token_bias=None):
        """The causal output of one position, and the cache with that position in it.

        Args:
            query, value, key: as in a call, of one position.
            cache: what `make_cache`, `new_cache` or the last call gave.
            position: int scalar, how many positions came before.
            token_bias: `[batch, 1]`.

        Returns:
            `[batch, heads, 1, value_depth]`, and the cache.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        self._check_cached()
        options = {**self._tables(), **self._bias_of(token_bias, value)}
        return self.step(query, key, value, cache, position, options)

    def fill_cache(self, key, value, count, max_length, options):
        """The group's cache; `options` are those of the `..._cache` ops."""
        raise NotImplementedError

    def step(self, query, key, value, cache, position, options):
        """The output and the cache of one position; `options` are those of the `..._step` ops."""
        raise NotImplementedError

    def cross_attention_step(self, query, value, key, position, key_mask=None, token_bias=None):
        """The output of one position that attends to another sequence.

        Args:
            query: `[batch, heads, queries, depth]`, any number of queries at the same position.
            value, key, key_mask, token_bias: as in a call, of the other sequence.
            position: int scalar.

        Raises:
            ValueError: if `cached_cross_attention` is False.
        """
        if not self.cached_cross_attention:
            raise ValueError(f"{self._described()} cannot attend to a sequence one query at a time")
        options = {**self._tables(), "key_mask": key_mask}
        if token_bias is not None and self.token_bias is not None:
            options["token_bias"] = self._weighted(token_bias)
        return self.cross_step(query, key, value, position, options)

    def cross_step(self, query, key, value, position, options):
        """The output of one position; `options` are those of the `..._recall` ops."""
        raise NotImplementedError

    def cross_attention_prefill(self, query, value, key, key_mask=None, token_bias=None):
        """The outputs of the first positions, which attend to another sequence."""
        return self(query, value, key, key_mask=key_mask, token_bias=token_bias, training=False)

    def _bias_of(self, token_bias, keys):
        """The token bias as an option of the ops; zeros where the group could take one."""
        if self.token_bias is None:
            return {}
        if token_bias is None:
            return {"token_bias": tf.zeros([size(keys, 0), size(keys, 2)], self.compute_dtype)}
        return {"token_bias": self._weighted(token_bias)}

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                f"{self._described()} cannot be decoded with a cache: an output depends on the "
                "whole sequence. Call the layer on all positions so far instead."
            )

    def _described(self):
        return type(self).__name__

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "max_relative_distance": self.max_relative_distance,
            "token_bias": self.token_bias,
        }

    def get_build_config(self):
        # None, so that a loaded group is not built twice: its MultiHeadAttention builds it.
        return None


def copy_groups(head_groups, dtype):
    """New head groups like these, of another dtype policy, with weights of their own."""
    configs = [{**group.get_config(), "dtype": dtype} for group in head_groups]
    return [type(group).from_config(config) for group, config in zip(head_groups, configs)]


def positive_int(name, value, allowed="a positive integer"):
    """Returns `value`, or raises the error that says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be {allowed}. Received: {name}={value!r}")
    return value
