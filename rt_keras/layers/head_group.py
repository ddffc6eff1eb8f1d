"""What all head groups are: heads of one kind inside `MultiHeadAttention`."""

import keras


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
        **kwargs: those of `keras.layers.Layer`.
    """

    # Whether queries are their own keys: `key` is then None.
    share_qk = False
    # Whether any attention_mask of [batch, queries, keys] will do.
    takes_attention_mask = False

    def __init__(self, num_heads, max_relative_distance=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int("num_heads", num_heads)
        if max_relative_distance is not None:
            positive_int("max_relative_distance", max_relative_distance)
        self.max_relative_distance = max_relative_distance
        self.relative_embeddings = None

    @property
    def state_dtype(self):
        """What centroids and statistics are kept in: float32 under every policy but float64."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def build(self, query_shape, value_shape=None, key_shape=None):
        if self.max_relative_distance is not None:
            self.relative_embeddings = self.add_weight(
                name="relative_embeddings",
                shape=(self.num_heads, 2 * self.max_relative_distance + 1, query_shape[-1]),
                initializer=keras.initializers.RandomNormal(stddev=query_shape[-1] ** -0.5),
            )
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        key_mask=None,
        attention_mask=None,
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
        if self.relative_embeddings is not None:
            options["relative_embeddings"] = keras.ops.convert_to_tensor(self.relative_embeddings)
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
