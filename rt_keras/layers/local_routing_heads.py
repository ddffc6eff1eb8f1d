"""Heads that see a local window and the keys of their cluster."""

import keras
import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.head_group import positive_int
from rt_keras.layers.positioned_heads import (
    add_relative_kernel,
    checked_positions,
    wave_embeddings,
)
from rt_keras.ops.convolution import causal_convolution
from rt_keras.ops.local_routing import local_routing_attention
from rt_keras.ops.local_routing_decode import local_routing_cache, local_routing_step
from rt_keras.ops.local_routing_piece import local_routing_piece

ROUTED_KEYS = ("previous_query", "key")
# Those that are a vector for each distance. Others put more dimensions into queries and keys, which
# clusters have too.
WINDOW_POSITIONS = ("learned", "sinusoidal")


@keras.saving.register_keras_serializable(package="rt_keras")
class LocalRoutingHeads(CentroidHeads):
    """Heads whose queries see the blocks around them and, however far back, keys of their cluster.

    One softmax over both: see `rt_keras.ops.local_routing_attention` for the equation. The window
    of `LocalHeads` is what nearby text takes; the cluster adds the last `window_size` keys whose
    content fits the query. Output i depends on positions up to i alone.

    `routed_key` says what a key is in a cluster. With "previous_query", the key of position j is
    the query of position j - 1: a query that was asked before finds what followed it then.
    Repetitions are continued from the first step of training on, as equal content gives equal
    queries, whatever the weights; queries and keys are sorted by cluster once, as one list; and the
    layer has no more weights than local heads but a scale and a bias for each head. With "key" it
    is the key that the window has too, only keys outside the window are seen in the cluster, and
    training must bring queries and keys together first.

    The queries that are routed are convolved over the `kernel_size` positions up to their own,
    dimension by dimension, and normalised after that:

    ```
    routed_query_i = sum_(s < kernel_size) routed_kernel_s ⊙ query_(i - s)
    ```

    The routed key of a position is the routed query of the one before, so equal contexts of a few
    tokens find each other then, not only equal tokens. The window keeps the queries as they are.
    Training starts with 1 for s = 0 and little noise for the others. Queries before the first
    position and those of padding count as 0, and later ones have no part, causal or not.

    Relative positions are of the window alone. With d = i - j and m the `max_relative_distance`,
    beyond which distances count as m, the window adds a vector r_d to its keys: one that is learnt
    for each distance, or, with `relative_positions` "sinusoidal", r_d = W R_d of a learnt W and
    sines and cosines R_d of the distance. Transformer-XL has these too; its two biases of the
    queries are here the bias of their dense layer.

    The logits of routed keys are those of normalised vectors, times the scale, plus the bias.
    Without `normalize` they are those of the vectors as they are.

    How centroids learn, and the layer's other weights: see `rt_keras.layers.CentroidHeads`.

    Args:
        num_heads: int, heads in the group.
        block_size: int, positions in a block of the window.
        num_clusters: int, centroids of each head. About sqrt(n) of them cost least.
        window_size: int, the most keys that a query sees in a cluster.
        look_back: int, blocks before its own that a query sees, and after it if attention is not
            causal. Defaults to 1.
        routed_key: "previous_query", the default, or "key".
        share_qk: bool, whether queries are their own keys, in the window and, with "key", in the
            cluster. Defaults to False.
        num_probes: int, in how many of its nearest clusters a query attends. Defaults to 1.
        normalize: bool, see above; routing always is by normalised vectors. False, with
            `routed_key` "key", suits a model that was trained with full attention. Defaults to
            True.
        max_relative_distance: int, reach of the relative positions in the window; None, the
            default, for none. The furthest key is block_size * (look_back + 1) - 1 positions away.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        kernel_size: int, over how many positions, its own the last, a routed query is convolved; 1
            for no convolution. Defaults to None, for 4, or for 1 with `routed_key` "key", which
            allows no other.
        relative_positions: "learned", the default, or "sinusoidal"; see above.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, `routed_key` or `relative_positions` is unknown,
            these are not "learned" without a `max_relative_distance`, or `kernel_size` is above 1
            with `routed_key` "key".

    Source: ours. Routing: Roy et al. 2021, section 4.1; keys of the position before: Olsson et al.
    2022, In-context Learning and Induction Heads; the convolution: after the finding of Xiao et al.
    2025, Optimizing Mixture of Block Attention, that a short one over the keys helps routing;
    sinusoidal positions: Dai et al. 2019, Transformer-XL, section 3.3.

    >>> heads = LocalRoutingHeads(2, block_size=4, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 20, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 20, 8])
    """

    groups_queries = True
    strictly_causal = True
    cached_decoding = True
    takes_global_tokens = True

    def __init__(
        self,
        num_heads,
        block_size,
        num_clusters,
        window_size,
        look_back=1,
        routed_key="previous_query",
        share_qk=False,
        num_probes=1,
        normalize=True,
        max_relative_distance=None,
        commitment_weight=1e-4,
        seed=None,
        kernel_size=None,
        relative_positions="learned",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            num_clusters,
            window_size,
            share_qk=share_qk,
            max_relative_distance=max_relative_distance,
            commitment_weight=commitment_weight,
            seed=seed,
            **kwargs,
        )
        self.block_size = positive_int("block_size", block_size)
        if isinstance(look_back, bool) or not isinstance(look_back, int) or look_back < 0:
            raise ValueError(
                f"look_back must be an integer of at least 0. Received: look_back={look_back!r}"
            )
        self.look_back = look_back
        if routed_key not in ROUTED_KEYS:
            raise ValueError(
                f"routed_key must be one of {ROUTED_KEYS}. Received: routed_key={routed_key!r}"
            )
        self.routed_key = routed_key
        self.num_probes = positive_int("num_probes", num_probes)
        if num_probes > num_clusters:
            raise ValueError(
                "num_probes must be at most num_clusters. Received: "
                f"num_probes={num_probes}, num_clusters={num_clusters}"
            )
        self.normalize = bool(normalize)
        if kernel_size is None:
            kernel_size = 4 if self.shift_keys else 1
        self.kernel_size = positive_int("kernel_size", kernel_size, "a positive integer or None")
        if kernel_size > 1 and not self.shift_keys:
            raise ValueError(
                "kernel_size must be 1 unless routed_key is 'previous_query'. Received: "
                f"kernel_size={kernel_size}, routed_key={routed_key!r}"
            )
        self.routed_kernel = None
        self.relative_positions = checked_positions(
            relative_positions, max_relative_distance, WINDOW_POSITIONS
        )

    @property
    def shift_keys(self):
        """Whether the routed key of a position is the query of the one before."""
        return self.routed_key == "previous_query"

    @property
    def clusters_queries_alone(self):
        """Whether routed keys are queries too, of their own position or of the one before."""
        return self.share_qk or self.shift_keys

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.routed_scale, self.routed_bias = (
            self.add_weight(name=name, shape=(self.num_heads,), initializer=initializer)
            for name, initializer in (("routed_scale", "ones"), ("routed_bias", "zeros"))
        )
        if self.kernel_size > 1:
            self.routed_kernel = self.add_weight(
                name="routed_kernel",
                shape=(self.num_heads, self.kernel_size, query_shape[-1]),
                initializer=self._almost_identity,
            )

    def build_relative_positions(self, depth, value_depth):
        if self.relative_positions == "learned":
            super().build_relative_positions(depth, value_depth)
        else:
            self.relative_kernel = add_relative_kernel(self, depth)

    def _tables(self):
        if self.relative_positions == "learned":
            return super()._tables()
        embeddings = wave_embeddings(self.relative_kernel, self.max_relative_distance)
        return {"relative_embeddings": embeddings}

    def _almost_identity(self, shape, dtype=None):
        """A kernel that gives back the queries, and a little of those before them."""
        heads, width, depth = shape
        ones = keras.ops.ones([heads, 1, depth], dtype)
        noise = keras.random.normal(
            [heads, width - 1, depth], stddev=0.1, dtype=dtype, seed=self.seed_generator
        )
        return keras.ops.concatenate([ones, noise], axis=1)

    def attend(self, *, query, key, value, query_mask, key_mask, **options):
        if self.share_qk:
            key, key_mask = query, query_mask
        return local_routing_attention(
            query,
            key,
            value,
            query_mask=query_mask,
            key_mask=key_mask,
            num_probes=self.num_probes,
            shift_keys=self.shift_keys,
            **self._learnt(),
            **self._routing(),
            **options,
        )

    def clustered_vectors(self, *, query, query_mask, **keys):
        query = self.routed_query(query, query_mask)
        return super().clustered_vectors(query=query, query_mask=query_mask, **keys)

    def routed_query(self, query, query_mask=None, before=None):
        """The queries as they are routed, before they are normalised: convolved or as they are.

        Args:
            query: `[batch, heads, length, depth]`.
            query_mask: bool `[batch, length]`, False for padding; or None.
            before: the queries before these, as a cache has them; or None.

        Returns:
            A tensor like `query`.
        """
        if self.routed_kernel is None:
            return query
        kernel = tf.convert_to_tensor(self.routed_kernel)
        return causal_convolution(query, kernel, mask=query_mask, before=before)

    @property
    def reads_pieces(self):
        """Whether routed keys are queries: else a piece is read position by position."""
        return self.shift_keys

    def fill_cache(self, **arguments):
        return local_routing_cache(shift_keys=self.shift_keys, **self._routing(), **arguments)

    def step(self, *, query, key, **arguments):
        return local_routing_step(
            query=query,
            key=query if self.share_qk else key,
            num_probes=self.num_probes,
            **self._learnt(),
            **self._routing(),
            **arguments,
        )

    def piece(self, *, query, key, **arguments):
        key = query if self.share_qk else key
        if not self.shift_keys:
            # What a query sees of a cluster ends where its window begins, which a step knows.
            return super().piece(query=query, key=key, **arguments)
        options = self._routing()
        options.pop("window_size")
        return local_routing_piece(
            query=query,
            key=key,
            num_probes=self.num_probes,
            **self._learnt(),
            **options,
            **arguments,
        )

    def _learnt(self):
        return {
            "routed_scale": tf.convert_to_tensor(self.routed_scale),
            "routed_bias": tf.convert_to_tensor(self.routed_bias),
        }

    def _routing(self):
        """The arguments by which the ops route."""
        kernel = self.routed_kernel
        return {
            "routed_kernel": None if kernel is None else tf.convert_to_tensor(kernel),
            "centroids": tf.convert_to_tensor(self.centroids),
            "load_bias": tf.convert_to_tensor(self.load_bias),
            "block_size": self.block_size,
            "window_size": self.window_size,
            "look_back": self.look_back,
            "normalize": self.normalize,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "look_back": self.look_back,
            "routed_key": self.routed_key,
            "num_probes": self.num_probes,
            "normalize": self.normalize,
            "kernel_size": self.kernel_size,
            "relative_positions": self.relative_positions,
        }
