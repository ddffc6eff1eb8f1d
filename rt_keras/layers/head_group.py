"""What all head groups are: heads of one kind inside `MultiHeadAttention`."""

import keras

TOKEN_BIASES = (None, "fixed", "trainable")


class HeadGroup(keras.layers.Layer):
    """So many heads of one kind, with their state; subclasses say which keys a query sees.

    `MultiHeadAttention` projects its inputs once and hands each group its heads. A group is called
    with `(query, value, key, ...)`, each `[batch, heads, length, depth]`, and returns
    `[batch, heads, length, value_depth]`. A subclass writes `attend`, one call of an op.

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
            weight = keras.ops.convert_to_tensor(self.token_bias_weight)
            options["token_bias"] = weight * keras.ops.cast(token_bias, weight.dtype)
        for name in ("relative_embeddings", "relative_values"):
            if getattr(self, name) is not None:
                options[name] = keras.ops.convert_to_tensor(getattr(self, name))
        return self.attend(query, key, value, options)

    def attend(self, query, key, value, options):
        """Attention of these heads; `options` are the keyword arguments that all ops share."""
        raise NotImplementedError

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
