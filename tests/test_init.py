"""Tests of importing the package."""

import importlib
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import rt_keras
from rt_keras.convert.t2t.heads import T2TLocalHeads
from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads


@pytest.mark.slow
def test_saved_model_loads_where_only_the_package_is_imported(tmp_path):
    inputs = keras.Input([None, 16])
    groups = [LocalHeads(1, 4), RoutingHeads(1, 2, 4), T2TLocalHeads(1, 4)]
    model = keras.Model(inputs, MultiHeadAttention(groups, key_dim=4)(inputs, inputs))
    path = tmp_path / "model.keras"
    model.save(path)
    code = f"import keras, rt_keras; print(keras.saving.load_model({str(path)!r}).count_params())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == [str(model.count_params())], result.stderr


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ImportError, match="needs the TensorFlow backend of Keras. Received: 'jax'"):
        importlib.reload(rt_keras.layers)


def test_every_folder_of_the_package_is_an_attribute():
    folders = {path.parent.name for path in Path(rt_keras.__file__).parent.glob("*/__init__.py")}
    assert folders >= {"analysis", "convert", "layers", "models", "ops", "training"}
    assert folders <= set(dir(rt_keras))
    for name in folders:
        # `rt_keras.name` calls this if the part is not imported yet.
        assert rt_keras.__getattr__(name) is importlib.import_module(f"rt_keras.{name}")
    with pytest.raises(AttributeError, match="no attribute 'layer'"):
        rt_keras.layer  # noqa: B018
