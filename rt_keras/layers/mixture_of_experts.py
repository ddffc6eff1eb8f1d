"""A feed-forward network of several experts, of which each position uses one or two."""

import keras
import tensorflow as tf

from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import activation_function
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.same_shape import SameShape
from rt_keras.ops.blocks import size
from rt_keras.ops.nearest_tiles import staircase
from rt_keras.ops.ranks import sort_by_cluster

# Rows of a block: positions of one expert that are computed together.
BLOCK_SIZE = 64


@keras.saving.register_keras_serializable(package="rt_keras")
class MixtureOfExperts(SameShape):
    """Feed-forward networks of which each position uses the `experts_per_token` best ones.

    ```
    p = softmax(x W_r)
    output = sum over the best experts e of g_e FeedForward_e(x)
    ```

    where g = p if a position uses one expert. If it uses more, g is their p, scaled to a sum of 1.
    The layer has `num_experts` times the weights of a `FeedForward` at `experts_per_token` times
    its cost.

    In training, an expert processes at most `capacity_factor` times its equal share of the
    positions of a batch: first choices before second choices, in the order of the batch. A choice
    beyond the capacity adds nothing to the output. In inference there is no limit, so the output of
    a position does not depend on other positions, and decoding with a cache equals one pass. A
    load-balancing loss keeps the load of the experts even:

    ```
    loss = balance_weight · E sum_e f_e mean(p_e)
    ```

    where f_e is the fraction of positions whose first choice is e.

    Args:
        num_experts: int E, number of experts.
        intermediate_dim: int, width of an expert between its two layers.
        experts_per_token: int, number of experts per position. Defaults to 2.
        capacity_factor: float or None, at least 1. None for no limit. Defaults to 1.25.
        balance_weight: float, weight of the loss. Defaults to 0.01.
        activation, dropout, use_bias, kernel_initializer: see `FeedForward`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, length, width]`.
        mask: bool `[batch, length]`, False for padding, which uses no expert; or None.
        training: bool, whether to apply dropout, the capacity and the loss.

    Returns:
        `[batch, length, width]`.

    Attributes:
        expert_shares: weight `[num_experts + 1]`, the fraction of the choices that each expert
            processed in the last training step, followed by the fraction beyond the capacity.

    Raises:
        ValueError: if a number is out of range or the activation is unknown.

    Source: Shazeer et al. 2017, Outrageously Large Neural Networks; capacity and loss: Fedus et al.
    2022, Switch Transformers, section 2.2, and Lepikhin et al. 2020, GShard, section 2.2.

    >>> layer = MixtureOfExperts(num_experts=4, intermediate_dim=32)
    >>> layer(keras.random.normal([2, 5, 16])).shape
    TensorShape([2, 5, 16])
    """

    def __init__(
        self,
        num_experts,
        intermediate_dim,
        experts_per_token=2,
        capacity_factor=1.25,
        balance_weight=0.01,
        activation="geglu",
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_experts = positive_int("num_experts", num_experts)
        self.intermediate_dim = positive_int("intermediate_dim", intermediate_dim)
        self.experts_per_token = positive_int("experts_per_token", experts_per_token)
        if experts_per_token > num_experts:
            raise ValueError(
                f"experts_per_token must be at most num_experts, {num_experts}. Received: "
                f"experts_per_token={experts_per_token}"
            )
        if capacity_factor is not None and capacity_factor < 1:
            raise ValueError(
                "capacity_factor must be at least 1, or None for no limit. Received: "
                f"capacity_factor={capacity_factor}"
            )
        if balance_weight < 0:
            raise ValueError(
                f"balance_weight must be at least 0. Received: balance_weight={balance_weight}"
            )
        self.capacity_factor = capacity_factor
        self.balance_weight = balance_weight
        self.activation = activation
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated, self._activation = activation_function(activation)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width, inner = input_shape[-1], self.intermediate_dim
        self.router_kernel = self.add_weight(
            name="router_kernel",
            shape=(width, self.num_experts),
            initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
        )
        sizes = {"inner": (width, 2 * inner if self.gated else inner), "output": (inner, width)}
        for name, shape in sizes.items():
            kernel = self.add_weight(
                name=f"{name}_kernel",
                shape=(self.num_experts, *shape),
                initializer=self._initialize_each,
            )
            bias = None
            if self.use_bias:
                shape = (self.num_experts, shape[1])
                bias = self.add_weight(name=f"{name}_bias", shape=shape, initializer="zeros")
            setattr(self, f"{name}_kernel", kernel)
            setattr(self, f"{name}_bias", bias)
        self.add_statistic("expert_shares", self.num_experts + 1)
        self.built = True

    def _initialize_each(self, shape, dtype=None):
        """Initializes the kernel of each expert like that of a dense layer."""
        return keras.ops.stack(
            [self.kernel_initializer.clone()(shape[1:], dtype=dtype) for _ in range(shape[0])]
        )

    def call(self, inputs, mask=None, training=None):
        batch, length, width = size(inputs, 0), size(inputs, 1), inputs.shape[2]
        count = batch * length
        x = tf.reshape(inputs, [count, width])
        real = tf.ones([count], tf.bool)
        if mask is not None:
            real = tf.reshape(tf.cast(mask, tf.bool), [count])
        shares = self._shares(x)
        gates, experts = tf.math.top_k(shares, self.experts_per_token)
        if self.experts_per_token > 1:
            gates /= tf.reduce_sum(gates, axis=1, keepdims=True)
        if training:
            self._add_balance_loss(shares, experts[:, 0], real)
        # First choices of all positions, then second choices. Padding is assigned to an
        # additional expert after the last one.
        experts = tf.where(real, tf.transpose(experts), self.num_experts)
        experts = tf.reshape(experts, [1, 1, 1, self.experts_per_token * count])
        order, place, starts = sort_by_cluster(experts, self.num_experts)
        gates = tf.reshape(tf.transpose(gates), [-1])
        taken = self._taken(experts, place, starts, count, training)
        gates = tf.where(taken, gates, tf.zeros_like(gates))
        x = tf.tile(x, [self.experts_per_token, 1])[None, None]
        y = self._through_experts(x, experts[:, :, 0], order, place, training)[0, 0]
        y *= tf.cast(gates, y.dtype)[:, None]
        y = tf.reduce_sum(tf.reshape(y, [self.experts_per_token, count, width]), axis=0)
        return tf.reshape(y, [batch, length, width])

    def _shares(self, x):
        """Returns the probabilities of all experts, at least float32: rounding changes choices."""
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        kernel = tf.cast(self.router_kernel, dtype)
        return tf.nn.softmax(tf.matmul(tf.cast(x, dtype), kernel))

    def _taken(self, experts, place, starts, count, training):
        """Returns the choices within the capacity, bool `[choices]`. Others have no effect."""
        experts, place, starts = experts[0, 0, 0], place[0, 0], starts[0, 0]
        taken = experts < self.num_experts
        if training and self.capacity_factor is not None:
            share = self.experts_per_token * count / self.num_experts
            capacity = tf.math.ceil(self.capacity_factor * tf.cast(share, tf.float32))
            number = place - tf.gather(starts, experts)
            taken &= number < tf.cast(capacity, tf.int32)
        if training:
            self._note_shares(experts, taken)
        return taken

    def _note_shares(self, experts, taken):
        lost = (experts < self.num_experts) & ~taken
        column = tf.where(lost, self.num_experts, tf.where(taken, experts, -1))
        found = tf.reduce_sum(tf.one_hot(column, self.num_experts + 1), axis=0)
        self.expert_shares.assign(found / tf.maximum(tf.reduce_sum(found), 1))

    def _add_balance_loss(self, shares, first, real):
        weight = tf.cast(real, shares.dtype)[:, None]
        total = tf.maximum(tf.reduce_sum(weight), 1)
        chosen = tf.reduce_sum(tf.one_hot(first, self.num_experts, dtype=shares.dtype) * weight, 0)
        mean = tf.reduce_sum(shares * weight, axis=0)
        loss = self.num_experts * tf.reduce_sum(chosen * mean) / tf.square(total)
        self.add_loss(tf.cast(self.balance_weight * loss, keras.config.floatx()))

    def _through_experts(self, x, experts, order, place, training):
        """Computes `[1, 1, choices, width]`, the output of the expert of each choice.

        Choices are sorted by expert, and tiles combine blocks of choices with experts. Thus no
        expert computes more positions than have chosen it.
        """
        column = tf.gather(tf.minimum(experts, self.num_experts - 1), order, batch_dims=2)
        stairs = staircase(column, order, place, BLOCK_SIZE, self.num_experts, 1)
        of_tile = stairs.column[0, 0]
        x = stairs.of_entries(x)[0, 0]
        x = self._activation(self._dense(x, self.inner_kernel, self.inner_bias, of_tile))
        x = self.dropout_layer(x, training=training)
        x = self._dense(x, self.output_kernel, self.output_bias, of_tile)
        # Rows that another tile computes must also get no gradient.
        x = tf.where(stairs.here[0, 0][..., None], x, tf.zeros_like(x))
        return stairs.of_rows(x[None, None])

    def _dense(self, x, kernel, bias, of_tile):
        """Applies the dense layer of each tile's expert to `[tiles, rows, width]`."""
        x = tf.matmul(x, tf.gather(tf.cast(kernel, x.dtype), of_tile))
        return x if bias is None else x + tf.gather(tf.cast(bias, x.dtype), of_tile)[:, None]


def expert_use(model):
    """Returns the load of a model's experts in the last training step.

    Args:
        model: a Keras model.

    Returns:
        For the i-th `MixtureOfExperts` of the model, `experts_i_busiest`, the fraction of all
        choices that its busiest expert processed, and `experts_i_full`, the fraction beyond the
        capacity.
    """
    found = {}
    for i, layer in enumerate(layers_inside(model, MixtureOfExperts)):
        *taken, lost = layer.expert_shares.numpy().tolist()
        found |= {f"experts_{i}_busiest": max(taken), f"experts_{i}_full": lost}
    return found
