import gc

import keras
import keras_hub
import numpy as np
import pytest

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads
from tests.models.adapted.llama_folder import SPECIAL, write_llama
from tests.processes import printed

TEXT = f"the cat and the dog{SPECIAL[2]} the end"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return rt_keras.adapt(write_llama(tmp_path_factory.mktemp("llama")), [LocalHeads(4, 8)])


def inputs_of(task):
    return task.preprocessor.generate_preprocess([TEXT, "the"], sequence_length=32)


def test_preprocessors_that_are_set_later_are_saved_whole(tmp_path):
    folder = write_llama(tmp_path / "llama")
    original = keras_hub.models.CausalLM.from_preset(str(folder))
    task = rt_keras.adapt(original, [FullHeads(4)])
    task.preprocessor = original.preprocessor
    task.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(task) and repr(loaded.adaptation) == repr(task.adaptation)
    assert loaded.backbone.trained_length == task.backbone.trained_length
    assert loaded.preprocessor.sequence_length == task.preprocessor.sequence_length
    inputs, expected = inputs_of(loaded), inputs_of(task)
    for name, values in expected.items():
        np.testing.assert_array_equal(inputs[name], values)
    np.testing.assert_array_equal(loaded(inputs), task(expected))
    assert type(original.preprocessor.tokenizer) is keras_hub.tokenizers.Llama3Tokenizer


def test_what_could_not_be_loaded_is_not_saved(adapted, tmp_path):
    class Own(keras_hub.models.Llama3CausalLMPreprocessor):
        pass

    task = rt_keras.adapt(rt_keras.restore(adapted), [FullHeads(4)])
    for preprocessor in (Own(task.preprocessor.tokenizer), lambda x: x):
        task.preprocessor = preprocessor
        for save in (task.save, task.save_to_preset):
            with pytest.raises(ValueError, match="could not be loaded again. Register its class"):
                save(tmp_path / "model.keras")
    assert not (tmp_path / "model.keras").exists()


TOKENS = {name: np.ones([1, 9], "int32") for name in ("token_ids", "padding_mask")}


@pytest.mark.slow
def test_a_new_model_is_quantized_and_saved(tmp_path):
    task = rt_keras.adapt(write_llama(tmp_path), [LocalHeads(4, block_size=8)])
    frozen = gc.get_freeze_count()
    task.quantize("int8")
    # Objects from before can be collected again.
    assert gc.get_freeze_count() <= frozen
    attention = task.backbone.transformer_layers[0]._self_attention_layer
    assert attention.query_dense.quantization_mode == "int8"
    labels = np.full([1, 9], 2)
    expected = keras.losses.sparse_categorical_crossentropy(labels, task(TOKENS), True)
    losses = task.score(TOKENS["token_ids"], scoring_mode="loss", target_ids=labels)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    task.compile(sampler="greedy", jit_compile=False)
    assert task.generate("the", max_new_tokens=3).startswith("the")
    task.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    np.testing.assert_array_equal(loaded(TOKENS), task(TOKENS))
    with pytest.raises(ValueError, match="is quantized. Adapt or restore a model before"):
        rt_keras.restore(loaded)


LOAD = """
import sys, numpy as np
import keras, keras_hub, rt_keras
folder = sys.argv[1]
saved = np.load(f"{folder}/saved.npz")
keras_file = keras.saving.load_model(f"{folder}/model.keras")
preset = keras_hub.models.CausalLM.from_preset(f"{folder}/preset")
for task in (keras_file, preset):
    found = task.preprocessor.generate_preprocess([str(saved["text"]), "the"], sequence_length=32)
    np.testing.assert_array_equal(found["token_ids"], saved["token_ids"])
    np.testing.assert_array_equal(task(found), saved["logits"])
"""


@pytest.mark.slow
def test_other_processes_load_what_was_saved(adapted, tmp_path):
    inputs = {name: np.asarray(x) for name, x in inputs_of(adapted).items()}
    np.savez(tmp_path / "saved.npz", text=TEXT, logits=adapted(inputs), **inputs)
    adapted.save(tmp_path / "model.keras")
    adapted.save_to_preset(tmp_path / "preset")
    printed(LOAD, tmp_path)
