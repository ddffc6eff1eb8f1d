"""Models of configurations in `tests/golden/saved`, and their outputs.

`python -m tests.training.saved_runs FOLDER` writes such files. Those in `tests/golden/saved` are of
the version that first had them: later versions must load them, and never overwrite them.
"""

import sys
from pathlib import Path

import keras
import numpy as np

from rt_keras.training import experiment, run_folder
from rt_keras.training.config import load_saved_config, make_config
from tests.layers.saved_heads import draw_weights
from tests.models.saved_models import logits

SIZES = {
    "model.vocabulary_size": 20,
    "model.num_layers": 1,
    "model.hidden_dim": 8,
    "model.intermediate_dim": 8,
    "model.key_dim": 4,
    "data.sequence_length": 24,
    "schedule.warmup_steps": 0,
}
CLUSTERS = {"num_clusters": 4, "window_size": 4}
BUCKETS = {"num_buckets": 4, "window_size": 4}
MEMORY = {"memory_length": 5, "memory_keys": 2, "eviction": "merged"}
# By the name of the run, the values of each kind of heads.
RUNS = {
    "run_every_kind": {
        "routing": {**CLUSTERS, "max_relative_distance": 5, "num_persistent_keys": 2},
        "local_routing": {**CLUSTERS, "block_size": 4, "kernel_size": 2},
        "routing_memory": {**CLUSTERS, **MEMORY, "block_size": 4},
        "hashed": {**BUCKETS, "share_qk": True},
        "random": CLUSTERS,
        "clustered": {"num_clusters": 4, "bits": 15, "top_k": 3, "causal_by_mask": True},
        "causal_clustered": {"num_clusters": 4, "block_size": 4},
        "lsh": {"num_buckets": 4, "block_size": 4},
        "cluster_strided": {**CLUSTERS, "max_relative_distance": 5},
        "strided": {"stride": 3},
        "local": {"block_size": 4, "max_relative_distance": 5, "adaptive_span": True},
        "compressive": {"block_size": 4, "compressed_length": 4, "compression_rate": 2},
        "full": {"max_relative_distance": 5, "relative_positions": "sinusoidal"},
    },
    "run_of_dialect": {
        "routing": {**CLUSTERS, "assignment": "balanced", "max_relative_distance": 5},
        "hashed": {**BUCKETS, "share_qk": True, "max_relative_distance": 5},
        "cluster_strided": CLUSTERS,
        "strided": {"stride": 3},
        "local": {"block_size": 4, "max_relative_distance": 5},
    },
    "run_of_gated_delta": {
        "gated_delta": {"block_size": 4, "kernel_size": 3},
        "local": {"block_size": 4},
    },
    "run_of_native_sparse": {
        "native_sparse": {"block_size": 2, "num_blocks": 4, "window_size": 5},
        "local": {"block_size": 4},
    },
    "run_of_union": {
        "union": {
            "window.block_size": 4,
            **{f"cluster.{name}": size for name, size in CLUSTERS.items()},
            "cluster.use_query_key_norm": False,
        },
    },
}
# By the name of the run, other values.
OTHERS = {
    "run_of_dialect": {"model.dialect": "t2t"},
    "run_of_union": {"trainer.stateful": True},
}


def make_run(name):
    """The configuration of a run."""
    values = {**SIZES, **OTHERS.get(name, {})}
    for kind, options in RUNS[name].items():
        values |= {f"model.{kind}.{key}": x for key, x in {"num_heads": 2, **options}.items()}
    return make_config(values)


def made_of(folder):
    """Creates the model of the configuration in a folder."""
    keras.utils.set_random_seed(0)
    return experiment.Experiment(load_saved_config(folder / "config.yaml")).make_model()


def main(folder):
    for name in RUNS:
        if (folder / name).exists():
            raise SystemExit(f"{folder / name} is there: later versions must load it")
        run_folder.write_config(folder / name, make_run(name))
        model = draw_weights(made_of(folder / name))
        model.save_weights(folder / name / "model.weights.h5")
        np.save(folder / name / "logits.npy", logits(model))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
