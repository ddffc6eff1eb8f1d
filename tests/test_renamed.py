"""Tests of the names of earlier versions, in saved files and in configurations."""

import pytest

from rt_keras import layers
from rt_keras.training.config import load_config, load_saved_config


def test_saved_files_get_the_new_names_and_users_are_told_them(tmp_path):
    group = layers.LSHHeads.from_config({"num_heads": 2, "num_buckets": 4, "chunk_size": 6})
    assert group.get_config()["block_size"] == 6
    path = tmp_path / "config.yaml"
    path.write_text("model: {lsh: {num_heads: 2, chunk_size: 16}}\ntrainer: {carry_state: true}\n")
    config = load_saved_config(path, ["trainer.steps=300"])
    assert config.model.lsh.block_size == 16
    assert config.trainer.stateful and config.trainer.steps == 300
    message = "^unknown key model.lsh.chunk_size; it was renamed to model.lsh.block_size$"
    with pytest.raises(ValueError, match=message):
        load_config(path)
