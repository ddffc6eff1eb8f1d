import keras
import keras_hub
import numpy as np
import pytest

import rt_keras
from rt_keras.keras_internals import part_of
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.adapted.tasks import AdaptedTextEmbedder
from rt_keras.training.experiment import load_model
from tests.models.adapted.sentence_folder import write_embedder

TEXTS = ["the cat sat on the mat", "what is it", "a dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_embedder(tmp_path_factory.mktemp("sentences"))


@pytest.fixture(scope="module")
def original(folder):
    return keras_hub.models.TextEmbedder.from_preset(str(folder))


@pytest.fixture(scope="module")
def adapted(folder):
    adapted = rt_keras.adapt(folder, [FullHeads(2)])
    adapted.compile(jit_compile=False)
    return adapted


@pytest.mark.slow
def test_embeddings_are_those_of_keras_hub(folder, adapted):
    original = keras_hub.models.TextEmbedder.from_preset(str(folder))
    for block in original.backbone.transformer_layers:  # KerasHub approximates GELU.
        part_of(block, "feedforward_intermediate_dense").activation = keras.activations.gelu
    assert isinstance(adapted, AdaptedTextEmbedder) and adapted.pooling_mode == "mean"
    # That of the files, which is less than the number of positions.
    assert adapted.preprocessor.sequence_length == 16
    expected = original.encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(adapted.embed_texts(TEXTS), expected, atol=1e-5)


def test_longer_texts(original):
    before = original.preprocessor.sequence_length
    adapted = rt_keras.adapt(original, [LocalHeads(2, block_size=8)], max_sequence_length=40)
    adapted.compile(jit_compile=False)
    assert adapted.preprocessor.sequence_length == 40
    assert original.preprocessor.sequence_length == before != 40
    texts = [" ".join(["the cat"] * 17), " ".join(["the cat"] * 17) + " end"]
    first, second = adapted.embed_texts(texts)
    assert np.abs(first - second).max() > 1e-4


@pytest.mark.slow
def test_an_embedder_is_saved_loaded_and_restored(original, adapted, tmp_path):
    adapted.question_length = 8
    adapted.save_to_preset(tmp_path / "preset")
    adapted.save(tmp_path / "model.keras")
    for loaded in (
        load_model(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert (loaded.question_length, loaded.temperature) == (8, 0.05)
        loaded.compile(jit_compile=False)
        expected = adapted.embed_texts(TEXTS)
        np.testing.assert_allclose(loaded.embed_texts(TEXTS), expected, atol=1e-6)
    restored = rt_keras.restore(adapted)
    assert type(restored) is keras_hub.models.BertTextEmbedder
    expected = original.encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(restored.encode_text(TEXTS, verbose=0), expected, atol=1e-5)
