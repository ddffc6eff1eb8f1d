"""Helpers for the tests of the TPU check."""

from importlib import metadata

import pytest

from rt_keras.tpu import check

TINY = {
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "model.intermediate_dim": 16,
    "model.vocabulary_size": 32,
    "model.local_routing.num_heads": 0,
    "model.local.num_heads": 1,
    "model.local.block_size": 8,
    "model.routing.num_heads": 1,
    "model.routing.num_clusters": 2,
    "model.routing.window_size": 8,
    "data.sequence_length": 16,
    "trainer.mixed_bfloat16": True,
}


def installed(packages):
    try:
        return all(metadata.version(name) == version for name, version in packages.items())
    except metadata.PackageNotFoundError:
        return False


needs_compiler = pytest.mark.skipif(
    not installed(check.COMPILER), reason="needs the TPU compiler: pip install .[tpu-check]"
)
