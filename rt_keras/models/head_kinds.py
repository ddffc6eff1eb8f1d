"""The kinds of heads: for each its section of a configuration, its checks and its layer.

A kind is one class here. Its fields are the keys of the section `model.NAME`, `check` says which
values go together, and `arguments` are those of its `layer`. `HEAD_KINDS` lists them; everything
else, such as the keys of a configuration and the head groups of a model, comes from that table.
"""

import dataclasses
import math

from rt_keras import layers
from rt_keras.keys import AT_LEAST_0, AT_LEAST_1, NOT_NEGATIVE, key, one_of
from rt_keras.layers.key_sets.positioned import RELATIVE_POSITIONS
from rt_keras.ops.compressive import COMPRESSIONS
from rt_keras.ops.entmax import ACTIVATIONS
from rt_keras.ops.routing_memory import EVICTIONS

# The kind, and the number of heads, of a model that says nothing of heads.
DEFAULT_HEADS = "local_routing", 4


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a model heads are.

    Args:
        block: int, number of the block, from 0.
        attention: "decoder" or "encoder" for self-attention, "cross" for a decoder's attention to
            an encoder.
        grid: tuple of ints, the number of local blocks along each dimension of an image; None for
            sequences.
    """

    block: int
    attention: str = "decoder"
    grid: tuple | None = None


@dataclasses.dataclass
class HeadKind:
    """What all kinds of heads share. Keys that a kind adds are arguments of its `layer`."""

    num_heads: int | None = key(
        None,
        "heads of this kind in each block; null for none, but where all are null, "
        f"{DEFAULT_HEADS[1]} of {DEFAULT_HEADS[0]}",
        AT_LEAST_0,
    )
    max_relative_distance: int | None = key(
        None, "reach of the relative positions, null for none", AT_LEAST_1
    )

    # Name of the section, and the head group.
    name = None
    layer = None
    # The key of which a sequence must be at least as long, if any.
    window = None

    def refuse(self, key, reason):
        """Raises the ValueError that a key has a wrong value."""
        raise ValueError(f"model.{self.name}.{key} is {getattr(self, key)}; {reason}")

    def check(self, model):
        """Raises a ValueError where values do not go together; for kinds that have heads.

        Args:
            model: the `ModelSection` that the section is in.
        """

    def check_attentions(self, attentions):
        """Raises a ValueError where a model would ignore values; for kinds that have heads.

        Args:
            attentions: tuple of those that the model has, see `Place`.
        """

    def has_values(self):
        """Whether any value but the number of heads differs from its default."""
        fields = [field for field in dataclasses.fields(self) if field.name != "num_heads"]
        return any(getattr(self, field.name) != field.default for field in fields)

    def check_length(self, name, length):
        """Raises a ValueError where sequences are too short; for kinds that have heads.

        Args:
            name: string, what sets their length.
            length: int.
        """
        if self.window is not None and getattr(self, self.window) > length:
            raise ValueError(
                f"model.{self.name}.{self.window} is {getattr(self, self.window)} and {name} only "
                f"{length}; a sequence must be at least as long as one window"
            )

    def check_cross_lengths(self, length, encoder_length):
        """Raises a ValueError where a decoder cannot attend to an encoder; for kinds with heads.

        Args:
            length: int, positions of the decoder.
            encoder_length: int, positions of the encoder.
        """

    def replacement(self, place):
        """The name of the kind that has these heads where this one cannot; None where it can."""

    def arguments(self, place):
        """The arguments of the layer in a place, as a dictionary."""
        arguments = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if place.attention == "cross":
            # Positions of two sequences have no distance.
            arguments["max_relative_distance"] = None
            if "relative_positions" in arguments:
                arguments["relative_positions"] = "learned"
            if "num_persistent_keys" in arguments:
                arguments["num_persistent_keys"] = None
        return arguments


@dataclasses.dataclass
class _Clustered(HeadKind):
    """Kinds with clusters, which the first blocks of a model may lack."""

    num_clusters: int = key(16, "clusters of each head", AT_LEAST_1)
    window_size: int = key(128, "members of a cluster that attend", AT_LEAST_1)
    first_layer: int = key(
        0, "first block with these heads; blocks before it have local ones instead", AT_LEAST_0
    )

    window = "window_size"

    def check(self, model):
        if self.first_layer > model.num_layers:
            self.refuse("first_layer", f"it must be at most model.num_layers, {model.num_layers}")

    def replacement(self, place):
        return "local" if place.block < self.first_layer else None

    def arguments(self, place):
        arguments = super().arguments(place)
        del arguments["first_layer"]
        if "share_qk" in arguments:
            arguments["share_qk"] &= place.attention == "decoder"
        return arguments


def _attention_activation():
    return key("softmax", "how logits become the weights of keys", one_of(*ACTIVATIONS))


def _relative_positions(allowed=RELATIVE_POSITIONS):
    return key("learned", "how distances become logits", one_of(*allowed))


def _num_persistent_keys():
    return key(None, "keys that each head learns and every query sees, null for none", AT_LEAST_1)


def check_persistent(kind, model, possible=True):
    """Raises a ValueError if heads have persistent keys but cannot."""
    if kind.num_persistent_keys is not None and (model.dialect is not None or not possible):
        kind.refuse("num_persistent_keys", "these heads can have none: it must be null")


def check_positions(kind, model):
    """Raises a ValueError if relative positions have no reach, or a model has no such ones."""
    if kind.relative_positions == "learned":
        return
    if kind.max_relative_distance is None:
        kind.refuse("relative_positions", f"it needs model.{kind.name}.max_relative_distance")
    if model.kind == "image_lm" or model.dialect is not None:
        kind.refuse("relative_positions", "with an image_lm or a model.dialect it must be learned")


def check_probes(kind):
    """Raises a ValueError if queries attend in more clusters than a kind has."""
    if kind.num_probes > kind.num_clusters:
        most = f"model.{kind.name}.num_clusters, {kind.num_clusters}"
        kind.refuse("num_probes", f"it must be at most {most}")


@dataclasses.dataclass
class Routing(_Clustered):
    """Heads that see the keys of their own cluster: see `rt_keras.layers.RoutingHeads`."""

    assignment: str = key("nearest", "how positions join clusters", one_of("nearest", "balanced"))
    share_qk: bool = key(False, "whether queries are their own keys in a decoder's self-attention")
    num_probes: int = key(1, "nearest clusters in which a query attends", AT_LEAST_1)
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)
    attention_activation: str = _attention_activation()
    num_persistent_keys: int | None = _num_persistent_keys()

    name = "routing"
    layer = layers.RoutingHeads

    def check(self, model):
        super().check(model)
        check_probes(self)
        if self.num_probes > 1 and self.assignment != "nearest":
            self.refuse("num_probes", f"it must be 1 with assignment {self.assignment}")
        if model.dialect is not None and self.assignment != "balanced":
            self.refuse("assignment", f"with model.dialect {model.dialect} it must be balanced")
        one_softmax = self.num_probes == 1 and self.assignment == "nearest"
        if self.attention_activation != "softmax" and not one_softmax:
            self.refuse("attention_activation", "only nearest with one probe can have another")
        nearest = self.assignment == "nearest" and self.attention_activation == "softmax"
        check_persistent(self, model, nearest)

    def replacement(self, place):
        if place.attention == "cross" and self.assignment == "nearest":
            # "nearest" is of one sequence.
            return super().replacement(place) or "full"
        return super().replacement(place)


@dataclasses.dataclass
class LocalRouting(_Clustered):
    """Heads that see a window and their cluster: see `rt_keras.layers.LocalRoutingHeads`."""

    block_size: int = key(64, "positions in a block of the window", AT_LEAST_1)
    look_back: int = key(1, "blocks before its own that a query sees", AT_LEAST_0)
    window_size: int = key(64, "the most keys of a cluster that a query sees", AT_LEAST_1)
    routed_key: str = key(
        "previous_query", "what queries are compared with", one_of("previous_query", "key")
    )
    kernel_size: int | None = key(
        None, "positions that a routed query tells of; null for 4, or 1 of keys", AT_LEAST_1
    )
    share_qk: bool = key(False, "whether queries are their own keys")
    num_probes: int = key(1, "nearest clusters in which a query attends", AT_LEAST_1)
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)
    num_persistent_keys: int | None = _num_persistent_keys()
    relative_positions: str = _relative_positions()

    name = "local_routing"
    layer = layers.LocalRoutingHeads

    def check(self, model):
        super().check(model)
        check_probes(self)
        check_positions(self, model)
        check_persistent(self, model)
        if (self.kernel_size or 1) > 1 and self.routed_key != "previous_query":
            self.refuse("kernel_size", "it must be 1 unless routed_key is previous_query")

    def replacement(self, place):
        if place.attention == "cross":
            # Windows and clusters are of one sequence.
            return super().replacement(place) or "full"
        return super().replacement(place)


@dataclasses.dataclass
class RoutingMemory(LocalRouting):
    """Heads whose clusters remember further back: see `rt_keras.layers.RoutingMemoryHeads`."""

    memory_length: int = key(256, "members that a cluster remembers", AT_LEAST_1)
    memory_keys: int = key(32, "the most of them that a query sees", AT_LEAST_1)
    eviction: str = key("oldest", "what goes where there is no room", one_of(*EVICTIONS))
    memory_block_size: int | None = key(
        None, "positions after which members join the memory, null for block_size", AT_LEAST_1
    )

    name = "routing_memory"
    layer = layers.RoutingMemoryHeads

    def check(self, model):
        super().check(model)
        if model.kind != "causal_lm":
            self.refuse("num_heads", "only a causal_lm can have them")
        if self.routed_key != "previous_query":
            self.refuse("routed_key", "it must be previous_query")
        least = self.memory_block_size or self.block_size
        if self.memory_length < least:
            self.refuse("memory_length", f"it must be at least a block of the memory, {least}")


@dataclasses.dataclass
class Hashed(_Clustered):
    """Heads that see the keys in their own bucket of a hash: see `rt_keras.layers.HashedHeads`."""

    share_qk: bool = key(False, "whether queries are their own keys in a decoder's self-attention")

    name = "hashed"
    layer = layers.HashedHeads

    def check(self, model):
        super().check(model)
        if self.num_clusters < 2:
            self.refuse("num_clusters", "it must be at least 2")


@dataclasses.dataclass
class Random(_Clustered):
    """Heads that see keys drawn at random: see `rt_keras.layers.RandomHeads`."""

    name = "random"
    layer = layers.RandomHeads

    def arguments(self, place):
        # Members differ from block to block.
        return {**super().arguments(place), "seed": place.block}


class _WithoutPositions(HeadKind):
    """Kinds without relative positions."""

    def check(self, model):
        if self.max_relative_distance is not None:
            self.refuse("max_relative_distance", "these heads have none: it must be null")

    def arguments(self, place):
        arguments = super().arguments(place)
        del arguments["max_relative_distance"]
        return arguments


@dataclasses.dataclass
class Clustered(_WithoutPositions):
    """Heads whose similar queries attend together: see `rt_keras.layers.ClusteredHeads`.

    A decoder has those of `CausalClustered` instead, unless `causal_by_mask` is true.
    """

    num_clusters: int = key(100, "groups of the queries of each head", AT_LEAST_1)
    top_k: int | None = key(None, "keys that each query weighs by itself", AT_LEAST_1)
    bits: int = key(63, "random projections that group queries", AT_LEAST_1)
    iterations: int = key(10, "iterations of k-means in a step", AT_LEAST_1)
    causal_by_mask: bool = key(
        False, "whether a decoder has these heads too, and so sees later positions in the groups"
    )

    name = "clustered"
    layer = layers.ClusteredHeads

    def check(self, model):
        super().check(model)
        if self.causal_by_mask and self.top_k is None:
            self.refuse("causal_by_mask", "it needs model.clustered.top_k")

    def check_attentions(self, attentions):
        in_vain = "encoder" not in attentions and not self.causal_by_mask
        if in_vain and self.has_values():
            raise ValueError(
                "model.clustered has values but a decoder has the heads of model.causal_clustered; "
                "give them there, or model.clustered.causal_by_mask true"
            )

    def replacement(self, place):
        if place.attention == "encoder" or self.causal_by_mask:
            return None
        # The groups of a decoder's queries depend on later ones, whatever these attend to.
        return "full" if place.attention == "cross" else "causal_clustered"


@dataclasses.dataclass
class CausalClustered(_WithoutPositions):
    """Heads that see the past through centroids: see `rt_keras.layers.CausalClusteredHeads`."""

    num_clusters: int = key(100, "centroids of each head", AT_LEAST_1)
    block_size: int = key(128, "positions in a block, which a query sees itself", AT_LEAST_1)
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)

    name = "causal_clustered"
    layer = layers.CausalClusteredHeads

    def check_attentions(self, attentions):
        if "decoder" not in attentions and self.has_values():
            raise ValueError(
                "model.causal_clustered has values but an encoder has the heads of "
                "model.clustered; give them there"
            )

    def replacement(self, place):
        # It is of one sequence, and of the past.
        return {"encoder": "clustered", "cross": "full"}.get(place.attention)


@dataclasses.dataclass
class LSH(_WithoutPositions):
    """Heads of the Reformer: see `rt_keras.layers.LSHHeads`."""

    num_buckets: int = key(16, "buckets of each hash, an even number", AT_LEAST_1)
    chunk_size: int = key(64, "positions in a chunk", AT_LEAST_1)
    num_rounds: int = key(1, "hashes", AT_LEAST_1)

    name = "lsh"
    layer = layers.LSHHeads

    def check(self, model):
        super().check(model)
        if self.num_buckets % 2:
            self.refuse("num_buckets", "it must be even")

    def replacement(self, place):
        # Queries are their own keys.
        return "full" if place.attention == "cross" else None


@dataclasses.dataclass
class ClusterStrided(HeadKind):
    """Heads with clusters of strides: see `rt_keras.layers.ClusterStridedHeads`."""

    num_clusters: int = key(16, "clusters of each head", AT_LEAST_1)
    window_size: int = key(128, "members of a cluster that attend", AT_LEAST_1)
    commitment_weight: float = key(1e-4, "weight of the commitment loss", NOT_NEGATIVE)

    name = "cluster_strided"
    layer = layers.ClusterStridedHeads
    window = "window_size"


@dataclasses.dataclass
class Strided(HeadKind):
    """Heads that see the positions at multiples of a stride: see `rt_keras.layers.StridedHeads`."""

    stride: int = key(128, "positions from one key to the next", AT_LEAST_1)

    name = "strided"
    layer = layers.StridedHeads


@dataclasses.dataclass
class Local(HeadKind):
    """Heads that see the blocks around them: see `rt_keras.layers.LocalHeads`."""

    block_size: int = key(128, "positions in a block", AT_LEAST_1)
    look_back: int = key(1, "blocks before its own that a query sees", AT_LEAST_0)
    sliding_window: int | None = key(
        None, "positions up to its own that a query sees, null for whole blocks", AT_LEAST_1
    )
    relative_positions: str = _relative_positions()
    adaptive_span: bool = key(False, "whether each head learns how far it sees")
    attention_activation: str = _attention_activation()
    num_persistent_keys: int | None = _num_persistent_keys()
    cross_block_size: int | None = key(
        None, "positions in a block of an encoder, block_size if null", AT_LEAST_1
    )

    name = "local"
    layer = layers.LocalHeads
    window = "block_size"

    def check(self, model):
        if self.cross_block_size is not None and not model.num_encoder_layers:
            self.refuse("cross_block_size", "without an encoder it must be null")
        check_positions(self, model)
        alike = self.attention_activation == "softmax" and self.relative_positions == "learned"
        check_persistent(self, model, alike)
        of_one_sequence = model.kind == "causal_lm" and model.dialect is None
        if self.adaptive_span:
            if not of_one_sequence:
                self.refuse("adaptive_span", "only a causal_lm without a dialect can have one")
            if self.attention_activation != "softmax":
                self.refuse("attention_activation", "with adaptive_span it must be softmax")
        if self.attention_activation != "softmax" and model.dialect is not None:
            self.refuse("attention_activation", "with a model.dialect it must be softmax")
        if self.sliding_window is not None:
            if not of_one_sequence:
                self.refuse("sliding_window", "only a causal_lm without a dialect can have one")
            largest = self.look_back * self.block_size + 1
            if self.sliding_window > largest:
                self.refuse(
                    "sliding_window", f"it must be at most look_back · block_size + 1, {largest}"
                )

    def check_cross_lengths(self, length, encoder_length):
        # Each block of the decoder attends to one of the encoder.
        blocks = math.ceil(length / self.block_size)
        if math.ceil(encoder_length / (self.cross_block_size or self.block_size)) != blocks:
            self.refuse(
                "cross_block_size",
                f"the encoder's {encoder_length} positions must make {blocks} blocks, as many as "
                f"the decoder's {length}: {math.ceil(encoder_length / blocks)} would do",
            )

    def arguments(self, place):
        arguments = {**super().arguments(place), "grid": place.grid}
        cross_block_size = arguments.pop("cross_block_size")
        if place.attention == "cross":
            arguments["key_block_size"] = cross_block_size or self.block_size
        return arguments


@dataclasses.dataclass
class Compressive(HeadKind):
    """Heads that see a window and a compressed memory: see `rt_keras.layers.CompressiveHeads`."""

    block_size: int = key(128, "positions in a block", AT_LEAST_1)
    look_back: int = key(1, "blocks before its own that a query sees as they are", AT_LEAST_1)
    compressed_length: int = key(128, "entries of the memory that a query sees", AT_LEAST_1)
    compression_rate: int = key(4, "positions for each entry", AT_LEAST_1)
    compression: str = key("conv", "how positions become an entry", one_of(*COMPRESSIONS))
    reconstruction_weight: float = key(
        1.0, "weight of the loss that trains the convolutions", NOT_NEGATIVE
    )

    name = "compressive"
    layer = layers.CompressiveHeads
    window = "block_size"

    def check(self, model):
        if model.kind != "causal_lm":
            self.refuse("num_heads", "only a causal_lm can have them")
        if self.block_size % self.compression_rate:
            self.refuse("compression_rate", "it must divide block_size")
        entries = self.block_size // self.compression_rate
        if self.compressed_length % entries:
            self.refuse("compressed_length", f"it must be a multiple of the {entries} of a block")


@dataclasses.dataclass
class Full(HeadKind):
    """Heads that see every key: see `rt_keras.layers.FullHeads`."""

    relative_positions: str = _relative_positions()
    memory_length: int | None = key(
        None, "keys up to its own that a query sees, null for all", AT_LEAST_1
    )
    num_persistent_keys: int | None = _num_persistent_keys()

    name = "full"
    layer = layers.FullHeads

    def check(self, model):
        check_positions(self, model)
        check_persistent(self, model, self.relative_positions == "learned")
        if self.memory_length is not None and model.kind != "causal_lm":
            self.refuse("memory_length", "only a causal_lm can have one")


# In the order of a block's head groups: what clusters comes first, as in checkpoints of the paper's
# authors.
HEAD_KINDS = {
    kind.name: kind
    for kind in (
        Routing,
        LocalRouting,
        RoutingMemory,
        Hashed,
        Random,
        Clustered,
        CausalClustered,
        LSH,
        ClusterStrided,
        Strided,
        Local,
        Compressive,
        Full,
    )
}
