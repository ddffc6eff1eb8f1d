"""The set of the keys in a query's cluster."""

import dataclasses
import functools

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, key, one_of
from rt_keras.layers.key_sets.by_ops import ByOps
from rt_keras.layers.key_sets.key_set import in_union
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.blocks import size
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.nearest.assign import ROUTED_KEYS
from rt_keras.ops.nearest.attention import nearest_attention
from rt_keras.ops.nearest.rings import nearest_cache, nearest_chunk, nearest_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Cluster(ByOps):
    """The last keys of a query's cluster, found by online k-means, at any distance.

    See `rt_keras.ops.nearest_attention` and, for `assignment` "balanced",
    `rt_keras.ops.balanced_attention` for the equations. The fields are arguments of
    `rt_keras.layers.RoutingHeads` and `rt_keras.layers.LocalRoutingHeads`; the latter explains
    them. See `rt_keras.layers.CentroidHeads` for how centroids learn.

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
        window: the `Window` whose keys are left out; set by the union.

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

    name = "routed"
    chunk_op, step_op = map(staticmethod, (nearest_chunk, nearest_step))

    num_clusters: int = key(dataclasses.MISSING, "clusters per head", AT_LEAST_1)
    window_size: int = key(
        dataclasses.MISSING, "members of its cluster that a query attends to", AT_LEAST_1
    )
    routed_key: str = key("previous_query", "vector used as a position's key", one_of(*ROUTED_KEYS))
    num_probes: int = key(1, "nearest clusters that a query attends to", AT_LEAST_1)
    use_query_key_norm: bool = key(True, "whether logits use normalized queries and keys")
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)
    seed: int | None = None
    kernel_size: int | None = key(
        None, "positions per routed query; null for 4, or 1 with routed_key key", AT_LEAST_1
    )
    assignment: str = key("nearest", "assignment to clusters", one_of("nearest", "balanced"))
    max_relative_distance: int | None = key(
        None, "largest distance of the relative positions, null for none", AT_LEAST_1
    )
    # Whether heads learn a scale and a bias of the logits.
    scaled: bool = True
    # The window whose keys are left out.
    window: Window | None = in_union()

    def check(self):
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
        if self.kernel_size is None:
            object.__setattr__(self, "kernel_size", 4 if self.shifts_keys else 1)
        if self.kernel_size > 1 and not self.shifts_keys:
            raise ValueError(
                "kernel_size must be 1 unless routed_key is 'previous_query'. Received: "
                f"kernel_size={self.kernel_size}, routed_key={self.routed_key!r}"
            )

    @property
    def shifts_keys(self):
        """Returns whether the routed key of a position is the query of the previous position."""
        return self.routed_key == "previous_query"

    # Routed keys are then queries.
    clusters_queries_alone = shifts_keys

    @property
    def has_query_key_norm(self):
        """Returns whether logits use layer-normalized queries and keys."""
        return self.use_query_key_norm

    @property
    def strictly_causal(self):
        """Returns whether the assignment is "nearest". With "balanced", later positions matter."""
        return self.assignment == "nearest"

    cached_decoding = groups_queries = joins = strictly_causal

    @property
    def separates_documents(self):
        """Returns whether keys are found by their clusters alone."""
        return self.strictly_causal and self.window is None

    @property
    def reads_chunks(self):
        """Returns whether the set can be merged and leaves out no window, which only a step can."""
        return self.joins and self.window is None

    def beside(self, others):
        window = None if self.shifts_keys else window_among(others)
        if window is not None and window.sliding_window is not None:
            raise ValueError(
                "sliding_window must be None with a Cluster of routed_key='key', which leaves "
                f"out whole blocks. Received: sliding_window={window.sliding_window}"
            )
        return dataclasses.replace(self, window=window)

    def keys_read(self, causal):
        return self.num_probes * self.window_size if self.assignment == "nearest" else None

    def build(self, heads, depth, value_depth):
        heads.build_centroids(depth)
        if self.scaled:
            heads.add_head_weight("routed_scale", initializer="ones")
            heads.add_head_weight("routed_bias")
        add_routed_kernel(heads, self.kernel_size, depth, heads.seed_generator)

    def attend(self, heads, chunk, joins):
        # Queries that are also keys are sorted only once if keys have no separate mask.
        options = {**chunk.of_sequence, "key_mask": chunk.key_mask, "window_size": self.window_size}
        if self.assignment == "balanced":
            inputs = chunk.query, chunk.key, chunk.value, heads.centroids
            table = self.relative_embeddings(heads)
            return balanced_attention(*inputs, relative_embeddings=table, **options)
        window = self.window
        found = nearest_attention(
            self.routed_query(heads, chunk.query, chunk.query_mask, documents=chunk.documents),
            None if self.shifts_keys else chunk.key,
            chunk.value,
            routed_key=self.routed_key,
            block_size=None if window is None else window.block_size,
            look_back=1 if window is None else window.look_back,
            **self.op_options(heads, joins),
            **options,
        )
        return self._biased(heads, found, joins)

    def routed_query(self, heads, query, query_mask=None, state=None, documents=None):
        """Returns the queries used for routing, before normalization: convolved or unchanged.

        Args:
            heads: the head group.
            query: `[batch, heads, length, depth]`.
            query_mask: bool `[batch, length]`, False for padding; or None.
            state: the state of the set before these queries; or None.
            documents: int `[batch, length]`, documents in a row; or None.

        Returns:
            A tensor like `query`.
        """
        if self.kernel_size == 1:
            return query
        kernel, before = tf.convert_to_tensor(heads.routed_kernel), (state or {}).get("asked")
        options = {"mask": query_mask, "before": before, "documents": documents}
        return causal_convolution(query, kernel, **options)

    def prefill_state(self, heads, chunk, max_length):
        window = self.window
        # Members in the window become visible in the cluster after they leave the window.
        more = 0 if window is None else (window.look_back + 1) * window.block_size
        routed = self.routed_query(heads, chunk.query)
        state = nearest_cache(
            routed if self.shifts_keys else chunk.keys,
            chunk.value,
            count=chunk.count,
            window_size=self.window_size + more,
            max_length=max_length,
            routed_key=self.routed_key,
            keep_positions=window is not None or self.max_relative_distance is not None,
            **self.routing(heads),
        )
        if self.kernel_size > 1:
            state["asked"] = last_vectors(chunk.query, chunk.count, self.kernel_size - 1)
        return state

    def decode_step(self, heads, chunk, states, joins):
        border, window = None, self.window
        if window is not None:
            border = (chunk.position // window.block_size - window.look_back) * window.block_size
        options = {"before": border, "window_size": self.window_size}
        return self._read_by(self.step_op, heads, chunk, states, joins, options)

    def _read_by(self, op, heads, chunk, states, joins, options):
        state = states[self.name]
        routed = chunk._replace(query=self.routed_query(heads, chunk.query, state=state))
        found, after = super()._read_by(op, heads, routed, states, joins, options)
        return self._biased(heads, found, joins), after | self._asked(state, chunk)

    def _inputs(self, heads, chunk):
        # The ops normalize queries that are also keys only once.
        return chunk.query, chunk.key, chunk.value

    def _asked(self, state, chunk):
        """Returns the last queries, which the convolution of the next queries needs."""
        if self.kernel_size == 1:
            return {}
        asked, query = state["asked"], chunk.query
        count = size(query, 2) if chunk.count is None else chunk.count
        return {"asked": last_vectors(query, count, self.kernel_size - 1, before=asked)}

    def routing(self, heads):
        """Returns what determines clusters and logits; see `rt_keras.ops.nearest.assign`."""
        return {
            "centroids": tf.convert_to_tensor(heads.centroids),
            "load_bias": tf.convert_to_tensor(heads.load_bias),
            "num_probes": self.num_probes,
            "use_query_key_norm": self.use_query_key_norm,
            "scale": tf.convert_to_tensor(heads.routed_scale) if self.scaled else None,
        }

    def op_options(self, heads, joins):
        table = self.relative_embeddings(heads)
        return {**self.routing(heads), "relative_embeddings": table, "return_logsumexp": joins}

    def _biased(self, heads, found, joins):
        """Adds the bias to the logsumexp. Without other sets, the bias has no effect."""
        if not (joins and self.scaled):
            return found
        return biased(found, heads.routed_bias)

    def described(self):
        return f" of assignment {self.assignment!r}"


def biased(found, bias):
    """Adds a bias of each head to the logits, given an output and its logsumexp.

    Args:
        found: pair of `[batch, heads, length, value_depth]` and `[batch, heads, length]`.
        bias: `[heads]`.

    Returns:
        The output and the new logsumexp.
    """
    output, logsumexp = found
    return output, logsumexp + tf.cast(bias, logsumexp.dtype)[:, None]


def add_routed_kernel(heads, kernel_size, depth, seed=None):
    """Adds the kernel that convolves routed queries to the heads, or None if it has one position.

    Args:
        heads: the head group, whose attribute `routed_kernel` is set.
        kernel_size: int, number of positions.
        depth: int, depth of the queries.
        seed: int or `keras.random.SeedGenerator` of the initial noise. Defaults to None.
    """
    heads.routed_kernel = None
    if kernel_size > 1:
        initializer = functools.partial(_almost_identity, seed=seed)
        heads.add_head_weight("routed_kernel", kernel_size, depth, initializer=initializer)


def _almost_identity(shape, dtype=None, seed=None):
    """Initializes a kernel close to the identity, with noise for the previous positions."""
    heads, width, depth = shape
    ones = keras.ops.ones([heads, 1, depth], dtype)
    noise = keras.random.normal([heads, width - 1, depth], stddev=0.1, dtype=dtype, seed=seed)
    return keras.ops.concatenate([ones, noise], axis=1)
