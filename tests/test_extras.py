"""Tests of the base installation, without extras."""

import importlib
import json
import re
import subprocess
import sys

import pytest

from rt_keras import extras
from rt_keras.analysis import attention_map

OF_EXTRAS = (
    *("official", "tensorflow_datasets", "array_record"),
    *("tensorflow_serving", "matplotlib", "tf_keras"),
)

# Runs in a process in which no package of an extra can be imported.
BASE = f"""
import json, sys
sys.modules.update(dict.fromkeys({OF_EXTRAS}))
import keras, numpy as np, rt_keras
from rt_keras import cli, data, layers, models

folder, commands = sys.argv[1], json.loads(sys.argv[2])
inputs = keras.Input([None, 8])
attention = layers.MultiHeadAttention([layers.LocalHeads(1, 4), layers.RoutingHeads(1, 2, 4)])
model = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=True))
model.save(folder + "/model.keras")
x = np.ones([1, 8, 8], "float32")
assert np.array_equal(keras.saving.load_model(folder + "/model.keras")(x), model(x))

name = "sparse_transformer_local"
published = models.RoutingTransformerBackbone.from_preset(name, load_weights=False)
assert published.count_params() > 0

backbone = models.RoutingTransformerBackbone(258, 1, 8, 8, [layers.RoutingHeads(1, 2, 4)])
preprocessor = models.RoutingTransformerCausalLMPreprocessor(data.ByteTokenizer())
model = models.RoutingTransformerCausalLM(backbone, preprocessor)
model.compile(sampler="greedy", jit_compile=False)
text = model.generate("ab", max_length=6)
model.save_to_preset(folder + "/preset")
again = models.RoutingTransformerCausalLM.from_preset(folder + "/preset")
again.compile(sampler="greedy", jit_compile=False)
assert again.generate("ab", max_length=6) == text

for command in commands:
    print(command[0], cli.main(command), file=sys.stderr)
"""


def test_the_error_names_the_extra_and_the_package():
    with pytest.raises(ModuleNotFoundError) as caught, extras.needed("plot", "Drawing"):
        import no_such_package  # noqa: F401
    assert str(caught.value) == (
        "Drawing needs the extra `plot`: pip install 'rt_keras[plot]' "
        "(No module named 'no_such_package')"
    )
    assert caught.value.name == "no_such_package"


@pytest.fixture(scope="module")
def base_process(tmp_path_factory):
    """The standard error of the process, with the commands and their exit statuses."""
    folder = str(tmp_path_factory.mktemp("base"))
    preset = f"{folder}/preset"
    commands = [
        ["configs"],
        ["generate", "--model", preset, "--prompt", "a", "--max-length", "4"],
        ["train", "--config", "quickstart", "--output", f"{folder}/run"],
        ["evaluate", "--model", preset, "--data", "python_source"],
        ["export", "--model", preset, "--output", f"{folder}/exported"],
        ["quickstart", "--output", f"{folder}/quickstart"],
    ]
    command = [sys.executable, "-c", BASE, folder, json.dumps(commands)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.end_to_end
def test_layers_models_presets_and_generation_need_no_extra(base_process):
    assert "configs 0\n" in base_process
    assert "generate 0\n" in base_process


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "command, extra",
    [("train", "train"), ("evaluate", "train"), ("export", "serving"), ("quickstart", "serving")],
)
def test_a_command_names_the_extra_that_it_needs_in_one_line(base_process, command, extra):
    line = re.search(rf"(.*)\n{command} 1\n", base_process)[1]
    assert line.startswith("rt-keras: error: ")
    assert f"needs the extra `{extra}`: pip install 'rt_keras[{extra}]' (" in line
    assert "Traceback" not in base_process


def test_data_sets_and_drawing_name_their_extras(monkeypatch, tmp_path):
    loaded = [name for name in sys.modules if name.partition(".")[0] in OF_EXTRAS]
    for name in (*OF_EXTRAS, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("tfds_sets", "text_folder", "pairs_folder"):
        monkeypatch.delitem(sys.modules, f"rt_keras.data.{name}", raising=False)
        with pytest.raises(ModuleNotFoundError, match="Reading data sets needs the extra `train`"):
            importlib.import_module(f"rt_keras.data.{name}")
    with pytest.raises(ModuleNotFoundError, match="Drawing needs the extra `plot`"):
        maps = {"tokens": ["a"], "weights": [[[[1.0]]]], "heads": [["FullHeads"]]}
        attention_map.draw(maps, tmp_path / "map.png")
