"""Tests that imports go down only, without cycles, and of importing the package."""

import ast
import functools
import graphlib
import importlib
import pkgutil
import re
from pathlib import Path

import keras
import pytest

import rt_keras
from rt_keras.convert.t2t.heads import T2TLocalHeads
from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
from tests.processes import printed

ROOT = Path(rt_keras.__file__).parent
FOLDERS = {path.parent.name for path in ROOT.glob("*/__init__.py")}
# From the bottom. A folder may import only folders below it.
FLOORS = [
    ("ops",),
    ("layers",),
    ("models", "callbacks", "data"),
    ("training", "retrieval", "serving", "convert", "analysis"),
    ("cli", "benchmarks"),
]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path, modules=()):
    """The modules that a file imports, at its top or in a function.

    `from a import b` is taken for `a.b` if that is among `modules`, else for `a`.
    """
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names)


@functools.cache
def graph():
    """For each module of the package, the modules that it imports."""
    files = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        files[".".join(part for part in parts if part != "__init__")] = path
    return {
        name: set(imported(path, files)) & files.keys() - {name} for name, path in files.items()
    }


def floor(name):
    """The floor of a module; None for files outside the folders."""
    folder = name.split(".")[1] if "." in name else ""
    return next((number for number, names in enumerate(FLOORS) if folder in names), None)


def test_every_folder_is_on_a_floor():
    assert {name for names in FLOORS for name in names} == FOLDERS


def test_no_folder_imports_one_above_it():
    wrong = [
        (name, other)
        for name, others in graph().items()
        for other in others
        if None not in (floor(name), floor(other)) and floor(other) > floor(name)
    ]
    assert not wrong


def test_there_are_no_circles():
    # A folder imports its files, which may import one another but not the folder.
    for name, others in graph().items():
        assert name.count(".") < 2 or name.rpartition(".")[0] not in others, name
    modules = {
        name: {other for other in others if other.removeprefix("rt_keras.") not in FOLDERS}
        for name, others in graph().items()
    }
    modules.pop("rt_keras")
    graphlib.TopologicalSorter(modules).prepare()


def test_keras_hub_and_the_training_stack_stay_above():
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        packages = {name.split(".")[0] for name in imported(path) if name}
        if folder in ("ops", "layers"):
            assert "keras_hub" not in packages, path
        if folder in ("ops", "layers", "models", "callbacks", "data"):
            assert "official" not in packages, path


@pytest.mark.slow
@pytest.mark.parametrize("packages", ["keras, rt_keras", "rt_keras.layers, keras"])
def test_saved_model_loads_where_only_the_package_is_imported(tmp_path, packages):
    inputs = keras.Input([None, 16])
    groups = [LocalHeads(1, 4), RoutingHeads(1, 2, 4), T2TLocalHeads(1, 4)]
    model = keras.Model(inputs, MultiHeadAttention(groups, key_dim=4)(inputs, inputs))
    path = tmp_path / "model.keras"
    model.save(path)
    code = f"import {packages}; print(keras.saving.load_model({str(path)!r}).count_params())"
    assert printed(code).split() == [str(model.count_params())]


# Prints which layers and models importing the package imports, and which classes Keras misses.
FINDS = """
import sys
import keras, rt_keras
print([name for name in sys.modules if name.startswith(("rt_keras.layers.", "rt_keras.models"))])
names = sys.argv[1:]
print([x for x in names if keras.saving.get_registered_object(f"rt_keras>{x}") is None])
"""


@pytest.mark.slow
def test_keras_finds_every_class_that_is_saved_by_name():
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    decorated = r'^@.*register_keras_serializable\(package="rt_keras"\)\nclass (\w+)'
    names = re.findall(decorated, "\n".join(texts), re.MULTILINE)
    assert {"Window", "T2TModel", "ByteTokenizer", "InverseSquareRoot"} <= set(names)
    assert printed(FINDS, *names).splitlines() == ["[]", "[]"]


def test_a_package_has_its_public_names_and_its_modules():
    for name in ("layers", "layers.key_sets", "ops", "models", "data", "serving", "convert"):
        package = importlib.import_module(f"rt_keras.{name}")
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        # A module would hide a function of the same name.
        assert not modules & set(package.__all__)
        assert modules | set(package.__all__) <= set(dir(package))
        for public in package.__all__:
            assert getattr(package, public).__name__ == public
        with pytest.raises(AttributeError, match=f"rt_keras.{name}' has no attribute 'other'"):
            package.other  # noqa: B018


@pytest.mark.slow
def test_an_experiment_imports_what_it_needs():
    code = """
import sys
from rt_keras.training import config, experiment, run
run.compiled_model(experiment.Experiment(config.load_config("books")))
print(*[name for name in sys.modules if name.startswith("rt_keras.")])
"""
    modules = printed(code).split()
    others = ("rt_keras.convert", "rt_keras.serving", "rt_keras.models.adapted")
    assert not [name for name in modules if name.startswith(others)]
    assert len(modules) <= 125


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ImportError, match="needs the TensorFlow backend of Keras. Received: 'jax'"):
        importlib.reload(rt_keras.layers)


def test_every_folder_of_the_package_is_an_attribute():
    assert set(dir(rt_keras)) >= FOLDERS
    for name in FOLDERS:
        # `rt_keras.name` calls this if the part is not imported yet.
        assert rt_keras.__getattr__(name) is importlib.import_module(f"rt_keras.{name}")
    with pytest.raises(AttributeError, match="no attribute 'layer'"):
        rt_keras.layer  # noqa: B018
