"""The set of the keys in a query's cluster."""

import functools

import keras
import tensorflow as tf

from rt_keras import ops
from rt_keras.layers.abilities import Abilities
from rt_keras.layers.centroids import Centroids
from rt_keras.layers.head_options import one_of, positive_int, positive_int_or_none, true_or_false
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.key_sets.window import window_among
from rt_keras.layers.relative_positions import make_relative_positions
from rt_keras.ops.blocks import size
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.nearest.assign import ROUTED_KEYS, Assignment
from rt_keras.ops.nearest.attention import nearest_attention
from rt_keras.ops.nearest.rings import nearest_cache, nearest_chunk, nearest_step


@keras.saving.register_keras_serializable(package="rt_keras")
class Cluster(KeySet):
    """The last keys of a query's cluster, found by online k-means, at any distance.

    See `rt_keras.ops.nearest_attention` and, for `assignment` "balanced",
    `rt_keras.ops.balanced_attention` for the equations. `rt_keras.layers.RoutingHeads` and
    `rt_keras.layers.LocalRoutingHeads` explain the arguments, and
    `rt_keras.layers.centroids.Centroids` how centroids learn.

    With `routed_key` "key", the set leaves out the keys of a `Window` in the same union.

    Args:
        num_clusters: int, number of clusters per head.
        window_size: int, maximum number of keys of its cluster that a query attends to.
        routed_key: string, "previous_query" or "key", the vector that serves as the key of a
            position. Defaults to "previous_query".
        num_probes: int, number of nearest clusters that a query attends to. Defaults to 1.
        use_query_key_norm: bool, whether logits use normalized queries and keys. Defaults to True.
        commitment_weight: float, weight of the commitment loss. Defaults to 0.0001.
        seed: int or None, seed of the initial centroids. Defaults to None.
        kernel_size: int or None, number of positions that are convolved into a routed query. None
            for 4, or for 1 with `routed_key` "key". Defaults to None.
        assignment: string, "nearest" or "balanced", the assignment of positions to clusters.
            Defaults to "nearest".
        max_relative_distance: int or None, largest distance of the relative positions. None
            disables them. Defaults to None.
        scaled: bool, whether heads learn a scale and a bias of the logits. Defaults to True.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a value is out of range, or values are incompatible.

    Source: Roy et al. 2021, section 4.1.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), Cluster(4, window_size=4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    state_name = "routed"
    # Block size and look-back of the window of the union whose keys are left out.
    window = None

    def __init__(
        self,
        num_clusters,
        window_size,
        routed_key="previous_query",
        num_probes=1,
        use_query_key_norm=True,
        commitment_weight=1e-4,
        seed=None,
        kernel_size=None,
        assignment="nearest",
        max_relative_distance=None,
        scaled=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.window_size = positive_int("window_size", window_size)
        self.routed_key = one_of("routed_key", routed_key, *ROUTED_KEYS)
        self.num_probes = positive_int("num_probes", num_probes)
        self.use_query_key_norm = true_or_false("use_query_key_norm", use_query_key_norm)
        self.commitment_weight = commitment_weight
        self.seed = seed
        self.kernel_size = positive_int_or_none("kernel_size", kernel_size)
        if kernel_size is None:
            self.kernel_size = 4 if self.shifts_keys else 1
        self.assignment = one_of("assignment", assignment, "nearest", "balanced")
        self.max_relative_distance = max_relative_distance
        self.scaled = true_or_false("scaled", scaled)
        self._check_combinations()
        self.positions = make_relative_positions(max_relative_distance)
        self.centroids = Centroids(num_clusters, commitment_weight, seed, name="centroids")

    def _check_combinations(self):
        nearest = self.assignment == "nearest"
        if self.num_probes > (self.num_clusters if nearest else 1):
            raise ValueError(
                "num_probes must be at most num_clusters with assignment 'nearest', and 1 with "
                f"'balanced'. Received: num_probes={self.num_probes}, "
                f"num_clusters={self.num_clusters}, assignment={self.assignment!r}"
            )
        if not self.use_query_key_norm and not nearest:
            raise ValueError(
                "use_query_key_norm must be True unless assignment is 'nearest'. Received: "
                f"assignment={self.assignment!r}"
            )
        if not nearest and self.shifts_keys:
            raise ValueError(
                "routed_key must be 'key' unless assignment is 'nearest'. Received: "
                f"assignment={self.assignment!r}, routed_key={self.routed_key!r}"
            )
        if self.kernel_size > 1 and not self.shifts_keys:
            raise ValueError(
                "kernel_size must be 1 unless routed_key is 'previous_query'. Received: "
                f"kernel_size={self.kernel_size}, routed_key={self.routed_key!r}"
            )

    @property
    def shifts_keys(self):
        """True if the routed key of a position is the query of the previous position."""
        return self.routed_key == "previous_query"

    @property
    def abilities(self):
        nearest = self.assignment == "nearest"
        return Abilities(
            strictly_causal=nearest,
            cached=nearest,
            # Only a step leaves out the keys of a window.
            chunks=nearest and self.window is None,
            documents=nearest and self.window is None,
            grouped=nearest,
            joined=nearest,
            global_tokens=nearest,
            normalized=self.use_query_key_norm,
        )

    def join(self, others, share_qk):
        # With routed keys of other positions, the centroids learn from queries alone.
        self.sources = 1 if share_qk or self.shifts_keys else 2
        window = None if self.shifts_keys else window_among(others)
        if window is None:
            return
        if window.sliding_window is not None:
            raise ValueError(
                "sliding_window must be None with a Cluster of routed_key='key', which leaves "
                f"out whole blocks. Received: sliding_window={window.sliding_window}"
            )
        self.window = window.block_size, window.look_back
        self.furthest_left_out = window.furthest

    def keys_read(self, causal):
        return self.num_probes * self.window_size if self.assignment == "nearest" else None

    def build(self, query_shape, value_shape):
        batch, heads, length, depth = query_shape
        with_centroids = value_shape[1] if self.abilities.grouped else heads
        self.centroids.build((batch, with_centroids, length, depth), self.sources)
        self.routed_scale = self.routed_bias = self.routed_kernel = None
        if self.scaled:
            self.routed_scale = self.add_weight((heads,), "ones", name="routed_scale")
            self.routed_bias = self.add_weight((heads,), "zeros", name="routed_bias")
        if self.kernel_size > 1:
            self.routed_kernel = self.add_weight(
                (heads, self.kernel_size, depth),
                functools.partial(almost_identity, seed=self.centroids.seed_generator),
                name="routed_kernel",
            )
        super().build(query_shape, value_shape)

    def attend(self, inputs, return_logsumexp):
        if self.assignment == "balanced":
            return self._attend_balanced(inputs)
        block_size, look_back = self.window or (None, 1)
        result = nearest_attention(
            self.routed_query(inputs),
            None if self.shifts_keys else inputs.key,
            inputs.value,
            window_size=self.window_size,
            routed_key=self.routed_key,
            block_size=block_size,
            look_back=look_back,
            return_logsumexp=return_logsumexp,
            relative_embeddings=self.position_table(),
            **self.routing()._asdict(),
            **inputs.sequence_options(shared=True),
        )
        return self.add_bias(result) if return_logsumexp else result

    def _attend_balanced(self, inputs):
        return ops.balanced_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            self.centroids.centroids,
            window_size=self.window_size,
            relative_embeddings=self.position_table(),
            **inputs.sequence_options(shared=True),
        )

    def routed_query(self, inputs, last_queries=None):
        """Returns the queries used for routing, before normalization: convolved or unchanged.

        Args:
            inputs: `AttentionInputs`.
            last_queries: `[batch, heads, kernel_size - 1, depth]`, the queries before; or None.
        """
        if self.kernel_size == 1:
            return inputs.query
        return causal_convolution(
            inputs.query,
            tf.convert_to_tensor(self.routed_kernel),
            mask=inputs.query_mask,
            before=last_queries,
            documents=inputs.documents,
        )

    def prefill_state(self, inputs, max_length):
        # Members in the window become visible in the cluster after they leave the window.
        block_size, look_back = self.window or (0, 0)
        state = nearest_cache(
            self.routed_query(inputs) if self.shifts_keys else inputs.keys,
            inputs.value,
            count=inputs.count,
            window_size=self.window_size + (look_back + 1) * block_size,
            max_length=max_length,
            routed_key=self.routed_key,
            keep_positions=self.window is not None or self.max_relative_distance is not None,
            assignment=self.routing(),
        )
        if self.kernel_size > 1:
            state["last_queries"] = last_vectors(inputs.query, inputs.count, self.kernel_size - 1)
        return state

    def attend_chunk(self, inputs, state, return_logsumexp):
        result, after = nearest_chunk(
            self.routed_query(inputs, state.get("last_queries")),
            inputs.key,
            inputs.value,
            state,
            inputs.position,
            self.routing(),
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
            **inputs.chunk_options(),
        )
        result = self.add_bias(result) if return_logsumexp else result
        return result, self._with_last_queries(after, inputs, state)

    def attend_step(self, inputs, state, return_logsumexp):
        border = None
        if self.window is not None:
            block_size, look_back = self.window
            border = (inputs.position // block_size - look_back) * block_size
        result, after = nearest_step(
            self.routed_query(inputs, state.get("last_queries")),
            inputs.key,
            inputs.value,
            state,
            inputs.position,
            self.routing(),
            before=border,
            window_size=self.window_size,
            count=inputs.count,
            relative_embeddings=self.position_table(),
            return_logsumexp=return_logsumexp,
        )
        result = self.add_bias(result) if return_logsumexp else result
        return result, self._with_last_queries(after, inputs, state)

    def _with_last_queries(self, after, inputs, state):
        """Adds the last queries, which the convolution of the next queries needs, to the state."""
        if self.kernel_size == 1:
            return after
        count = size(inputs.query, 2) if inputs.count is None else inputs.count
        before = state["last_queries"]
        last = last_vectors(inputs.query, count, self.kernel_size - 1, before=before)
        return {**after, "last_queries": last}

    def routing(self):
        """Returns the `Assignment` of the ops; see `rt_keras.ops.nearest_attention`."""
        return Assignment(
            tf.convert_to_tensor(self.centroids.centroids),
            self.num_probes,
            tf.convert_to_tensor(self.centroids.load_bias),
            tf.convert_to_tensor(self.routed_scale) if self.scaled else None,
            self.use_query_key_norm,
        )

    def add_bias(self, result):
        """Adds the bias to the logsumexp. Without other sets, it would have no effect."""
        return add_bias(result, self.routed_bias) if self.scaled else result

    def clustered_vectors(self, inputs):
        queries = self.routed_query(inputs), inputs.query_mask
        if self.sources == 1:
            return {"queries": queries}
        return {"queries": queries, "keys": (inputs.key, inputs.key_mask)}

    def describe(self):
        return f"{super().describe()} of assignment {self.assignment!r}"

    def get_config(self):
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "window_size": self.window_size,
            "routed_key": self.routed_key,
            "num_probes": self.num_probes,
            "use_query_key_norm": self.use_query_key_norm,
            "commitment_weight": self.commitment_weight,
            "seed": self.seed,
            "kernel_size": self.kernel_size,
            "assignment": self.assignment,
            "max_relative_distance": self.max_relative_distance,
            "scaled": self.scaled,
        }


def add_bias(result, bias):
    """Adds a bias of each head to the logits, given an output and its logsumexp.

    Args:
        result: pair of `[batch, heads, length, value_depth]` and `[batch, heads, length]`.
        bias: `[heads]`.

    Returns:
        The output and the new logsumexp.
    """
    output, logsumexp = result
    return output, logsumexp + tf.cast(bias, logsumexp.dtype)[:, None]


def almost_identity(shape, dtype=None, seed=None):
    """Initializes a kernel close to the identity, with noise for the previous positions."""
    heads, width, depth = shape
    ones = keras.ops.ones([heads, 1, depth], dtype)
    noise = keras.random.normal([heads, width - 1, depth], stddev=0.1, dtype=dtype, seed=seed)
    return keras.ops.concatenate([ones, noise], axis=1)  # [heads, width, depth]
