"""The model with every kind of heads whose file and outputs are in `tests/golden/saved`.

`python -m tests.layers.saved_heads FOLDER` writes these files. Those in `tests/golden/saved` are
from an earlier version. Later versions must load them and must never regenerate them.
"""

import sys
import warnings
import zipfile
from pathlib import Path

import keras
import keras_hub
import numpy as np

from rt_keras import layers, t2t
from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.centroids import heads_with_centroids

BATCH, LENGTH, KEYS, WIDTH, HEADS, DEPTH = 2, 24, 18, 8, 2, 4
LEARNED = {"max_relative_distance": 5}
SINUSOIDAL = {**LEARNED, "relative_positions": "sinusoidal"}
BUCKETED = {"max_relative_distance": 20, "relative_positions": "bucketed"}
PERSISTENT = {"num_persistent_keys": 3}
# Required options; `span_ramp` and the loss weights are large enough to influence outputs.
LOCAL = {"block_size": 4, "span_ramp": 4, "span_loss_weight": 0.01}
CLUSTERS = {"num_clusters": 4, "window_size": 4}
BUCKETS = {"num_buckets": 4, "window_size": 4}
LEARNT_CLUSTERS = {**CLUSTERS, "commitment_weight": 0.1}
LOCAL_ROUTING = {**LEARNT_CLUSTERS, "block_size": 4}
MEMORY = {**LOCAL_ROUTING, "memory_length": 4, "memory_keys": 2}
COMPRESSIVE = {"block_size": 4, "compressed_length": 4, "compression_rate": 2}
OF_DIALECT = {**LEARNT_CLUSTERS, "block_size": 4}

# The required options of each kind and, by name, the options of each variant. These include options
# of the attention layer (`ATTENTION`) and of the call (`CALL`).
ATTENTION = ("num_key_value_heads", "value_dim", "num_global_tokens", "global_projections")
CALL = ("causal", "cross", "rotary")
GROUPED = {"num_key_value_heads": 1}
GLOBAL = {"num_global_tokens": 1}
BOTH = {"causal": False}
CROSS = {"causal": False, "cross": True}
POSITIONS = {"": {}, "learned": LEARNED, "both": {**LEARNED, **BOTH}}
SHARED = {"shared": {"share_qk": True}, "shared_learned": {"share_qk": True, **LEARNED}}
POSITIONED = {
    **POSITIONS,
    "sinusoidal": SINUSOIDAL,
    "bucketed": BUCKETED,
    "persistent": PERSISTENT,
    "persistent_learned": {**PERSISTENT, **LEARNED, "value_dim": 3},
    "sparsemax": {"attention_activation": "sparsemax", **SINUSOIDAL},
    "entmax": {"attention_activation": "entmax15"},
    "grouped": {**GROUPED, **SINUSOIDAL},
    "global": GLOBAL,
    "global_projections": {**GLOBAL, "global_projections": True, **LEARNED},
}
CASES = {
    layers.FullHeads: (
        {},
        {
            **POSITIONED,
            "cross": {**CROSS, **PERSISTENT},
            "memory": {"memory_length": 7, **LEARNED},
            "memory_sinusoidal": {"memory_length": 7, **SINUSOIDAL},
            "memory_persistent": {"memory_length": 7, **PERSISTENT},
            "memory_dense": {"memory_length": 7, "dense_below": 50},
        },
    ),
    layers.LocalHeads: (
        LOCAL,
        {
            **POSITIONED,
            "cross": {**CROSS, **LEARNED, "key_block_size": 3},
            "look_back": {"look_back": 2, "dense_below": 20},
            "own_block": {"look_back": 0, "dense_below": 25, **LEARNED},
            "sliding": {"sliding_window": 3, **BUCKETED},
            "span": {"adaptive_span": True},
            "span_learned": {"adaptive_span": True, **LEARNED},
            "span_persistent": {"adaptive_span": True, **PERSISTENT, **BOTH},
            "grid": {"grid": (2, 3), "look_back": (1, 2), **LEARNED},
            "grid_both": {"grid": (3, 2), **LEARNED, **BOTH},
        },
    ),
    layers.RoutingHeads: (
        LEARNT_CLUSTERS,
        {
            **POSITIONS,
            **SHARED,
            "probes": {"num_probes": 2},
            "not_normalized": {"use_query_key_norm": False, **PERSISTENT},
            "persistent": PERSISTENT,
            "persistent_learned": {**PERSISTENT, **LEARNED, "num_probes": 2},
            "sparsemax": {"attention_activation": "sparsemax", **LEARNED},
            "entmax": {"attention_activation": "entmax15", "share_qk": True},
            "grouped": {**GROUPED, **LEARNED},
            "global": {**GLOBAL, "use_query_key_norm": False},
            "dense": {"dense_below": 50, **LEARNED},
            "balanced": {"assignment": "balanced"},
            "balanced_learned": {"assignment": "balanced", **LEARNED},
            "balanced_shared": {"assignment": "balanced", "share_qk": True, **LEARNED},
            "balanced_both": {"assignment": "balanced", **BOTH},
            "balanced_cross": {"assignment": "balanced", **CROSS},
            "balanced_grouped": {"assignment": "balanced", **GROUPED},
        },
    ),
    layers.LocalRoutingHeads: (
        LOCAL_ROUTING,
        {
            **POSITIONS,
            **SHARED,
            "sinusoidal": SINUSOIDAL,
            "persistent": {**PERSISTENT, **SINUSOIDAL},
            "look_back": {"look_back": 2, "kernel_size": 2},
            "own_block": {"look_back": 0, "kernel_size": 1},
            "probes": {"num_probes": 2, **PERSISTENT},
            "key": {"routed_key": "key", **LEARNED},
            "key_shared": {"routed_key": "key", "share_qk": True, "num_probes": 2},
            "key_not_normalized": {"routed_key": "key", "use_query_key_norm": False, **PERSISTENT},
            "not_normalized": {"use_query_key_norm": False},
            "grouped": {**GROUPED, **LEARNED},
            "key_grouped": {**GROUPED, "routed_key": "key"},
            "rotary": {"rotary": True},
            "global": {**GLOBAL, **LEARNED},
            "dense": {"dense_below": 50},
        },
    ),
    layers.RoutingMemoryHeads: (
        MEMORY,
        {
            "": {},
            **SHARED,
            "random": {"eviction": "random", **LEARNED},
            "least_attended": {"eviction": "least_attended"},
            "merged": {"eviction": "merged", "kernel_size": 1},
            "longer_blocks": {"memory_length": 7, "memory_block_size": 6, **SINUSOIDAL},
            "probes": {"num_probes": 2, "use_query_key_norm": False},
            "grouped": GROUPED,
        },
    ),
    layers.HashedHeads: (BUCKETS, {**POSITIONS, **SHARED, "grouped": GROUPED}),
    layers.RandomHeads: (CLUSTERS, {**POSITIONS, "grouped": GROUPED}),
    layers.ClusteredHeads: (
        {"num_clusters": 4, "bits": 15, "iterations": 3},
        {
            "both": BOTH,
            "top_k": {"top_k": 3, **BOTH},
            "causal": {"top_k": 3, "causal_by_mask": True},
            "cross": {"top_k": 3, **CROSS},
            "grouped": {**BOTH, **GROUPED},
        },
    ),
    layers.CausalClusteredHeads: (
        {"num_clusters": 4, "block_size": 4, "commitment_weight": 0.1},
        {"": {}, "grouped": GROUPED},
    ),
    layers.LSHHeads: (
        {"num_buckets": 4, "block_size": 4},
        {"": {}, "rounds": {"num_rounds": 2}, "both": {"num_rounds": 2, **BOTH}},
    ),
    layers.ClusterStridedHeads: (
        LEARNT_CLUSTERS,
        {**POSITIONS, **SHARED, "grouped": GROUPED},
    ),
    layers.StridedHeads: ({"stride": 3}, {**POSITIONS, "grouped": GROUPED}),
    layers.CompressiveHeads: (
        COMPRESSIVE,
        {
            **{name: {"compression": name} for name in ("conv", "mean", "max", "most_used")},
            "conv_learned": LEARNED,
            "mean_learned": {"compression": "mean", "look_back": 2, **LEARNED},
            "grouped": GROUPED,
        },
    ),
    t2t.T2TLocalHeads: (
        {"block_size": 4},
        {
            **POSITIONS,
            "grid": {"grid": (2, 3), **LEARNED},
            "cross": {**CROSS, **LEARNED, "key_block_size": 3},
            "value_dim": {**LEARNED, "value_dim": 3},
        },
    ),
    t2t.T2TRoutingHeads: (OF_DIALECT, {**POSITIONS, **SHARED}),
    t2t.T2TClusterStridedHeads: (OF_DIALECT, {**POSITIONS, **SHARED}),
    t2t.T2THashedHeads: ({**BUCKETS, "block_size": 4}, {**POSITIONS, **SHARED}),
    t2t.T2TStridedHeads: ({"stride": 3}, POSITIONS),
}

# The statistics that remain after an update of the centroids.
STATISTICS = ("average_counts", "average_sums", "empty_batches", "updates")


def cases():
    """Returns the head groups and the options of the attention and its call, by name."""
    found = {}
    for kind, (needed, variants) in CASES.items():
        for name, chosen in variants.items():
            options = {x: y for x, y in chosen.items() if x in (*ATTENTION, *CALL)}
            arguments = {x: y for x, y in chosen.items() if x not in options}
            group = kind(HEADS, **{**needed, **arguments})
            found[f"{kind.__name__}_{name}".rstrip("_")] = [group], options
    found["mixed"] = mixed_groups(), {"use_head_dense": True}
    return found


def seeded(group, number):
    """Returns a copy of a group with this number as its seed, if it has one."""
    config = group.get_config()
    return type(group).from_config({**config, "seed": number}) if "seed" in config else group


def mixed_groups():
    """Returns the groups of one layer: two of the same kind, some with persistent keys."""
    return [
        layers.RoutingHeads(1, 4, 4, share_qk=True),
        layers.LocalHeads(1, 4, max_relative_distance=5),
        layers.LocalRoutingHeads(1, 4, 4, 4),
        layers.LocalHeads(1, 4, max_relative_distance=5, **PERSISTENT),
        layers.FullHeads(2, memory_length=7),
    ]


def make_model():
    """Creates the model."""
    x = keras.Input([LENGTH, WIDTH], name="x")
    other = keras.Input([KEYS, WIDTH], name="other")
    mask = keras.Input([LENGTH], dtype="bool", name="mask")
    other_mask = keras.Input([KEYS], dtype="bool", name="other_mask")
    is_global = keras.Input([LENGTH], dtype="bool", name="is_global")
    outputs = {}
    for number, (name, (groups, options)) in enumerate(cases().items()):
        causal, cross, rotary = (
            options.pop(x, default) for x, default in zip(CALL, (True, False, False))
        )
        rotary = keras_hub.layers.RotaryEmbedding() if rotary else None
        layer = MultiHeadAttention(
            [seeded(group, number) for group in groups],
            DEPTH,
            dropout=0.3,
            seed=number,
            rotary_embedding=rotary,
            name=name,
            **options,
        )
        call = {"query_mask": mask, "value_mask": other_mask if cross else mask}
        if "num_global_tokens" in options:
            call["global_mask"] = is_global
        outputs[name] = layer(x, other if cross else x, use_causal_mask=causal, **call)
    return keras.Model([x, other, mask, other_mask, is_global], outputs, name="heads")


def draw_weights(model):
    """Assigns random values to all weights; those of centroids are realistic."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        drawn = rng.normal(size=weight.shape)
        if "int" in weight.dtype:
            # The states of random seeds do not change.
            continue
        if weight.name == "kernel":
            drawn *= 1.5 / weight.shape[0] ** 0.5
        elif weight.name == "span_share":
            drawn = rng.uniform(0.2, 0.8, size=weight.shape)
        weight.assign(drawn)
    for heads in heads_with_centroids(model):
        _draw_centroids(heads, rng)
    return model


def _draw_centroids(heads, rng):
    """Assigns centroids and statistics as after training, with one empty cluster."""

    def unit(shape):
        return keras.ops.normalize(rng.normal(size=shape).astype("float32"), axis=-1)

    centroids, samples = unit(heads.centroids.shape), unit(heads.centroids.shape)
    counts = rng.integers(1, 9, heads.member_counts.shape).astype("float32")
    counts[..., 0] = 0
    averages = rng.uniform(1, 9, heads.average_counts.shape).astype("float32")
    load_bias = rng.normal(size=heads.load_bias.shape)
    load_bias[:, 0] = -20
    heads.centroids.assign(centroids)
    heads.load_bias.assign(load_bias)
    heads.average_counts.assign(averages)
    heads.average_sums.assign(averages[..., None] * unit(heads.centroids.shape))
    heads.member_counts.assign(counts)
    heads.member_sums.assign(counts[..., None] * unit(heads.member_sums.shape))
    heads.member_samples.assign(samples)
    heads.member_batches.assign(2.0)
    heads.updates.assign(3.0)
    heads.empty_batches.assign(rng.integers(0, 9, heads.empty_batches.shape).astype("float32"))


def make_inputs():
    """Returns the inputs of the model; the second row has padding at its end."""
    rng = np.random.default_rng(1)
    x, other = (rng.normal(size=(BATCH, n, WIDTH)).astype("float32") for n in (LENGTH, KEYS))
    mask, other_mask = np.ones([BATCH, LENGTH], bool), np.ones([BATCH, KEYS], bool)
    mask[1, -3:] = other_mask[1, -2:] = False
    is_global = np.zeros([BATCH, LENGTH], bool)
    is_global[:, 11] = True
    return [x, other, mask, other_mask, is_global]


def found_by(model, inputs):
    """Returns the outputs of a loaded model, by step and name of the attention layer.

    The steps are a call; a training call, with seeded dropout; the losses of the latter; and, for
    heads with centroids, a call after an update of the centroids, and the remaining statistics.
    """
    found = {}

    def note(step, outputs):
        # Half of the features suffice, since each is a sum over all heads.
        for name, x in outputs.items():
            found[f"{step}/{name}"] = np.asarray(x)[..., : WIDTH // 2]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="With use_causal_mask=True, queries")
        ema = CentroidEMA(0.5, "count", initialize_from_batch=True, restart_after=5)
        ema.set_model(model)
        note("call", model(inputs))
        note("training", model(inputs, training=True))
        losses = {name: [sum(model.get_layer(name).losses)] for name in model.output}
        note("losses", losses)
        ema.update_centroids()
        moved = {
            name: output
            for name, output in model.output.items()
            if heads_with_centroids(model.get_layer(name))
        }
        note("moved", keras.Model(model.inputs, moved)(inputs))
    for name in moved:
        for number, heads in enumerate(heads_with_centroids(model.get_layer(name))):
            left = {x.name: np.ravel(x) for x in heads.weights}
            left = np.concatenate([left[statistic] for statistic in STATISTICS])
            found[f"statistics/{name}/{number}"] = left
    return found


def compress(path):
    """Compresses a `.keras` file, which is a zip file."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, part in parts.items():
            file.writestr(name, part)


def main(folder):
    """Writes the model and its outputs to a folder without these files."""
    path, outputs = folder / "heads.keras", folder / "heads.npz"
    if path.exists() or outputs.exists():
        raise SystemExit(f"{path} exists; later versions must load it and must not regenerate it")
    model = draw_weights(make_model())
    model.save(path)
    compress(path)
    np.savez_compressed(outputs, **found_by(model, make_inputs()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
