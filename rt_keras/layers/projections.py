"""The dense layers of attention, which project inputs to heads and merge their outputs."""

import keras
import tensorflow as tf

from rt_keras.layers.short_convolution import ShortConvolution
from rt_keras.ops.blocks import places_of_rows, size

# The vectors that dense layers compute for the heads.
ROLES = ("query", "key", "value")


class Projections:
    """Mixin of `MultiHeadAttention` with its dense layers.

    There may be fewer key/value heads than query heads, and groups with `share_qk` have no keys.
    The numbers of heads follow from `head_groups`.
    """

    def _check_grouped_queries(self, key_heads):
        if self.num_heads % key_heads:
            raise ValueError(
                f"num_key_value_heads must divide the {self.num_heads} heads of head_groups. "
                f"Received: num_key_value_heads={key_heads}"
            )
        shared_by = self.num_heads // key_heads
        for group in self.head_groups:
            name = type(group).__name__
            if group.num_heads % shared_by:
                raise ValueError(
                    f"With num_key_value_heads={key_heads}, {shared_by} consecutive heads share "
                    "their keys, so num_heads of every group must be a multiple of that. "
                    f"Received: num_heads={group.num_heads} of {name}"
                )
            if group.share_qk and shared_by > 1:
                raise ValueError(
                    f"With num_key_value_heads={key_heads}, {shared_by} consecutive heads share "
                    f"their keys. Received: {name} with share_qk=True, whose queries are also keys"
                )

    @property
    def _shared_by(self):
        """The number of consecutive query heads that share a key/value head."""
        return self.num_heads // (self.num_key_value_heads or self.num_heads)

    @property
    def _head_counts(self):
        """The numbers of query heads, key heads and value heads."""
        with_keys = sum(group.num_heads for group in self.head_groups if not group.share_qk)
        return self.num_heads, with_keys // self._shared_by, self.num_heads // self._shared_by

    def build_denses(self, query_shape, value_shape, key_shape):
        """Creates and builds the dense layers.

        Args:
            query_shape, value_shape, key_shape: `(batch, length, features)`.

        Returns:
            The depths of a head's keys and values.
        """
        _, key_heads, value_heads = self._head_counts
        output_dim = query_shape[-1] if self.output_dim is None else self.output_dim
        key_dim = self._head_depth(query_shape[-1])
        value_dim = self.value_dim or key_dim
        self.query_dense = self._head_dense("query", self.num_heads, key_dim, query_shape)
        self.key_dense = None
        if key_heads:
            self.key_dense = self._head_dense("key", key_heads, key_dim, key_shape)
        self.value_dense = self._head_dense("value", value_heads, value_dim, value_shape)
        for role in ROLES:
            setattr(self, f"{role}_convolution", self._short_convolution(role))
        if self.rotary_embedding is not None and not self.rotary_embedding.built:
            self.rotary_embedding.build((*query_shape[:-1], self.num_heads, key_dim))
        merged = (*query_shape[:-1], self.num_heads * value_dim)
        by_heads = (self.num_heads, value_dim, output_dim)
        self.output_dense = self._dense("attention_output", output_dim, merged, by_heads)
        self.head_dense = None
        if self.use_head_dense:
            shape = (query_shape[0], self.num_heads, query_shape[1], value_dim)
            self.head_dense = self._dense("head", value_dim, shape, use_bias=False)
        self.gate_dense = None
        self._gate_units = [
            group.num_heads * group.num_gates(value_dim) for group in self.head_groups
        ]
        if any(self._gate_units):
            units = sum(self._gate_units)
            self.gate_dense = self._dense("gate", units, query_shape, use_bias=False)
        return key_dim, value_dim

    def _head_depth(self, features):
        if self.key_dim is None and features % self.num_heads:
            raise ValueError(
                f"The {self.num_heads} heads must divide the {features} features of the query "
                "unless key_dim is given"
            )
        return self.key_dim or features // self.num_heads

    def _head_dense(self, name, heads, depth, input_shape):
        by_heads = (input_shape[-1], heads, depth)
        return self._dense(name, heads * depth, input_shape, by_heads, (heads, depth))

    def _dense(self, name, units, input_shape, kernel_shape=None, bias_shape=(-1,), use_bias=None):
        """Returns a dense layer, built, whose constraints apply to weights of the given shapes."""
        kernel_shape = kernel_shape or (input_shape[-1], units)
        layer = keras.layers.Dense(
            units,
            use_bias=self.use_bias if use_bias is None else use_bias,
            # Copies, since one seeded initializer would give every layer the same values.
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=_by_heads(self.kernel_constraint, kernel_shape),
            bias_constraint=_by_heads(self.bias_constraint, bias_shape),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer

    def _short_convolution(self, role):
        """Returns the convolution of queries, keys or values, built, or None without one."""
        dense = getattr(self, f"{role}_dense")
        if self.conv_kernel_size is None or dense is None:
            return None
        layer = ShortConvolution(
            self.conv_kernel_size, dtype=self.dtype_policy, name=f"{role}_convolution"
        )
        layer.build((None, None, dense.units))
        return layer

    def _convolution_of(self, role):
        return getattr(self, f"{role}_convolution")

    def _convolve_with(self, query_mask, key_mask, documents=None, **_):
        """Returns the function that convolves queries, keys or values of whole sequences."""
        masks = {"query": query_mask, "key": key_mask, "value": key_mask}
        return lambda role, x: self._convolution_of(role)(x, mask=masks[role], documents=documents)

    def _project(self, query, key, value, start=0, convolve=None):
        """Computes the queries, keys and values of all heads; None for inputs that are None.

        Args:
            query, key, value: `[batch, length, features]`, or None.
            start: int scalar or `[batch]`, the position of the first queries and keys; or their
                positions, `[batch, length]`. Defaults to 0.
            convolve: function of a role and its vectors `[batch, length, heads * depth]`; returns
                them convolved. Used only with `conv_kernel_size`. Defaults to None.
        """
        query_heads, key_heads, value_heads = self._head_counts

        def heads_of(role, dense, x, count):
            if x is None or not count:
                return None
            x = dense(x)
            x = _split_heads(x if self.conv_kernel_size is None else convolve(role, x), count)
            return _heads_first(x if role == "value" else self._placed(x, start, role))

        return (
            heads_of("query", self.query_dense, query, query_heads),
            heads_of("key", self.key_dense, key, key_heads),
            heads_of("value", self.value_dense, value, value_heads),
        )

    def _placed(self, x, start, role):
        """Returns queries or keys for the heads; a subclass may treat the two differently."""
        rotated = self._rotated(x, start)
        is_rotated = [
            group.takes_rotary_embedding
            for group in self.head_groups
            if role == "query" or not group.share_qk
            for _ in range(group.num_heads // (1 if role == "query" else self._shared_by))
        ]
        if rotated is x or all(is_rotated):
            return rotated
        return tf.where(tf.constant(is_rotated)[:, None], rotated, x)

    def _rotated(self, x, start):
        """Rotates queries or keys `[batch, length, heads, depth]` by their positions."""
        if self.rotary_embedding is None:
            return x
        positions = tf.convert_to_tensor(start)
        if positions.shape.rank < 2:
            positions = places_of_rows(positions, tf.range(size(x, 1)))
        return tf.cast(self._turned(x, positions), x.dtype)

    def _turned(self, x, positions):
        """Returns vectors `[batch, length, heads, depth]` rotated at the given positions."""
        return self.rotary_embedding(x, positions=positions)

    def rotated_at(self, x, start, position):
        """Returns queries or keys rotated at one position instead of at their own ones.

        Args:
            x: `[batch, heads, length, depth]`, rotated by the rotary embedding.
            start: int scalar or `[batch]`, position of the first vectors.
            position: int, the new position of all vectors.
        """
        turn = position - places_of_rows(start, tf.range(size(x, 2)))
        # Exchanges heads and length, and back.
        return tf.cast(_heads_first(self._turned(_heads_first(x), turn)), x.dtype)

    def _merge(self, outputs):
        """Computes the output of the layer from the outputs of the groups."""
        output = tf.concat(outputs, axis=1)
        if self.head_dense is not None:
            output = self.head_dense(output)
        return self.output_dense(_join_heads(output))

    def _hand_out(self, queries, keys, values):
        """Yields each group with the (query, value, key) of its heads."""
        head = value_head = key_head = 0
        for group in self.head_groups:
            count = group.num_heads // self._shared_by
            query = _part(queries, 1, head, group.num_heads)
            value = _part(values, 1, value_head, count)
            key = None
            if not group.share_qk:
                key = _part(keys, 1, key_head, count)
                key_head += count
            yield group, (query, value, key)
            head, value_head = head + group.num_heads, value_head + count

    def _hand_out_gates(self, x):
        """Yields the keyword arguments of each group: its gates, or none.

        Args:
            x: `[batch, length, features]`, the input of the queries.
        """
        gates, first = None if self.gate_dense is None else self.gate_dense(x), 0
        for group, units in zip(self.head_groups, self._gate_units):
            if not units:
                yield {}
                continue
            of_group = _part(gates, 2, first, units)
            yield {"gates": _heads_first(_split_heads(of_group, group.num_heads))}
            first += units


def _by_heads(constraint, shape):
    return None if constraint is None else HeadConstraint(constraint, shape)


def _part(x, axis, first, count):
    """Returns `count` entries of an axis; `x` itself if these are all, without an operation."""
    if x.shape[axis] == count:
        return x
    return x[(slice(None),) * axis + (slice(first, first + count),)]


def _split_heads(x, heads):
    """Reshapes `[batch, length, heads * depth]` to `[batch, length, heads, depth]`."""
    return tf.reshape(x, [size(x, 0), size(x, 1), heads, x.shape[-1] // heads])


def _heads_first(x):
    """Transposes `[batch, length, heads, depth]` to `[batch, heads, length, depth]`."""
    return tf.transpose(x, [0, 2, 1, 3])


def _join_heads(x):
    """Reshapes `[batch, heads, length, depth]` to `[batch, length, heads * depth]`."""
    shape = [size(x, 0), size(x, 2), x.shape[1] * x.shape[3]]
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), shape)


class HeadConstraint(keras.constraints.Constraint):
    """Applies a constraint to weights after splitting the axes of heads and depth.

    The dense layers of attention here store `[features, heads * depth]`. Those of
    `keras.layers.MultiHeadAttention` store `[features, heads, depth]`, and the axes of a constraint
    refer to that shape.

    Args:
        constraint: `keras.constraints.Constraint`.
        shape: tuple of ints, the shape to which the constraint applies. One entry may be -1.

    >>> weights = HeadConstraint(keras.constraints.UnitNorm(axis=0), (2, -1))(keras.ops.ones([6]))
    >>> [round(float(x), 2) for x in weights]
    [0.71, 0.71, 0.71, 0.71, 0.71, 0.71]
    """

    def __init__(self, constraint, shape):
        self.constraint = constraint
        self.shape = shape

    def __call__(self, w):
        return keras.ops.reshape(self.constraint(keras.ops.reshape(w, self.shape)), w.shape)

    def get_config(self):
        return {"constraint": keras.constraints.serialize(self.constraint), "shape": self.shape}

    @classmethod
    def from_config(cls, config):
        return cls(keras.constraints.deserialize(config["constraint"]), tuple(config["shape"]))
