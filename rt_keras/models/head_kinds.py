"""Head kinds: the section of a configuration, the checks and the layer of each.

Each kind is a class whose fields are the keys of the section `model.NAME`. If the layer declares
its sets of keys, the class only names their options. `arguments` returns the arguments of `layer`,
which refuses incompatible ones, and `check` refuses values that a model does not support.
`HEAD_KINDS` lists the kinds. Everything else, such as the keys of a configuration and the head
groups of a model, is derived from this table.
"""

import dataclasses
import math

from rt_keras import layers
from rt_keras.keys import AT_LEAST_1, key
from rt_keras.models.head_kind import (
    FromBlock,
    HeadKind,
    WithReach,
    first_layer,
    lower_heads,
    with_keys_of,
)
from rt_keras.models.union_kind import Union


@dataclasses.dataclass
class _Clustered(FromBlock, WithReach):
    """Base class of kinds with clusters, which the first blocks of a model may lack."""

    num_clusters: int = key(16, "clusters per head", AT_LEAST_1)
    window_size: int = key(128, "members of its cluster that a query attends to", AT_LEAST_1)
    first_layer: int = first_layer()
    lower_heads: str = lower_heads()

    windows = ("window_size",)


@with_keys_of(
    layers.RoutingHeads,
    "num_clusters window_size assignment share_qk num_probes commitment_weight",
    num_clusters=16,
    window_size=128,
)
class Routing(_Clustered):
    """Heads that attend to the keys of the query's cluster; see `rt_keras.layers.RoutingHeads`."""

    name = "routing"

    @property
    def attends_across(self):
        # "nearest" routing is defined within one sequence.
        return self.assignment != "nearest"


@with_keys_of(
    layers.LocalRoutingHeads,
    "num_clusters window_size block_size look_back routed_key kernel_size share_qk num_probes "
    "commitment_weight relative_positions",
    num_clusters=16,
    window_size=64,
    block_size=64,
)
class LocalRouting(_Clustered):
    """Heads that attend to a window and a cluster; see `rt_keras.layers.LocalRoutingHeads`."""

    name = "local_routing"
    # Windows and clusters are defined within one sequence.
    attends_across = False


@with_keys_of(
    layers.RoutingMemoryHeads,
    "memory_length memory_keys eviction memory_block_size",
    memory_length=256,
)
class RoutingMemory(LocalRouting):
    """Heads whose clusters have a long memory; see `rt_keras.layers.RoutingMemoryHeads`."""

    name = "routing_memory"
    of_causal_lm = ("num_heads",)


@dataclasses.dataclass
class Random(_Clustered):
    """Heads that attend to keys drawn at random; see `rt_keras.layers.RandomHeads`."""

    name = "random"
    layer = layers.RandomHeads

    def arguments(self, place):
        # Blocks draw different keys.
        return {**super().arguments(place), "seed": place.block}


@dataclasses.dataclass
class Clustered(WithReach):
    """Heads that attend once per group of similar queries; see `rt_keras.layers.ClusteredHeads`.

    A decoder has heads of kind `CausalClustered` instead, unless `causal_by_mask` is true.
    """

    num_clusters: int = key(100, "groups of queries per head", AT_LEAST_1)
    top_k: int | None = key(None, "keys that each query attends to individually", AT_LEAST_1)
    bits: int = key(63, "random projections used to group queries", AT_LEAST_1)
    iterations: int = key(10, "k-means iterations per step", AT_LEAST_1)
    causal_by_mask: bool = key(
        False, "whether a decoder uses these heads, whose groups depend on later positions"
    )

    name = "clustered"
    layer = layers.ClusteredHeads

    def check_attentions(self, attentions):
        in_vain = "encoder" not in attentions and not self.causal_by_mask
        if in_vain and self.has_values():
            raise ValueError(
                "model.clustered has values but a decoder uses model.causal_clustered; set them "
                "there, or set model.clustered.causal_by_mask to true"
            )

    def replacement(self, place):
        if place.attention == "encoder" or self.causal_by_mask:
            return None
        # The groups of a decoder's queries depend on later queries, even in cross-attention.
        return "full" if place.attention == "cross" else "causal_clustered"


@with_keys_of(layers.CausalClusteredHeads, "num_clusters block_size commitment_weight")
class CausalClustered(WithReach):
    """Heads that attend to the past by centroids; see `rt_keras.layers.CausalClusteredHeads`."""

    name = "causal_clustered"

    def check_attentions(self, attentions):
        if "decoder" not in attentions and self.has_values():
            raise ValueError(
                "model.causal_clustered has values but an encoder uses model.clustered; set them "
                "there"
            )

    def replacement(self, place):
        # These heads are causal and defined within one sequence.
        return {"encoder": "clustered", "cross": "full"}.get(place.attention)


@dataclasses.dataclass
class LSH(WithReach):
    """Heads of the Reformer; see `rt_keras.layers.LSHHeads`."""

    num_buckets: int = key(16, "buckets per hash, an even number", AT_LEAST_1)
    block_size: int = key(64, "positions per block", AT_LEAST_1)
    num_rounds: int = key(1, "number of hashes", AT_LEAST_1)

    name = "lsh"
    layer = layers.LSHHeads
    # Queries are also keys.
    attends_across = False


@with_keys_of(layers.StridedHeads, "stride", stride=128)
class Strided(WithReach):
    """Heads that attend to every n-th key; see `rt_keras.layers.StridedHeads`."""

    name = "strided"


@with_keys_of(
    layers.LocalHeads, "block_size look_back sliding_window relative_positions", block_size=128
)
class Local(WithReach):
    """Heads that attend to neighboring blocks; see `rt_keras.layers.LocalHeads`."""

    cross_block_size: int | None = key(
        None, "positions per block of an encoder, null for block_size", AT_LEAST_1
    )

    name = "local"
    windows = ("block_size",)
    of_causal_lm = ("sliding_window",)

    def check(self, model):
        super().check(model)
        if self.cross_block_size is not None and not model.num_encoder_layers:
            self.refuse("cross_block_size", "without an encoder it must be null")

    def check_cross_lengths(self, length, encoder_length):
        # Each block of the decoder attends to one of the encoder.
        blocks = math.ceil(length / self.block_size)
        if math.ceil(encoder_length / (self.cross_block_size or self.block_size)) != blocks:
            self.refuse(
                "cross_block_size",
                f"the encoder's {encoder_length} positions must form {blocks} blocks, as many as "
                f"the decoder's {length}; use {math.ceil(encoder_length / blocks)}",
            )

    def arguments(self, place):
        arguments = {**super().arguments(place), "grid": place.grid}
        cross_block_size = arguments.pop("cross_block_size")
        if place.attention == "cross":
            arguments["key_block_size"] = cross_block_size or self.block_size
        return arguments


@dataclasses.dataclass
class GatedDelta(HeadKind):
    """Heads with a state of fixed size; see `rt_keras.layers.GatedDeltaHeads`."""

    block_size: int = key(64, "positions that are computed at once", AT_LEAST_1)
    kernel_size: int = key(4, "positions per short convolution, 1 for none", AT_LEAST_1)

    name = "gated_delta"
    layer = layers.GatedDeltaHeads
    of_causal_lm = ("num_heads",)
    # The state is that of one sequence.
    attends_across = False


@with_keys_of(layers.FullHeads, "relative_positions memory_length")
class Full(WithReach):
    """Heads that attend to every key; see `rt_keras.layers.FullHeads`."""

    name = "full"
    of_causal_lm = ("memory_length",)


# In the order of a block's head groups.
HEAD_KINDS = {
    kind.name: kind
    for kind in (
        Routing,
        LocalRouting,
        RoutingMemory,
        Random,
        Clustered,
        CausalClustered,
        LSH,
        Strided,
        Local,
        GatedDelta,
        Full,
        Union,
    )
}
