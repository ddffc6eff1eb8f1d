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


def check_same(loaded, expected):
    assert type(loaded) is type(expected)
    assert repr(loaded.adaptation) == repr(expected.adaptation)
    assert loaded.backbone.trained_length == expected.backbone.trained_length
    assert loaded.preprocessor.sequence_length == expected.preprocessor.sequence_length
    for found, wanted in zip(inputs_of(loaded).values(), inputs_of(expected).values()):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(loaded(inputs_of(loaded)), expected(inputs_of(expected)))


def test_presets_are_loaded(adapted, tmp_path):
    adapted.save_to_preset(tmp_path)
    check_same(keras_hub.models.CausalLM.from_preset(str(tmp_path)), adapted)
    tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(str(tmp_path))
    assert type(tokenizer) is type(adapted.preprocessor.tokenizer)


def test_preprocessors_that_are_set_later_are_saved_whole(tmp_path):
    folder = write_llama(tmp_path / "llama")
    original = keras_hub.models.CausalLM.from_preset(str(folder))
    task = rt_keras.adapt(original, [FullHeads(4)])
    task.preprocessor = original.preprocessor
    task.save(tmp_path / "model.keras")
    check_same(keras.saving.load_model(tmp_path / "model.keras"), task)
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
