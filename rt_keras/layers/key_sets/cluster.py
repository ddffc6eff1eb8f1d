"""The keys of a query's cluster."""

import dataclasses
import functools

import keras
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, NOT_NEGATIVE, key, one_of
from rt_keras.layers.key_sets.key_set import KeySet, in_union
from rt_keras.layers.key_sets.window import Window, window_among
from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.blocks import places_of_rows, size, take_places
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.entmax import ACTIVATIONS, check_activation
from rt_keras.ops.nearest import nearest_attention
from rt_keras.ops.nearest_chunk import nearest_chunk
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step


@keras.saving.register_keras_serializable(package="rt_keras")
@dataclasses.dataclass(frozen=True, repr=False)
class Cluster(KeySet):
    """The last keys of a query's cluster, found by online k-means; however far back they are.

    See `rt_keras.ops.nearest_attention` and, for `assignment` "balanced",
    `rt_keras.ops.balanced_attention`, for the equations. Its fields are arguments of
    `rt_keras.layers.LocalRoutingHeads`, which says what they mean, and of
    `rt_keras.layers.RoutingHeads`. How centroids learn: see `rt_keras.layers.CentroidHeads`.

    With `routed_key` "key", beside a `Window`, only keys outside that are seen.

    Args:
        num_clusters: int, clusters of each head.
        window_size: int, the most keys of a cluster that a query sees.
        routed_key: str, what queries are compared with. Defaults to "previous_query".
        num_probes: int, nearest clusters in which a query attends. Defaults to 1.
        normalize: bool, whether logits are of normalised queries and keys. Defaults to True.
        commitment_weight: float, weight of the commitment loss. Defaults to 0.0001.
        seed: int or None, seed of the initial centroids.
        kernel_size: int, positions that a routed query tells of; None for 4, or 1 of keys. Defaults
            to None.
        assignment: str, how positions join clusters. Defaults to "nearest".
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0.
        scaled: bool, whether heads learn a factor and a bias of the logits. Defaults to True.
        window: the `Window` that is left out, which a union finds itself.

    Raises:
        ValueError: if a value is out of range, or values do not go together.

    Source: Roy et al. 2021, section 4.1.

    >>> from rt_keras.layers import Heads
    >>> from rt_keras.layers.key_sets import Window
    >>> heads = Heads(2, [Window(4), Cluster(4, window_size=4)])
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    name = "routed"

    num_clusters: int = key(dataclasses.MISSING, "clusters of each head", AT_LEAST_1)
    window_size: int = key(
        dataclasses.MISSING, "the most keys of a cluster that a query sees", AT_LEAST_1
    )
    routed_key: str = key(
        "previous_query", "what queries are compared with", one_of("previous_query", "key")
    )
    num_probes: int = key(1, "nearest clusters in which a query attends", AT_LEAST_1)
    normalize: bool = key(True, "whether logits are of normalised queries and keys")
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)
    seed: int | None = None
    kernel_size: int | None = key(
        None, "positions that a routed query tells of; null for 4, or 1 of keys", AT_LEAST_1
    )
    assignment: str = key("nearest", "how positions join clusters", one_of("nearest", "balanced"))
    max_relative_distance: int | None = key(
        None, "reach of the relative positions, null for none", AT_LEAST_1
    )
    attention_activation: str = key(
        "softmax", "how logits become the weights of keys", one_of(*ACTIVATIONS)
    )
    # Whether heads learn a factor and a bias of the logits.
    scaled: bool = True
    # The window that is left out.
    window: Window | None = in_union()

    def check(self):
        nearest = self.assignment == "nearest"
        if self.num_probes > (self.num_clusters if nearest else 1):
            raise ValueError(
                "num_probes must be at most num_clusters with assignment 'nearest', and 1 with "
                f"'balanced'. Received: num_probes={self.num_probes}, "
                f"num_clusters={self.num_clusters}, assignment={self.assignment!r}"
            )
        if not self.normalize and not nearest:
            raise ValueError(
                "normalize must be True unless assignment is 'nearest'. Received: "
                f"assignment={self.assignment!r}"
            )
        if not nearest and self.shift_keys:
            raise ValueError(
                "routed_key must be 'key' unless assignment is 'nearest'. Received: "
                f"assignment={self.assignment!r}, routed_key={self.routed_key!r}"
            )
        if self.kernel_size is None:
            object.__setattr__(self, "kernel_size", 4 if self.shift_keys else 1)
        if self.kernel_size > 1 and not self.shift_keys:
            raise ValueError(
                "kernel_size must be 1 unless routed_key is 'previous_query'. Received: "
                f"kernel_size={self.kernel_size}, routed_key={self.routed_key!r}"
            )
        needs_softmax = None
        if not nearest or self.num_probes > 1:
            needs_softmax = f"assignment={self.assignment!r} and num_probes={self.num_probes}"
        check_activation(self.attention_activation, needs_softmax)

    @property
    def shift_keys(self):
        """Whether the routed key of a position is the query of the one before."""
        return self.routed_key == "previous_query"

    @property
    def clusters_queries_alone(self):
        """Whether routed keys are queries, of the position before."""
        return self.shift_keys

    @property
    def normalizes(self):
        """Whether logits are those of layer-normalised queries and keys."""
        return self.normalize

    @property
    def strictly_causal(self):
        """Whether the assignment is "nearest": with "balanced", members depend on what follows."""
        return self.assignment == "nearest"

    cached_decoding = groups_queries = strictly_causal

    @property
    def joins(self):
        """Whether the assignment is "nearest" and attention softmax."""
        return self.assignment == "nearest" and self.attention_activation == "softmax"

    @property
    def reads_chunks(self):
        """Whether it joins others, and does not end where a window begins, which a step knows."""
        return self.joins and self.window is None

    def beside(self, others):
        window = None if self.shift_keys else window_among(others)
        if window is not None and window.sliding_window is not None:
            raise ValueError(
                "sliding_window must be None beside a Cluster with routed_key='key', which leaves "
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
        heads.routed_kernel = None
        if self.kernel_size > 1:
            initializer = functools.partial(_almost_identity, seed=heads.seed_generator)
            width = self.kernel_size
            heads.add_head_weight("routed_kernel", width, depth, initializer=initializer)

    def attend(self, heads, chunk, joins):
        # Without a mask of their own, queries that are their own keys are sorted once.
        options = {**chunk.of_sequence, "key_mask": chunk.key_mask, "window_size": self.window_size}
        if self.assignment == "balanced":
            inputs = chunk.query, chunk.key, chunk.value, heads.centroids
            table = self.relative_embeddings(heads)
            return balanced_attention(*inputs, relative_embeddings=table, **options)
        window = self.window
        found = nearest_attention(
            self.routed_query(heads, chunk.query, chunk.query_mask),
            None if self.shift_keys else chunk.key,
            chunk.value,
            shift_keys=self.shift_keys,
            block_size=None if window is None else window.block_size,
            look_back=1 if window is None else window.look_back,
            activation=self.attention_activation,
            **self.routing(heads),
            **self._logits(heads, joins),
            **options,
        )
        return self._biased(heads, found, joins)

    def routed_query(self, heads, query, query_mask=None, state=None):
        """The queries as they are routed, before they are normalised: convolved or as they are.

        Args:
            heads: the head group.
            query: `[batch, heads, length, depth]`.
            query_mask: bool `[batch, length]`, False for padding; or None.
            state: the set's state before these queries; or None.

        Returns:
            A tensor like `query`.
        """
        if self.kernel_size == 1:
            return query
        kernel, before = tf.convert_to_tensor(heads.routed_kernel), (state or {}).get("asked")
        return causal_convolution(query, kernel, mask=query_mask, before=before)

    def fill(self, heads, chunk, max_length):
        window = self.window
        # Members in the window join what a query sees of its cluster once they have left it.
        more = 0 if window is None else (window.look_back + 1) * window.block_size
        routed = self.routed_query(heads, chunk.query)
        state = nearest_cache(
            routed if self.shift_keys else chunk.keys,
            chunk.value,
            count=chunk.count,
            window_size=self.window_size + more,
            max_length=max_length,
            shift_keys=self.shift_keys,
            keep_positions=window is not None or self.max_relative_distance is not None,
            **self.routing(heads),
        )
        if self.kernel_size > 1:
            state["asked"] = last_vectors(chunk.query, chunk.count, self.kernel_size - 1)
        return state

    def step(self, heads, chunk, states, joins):
        border, window = None, self.window
        if window is not None:
            border = (chunk.position // window.block_size - window.look_back) * window.block_size
        options = {
            "before": border,
            "window_size": self.window_size,
            "activation": self.attention_activation,
        }
        return self._read_by(nearest_step, heads, chunk, states, joins, options)

    def read(self, heads, chunk, states, joins):
        options = {"dropout": chunk.dropout, "seed": chunk.seed}
        return self._read_by(nearest_chunk, heads, chunk, states, joins, options)

    def _read_by(self, op, heads, chunk, states, joins, options):
        """The next positions, by the op for a chunk or that for one position."""
        state = states[self.name]
        found, after = op(
            self.routed_query(heads, chunk.query, state=state),
            chunk.key,
            chunk.value,
            state,
            chunk.position,
            count=chunk.count,
            **options,
            **self.routing(heads),
            **self._logits(heads, joins),
        )
        return self._biased(heads, found, joins), after | self._asked(state, chunk)

    def _asked(self, state, chunk):
        """What a state keeps of the last queries, of which the next ones are convolved."""
        if self.kernel_size == 1:
            return {}
        asked, query = state["asked"], chunk.query
        count = size(query, 2) if chunk.count is None else chunk.count
        both = tf.concat([asked, tf.cast(query, asked.dtype)], axis=2)
        return {"asked": take_places(both, places_of_rows(count, tf.range(size(asked, 2))))}

    def routing(self, heads):
        """How positions find their clusters: the arguments of `rt_keras.ops.routed.Routing`."""
        """The arguments by which the ops route."""
        return {
            "centroids": tf.convert_to_tensor(heads.centroids),
            "load_bias": tf.convert_to_tensor(heads.load_bias),
            "num_probes": self.num_probes,
            "normalize": self.normalize,
            "scale": tf.convert_to_tensor(heads.routed_scale) if self.scaled else None,
        }

    def _logits(self, heads, joins):
        """The arguments that say what logits are."""
        return {
            "relative_embeddings": self.relative_embeddings(heads),
            "return_logsumexp": joins,
        }

    def _biased(self, heads, found, joins):
        """What an op found, with the bias of the logits, which alone counts for nothing."""
        if not (joins and self.scaled):
            return found
        return biased(found, heads.routed_bias)

    def described(self):
        return f" of assignment {self.assignment!r}"


def biased(found, bias):
    """An output and the logsumexp of its logits, to which a bias of each head was added.

    Args:
        found: pair of `[batch, heads, length, value_depth]` and `[batch, heads, length]`.
        bias: `[heads]`.
    """
    output, logsumexp = found
    return output, logsumexp + tf.cast(bias, logsumexp.dtype)[:, None]


def _almost_identity(shape, dtype=None, seed=None):
    """A kernel that gives back the queries, and a little of those before them."""
    heads, width, depth = shape
    ones = keras.ops.ones([heads, 1, depth], dtype)
    noise = keras.random.normal([heads, width - 1, depth], stddev=0.1, dtype=dtype, seed=seed)
    return keras.ops.concatenate([ones, noise], axis=1)
