import dataclasses
import random

import pytest

from rt_keras.keys import keys_of, read_section
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import Strided, Window
from rt_keras.models.head_kind import HeadKind, Place, section_of_set, with_keys_of
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import ModelSection


class LocalStridedHeads(Heads):
    declared = (Window, Strided)
    fixed = {"grid": None, "key_block_size": None}


@with_keys_of(LocalStridedHeads, "block_size look_back stride", block_size=64, stride=16)
class LocalStrided(HeadKind):
    """Heads that attend to a window and every n-th key."""

    name = "local_strided"


def test_keys_are_options_of_the_sets():
    keys, of_window = keys_of(LocalStrided), keys_of(Window)
    assert list(keys) == ["num_heads", "block_size", "look_back", "stride"]
    assert [key.default for key in keys.values()] == [None, 64, 1, 16]
    assert keys["look_back"] == of_window["look_back"]
    assert keys["block_size"] == dataclasses.replace(of_window["block_size"], default=64)


def test_errors_of_the_layer_keep_its_message():
    section = read_section(LocalStrided, {"num_heads": 2, "stride": 5})
    section.check(ModelSection())
    assert section.layer(**section.arguments(Place(0))).key_sets == (Window(64), Strided(5))
    section.stride = 0
    message = "^model.local_strided: stride must be an integer of at least 1. Received: stride=0$"
    with pytest.raises(ValueError, match=message):
        section.check(ModelSection())


def test_required_options_default_to_null_in_the_section_of_a_set():
    keys = keys_of(section_of_set(Window, without=("key_block_size",)))
    assert keys["block_size"].optional and keys["block_size"].default is None
    assert keys["look_back"] == keys_of(Window)["look_back"]
    # Nor attributes that are not declared as keys.
    assert not {"key_block_size", "grid", "position_biases"} & keys.keys()


def test_has_values_compares_with_the_defaults():
    assert not LocalStrided(num_heads=2).has_values()
    assert LocalStrided(stride=5).has_values()


def test_a_check_draws_no_random_numbers():
    random.seed(0)
    expected = random.random()
    random.seed(0)
    for name, kind in HEAD_KINDS.items():
        if name != "union":
            kind(num_heads=2).check(ModelSection())
    assert random.random() == expected
