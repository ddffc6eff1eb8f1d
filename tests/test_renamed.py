"""Tests of the names of earlier versions: in saved files, in configurations and on their page."""

import inspect
import re
from pathlib import Path

import keras
import pytest

import rt_keras
from rt_keras import layers, ops, renamed, t2t
from rt_keras.layers import key_sets
from rt_keras.layers.declared_options import options_of_class
from rt_keras.training.config import config_keys, load_config, load_saved_config

PAGE = Path(rt_keras.__file__).parents[1] / "docs" / "renamed.md"
CLASSES = {name: getattr(layers, name, getattr(key_sets, name, None)) for name in renamed.ARGUMENTS}


def rows(title):
    """The rows of the table in a section of the page, without their quotes."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    return [tuple(re.findall("`([^`]+)`", line)) for line in section.splitlines() if "| `" in line]


def test_the_page_lists_the_arguments_of_constructors():
    expected = [(cls, *names) for cls, x in renamed.ARGUMENTS.items() for names in x.items()]
    assert rows("Constructors") == expected


def test_the_page_lists_the_keys():
    assert rows("Configuration keys") == list(renamed.KEYS.items())


@pytest.mark.parametrize("function, old, new", rows("Functions"))
def test_functions_have_the_new_arguments(function, old, new):
    parameters = inspect.signature(getattr(ops, function)).parameters
    assert new in parameters and old not in parameters


@pytest.mark.parametrize("name", renamed.ARGUMENTS)
def test_constructors_have_the_new_arguments_alone(name):
    cls = CLASSES[name]
    fields = options_of_class(cls) if issubclass(cls, key_sets.KeySet) else None
    parameters = fields or inspect.signature(cls.__init__).parameters
    for old, new in renamed.ARGUMENTS[name].items():
        assert new in parameters and old not in parameters


def test_an_old_argument_is_an_unknown_one():
    with pytest.raises(TypeError, match="normalize"):
        key_sets.Cluster(4, 4, normalize=False)
    with pytest.raises(ValueError, match="Unrecognized keyword arguments.*normalize"):
        layers.RoutingHeads(2, 4, 4, normalize=False)
    with pytest.raises(TypeError, match="block_size"):
        layers.LSHHeads(2, 4, chunk_size=4)
    with pytest.raises(TypeError, match="num_buckets"):
        layers.HashedHeads(2, num_clusters=4, window_size=4)


@keras.saving.register_keras_serializable(package="test_renamed")
class Routed(layers.RoutingHeads):
    """A subclass of the user's."""


@pytest.mark.parametrize(
    "cls, saved, new",
    [
        (layers.HashedHeads, {"num_clusters": 5, "window_size": 4}, {"num_buckets": 5}),
        (layers.LSHHeads, {"num_buckets": 4, "chunk_size": 6}, {"block_size": 6}),
        (
            t2t.T2THashedHeads,
            {"num_clusters": 5, "window_size": 4, "block_size": 4},
            {"num_buckets": 5},
        ),
        (
            Routed,
            {"num_clusters": 5, "window_size": 4, "normalize": False},
            {"use_query_key_norm": False, "num_clusters": 5},
        ),
    ],
)
def test_saved_arguments_get_their_new_names(cls, saved, new):
    group = cls.from_config({"num_heads": 2, **saved})
    assert {name: getattr(group, name) for name in new} == new
    # Saved again, it has the new names.
    assert {**group.get_config(), **new} == group.get_config()


def test_keys_have_their_new_names_alone():
    known = {key.name for key in config_keys()}
    assert known >= {*renamed.KEYS.values()} and not known & {*renamed.KEYS}


@pytest.mark.parametrize("old, new", renamed.KEYS.items())
def test_an_old_key_is_refused_with_its_new_name(old, new):
    with pytest.raises(ValueError, match=f"^unknown key {old}; it was renamed to {new}$"):
        load_config("quickstart", [f"{old}=true"])


def test_the_configuration_of_a_run_may_have_old_keys(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: {lsh: {num_heads: 2, chunk_size: 16}}\ntrainer: {carry_state: true}\n")
    with pytest.raises(ValueError, match="unknown key model.lsh.chunk_size; it was renamed to"):
        load_config(path)
    config = load_saved_config(path, ["trainer.steps=300"])
    assert config.model.lsh.block_size == 16
    assert config.trainer.stateful and config.trainer.steps == 300
