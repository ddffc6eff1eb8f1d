import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.adapted.text_embedder import AdaptedTextEmbedder
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
    return rt_keras.adapt(folder, [FullHeads(2)])


def test_embeddings_are_those_of_keras_hub(original, adapted):
    assert isinstance(adapted, AdaptedTextEmbedder) and adapted.pooling_mode == "mean"
    # That of the files, which is less than the number of positions.
    assert adapted.preprocessor.sequence_length == 16
    expected = original.encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(adapted.embed_texts(TEXTS), expected, atol=1e-5)


def test_longer_texts(folder):
    adapted = rt_keras.adapt(folder, [LocalHeads(2, block_size=8)], max_sequence_length=40)
    assert adapted.preprocessor.sequence_length == 40
    texts = [" ".join(["the cat"] * 17), " ".join(["the cat"] * 17) + " end"]
    first, second = adapted.embed_texts(texts)
    assert np.abs(first - second).max() > 1e-4


def test_saved_loaded_and_restored(original, adapted, tmp_path):
    adapted.question_length = 8
    adapted.save_to_preset(tmp_path / "preset")
    adapted.save(tmp_path / "model.keras")
    for loaded in (
        load_model(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert (loaded.question_length, loaded.temperature) == (8, 0.05)
        expected = adapted.embed_texts(TEXTS)
        np.testing.assert_allclose(loaded.embed_texts(TEXTS), expected, atol=1e-6)
    restored = rt_keras.restore(adapted)
    assert type(restored) is keras_hub.models.BertTextEmbedder
    expected = original.encode_text(TEXTS, verbose=0)
    np.testing.assert_allclose(restored.encode_text(TEXTS, verbose=0), expected, atol=1e-5)


@pytest.mark.end_to_end
def test_it_learns_which_passage_answers(folder):
    keras.utils.set_random_seed(0)
    model = rt_keras.adapt(folder, [LocalHeads(1, block_size=4), FullHeads(1)])
    model.compile(keras.optimizers.Adam(0.02), jit_compile=False)
    pairs = {
        "question": tf.constant(["who sat", "what is the end"]),
        "passages": tf.constant([["the cat sat"], ["the end of it"]]),
    }
    data = tf.data.Dataset.from_tensors((pairs, tf.ones([2])))
    before = model.evaluate(data, verbose=0)
    model.fit(data.repeat(30), verbose=0)
    after = model.evaluate(data, verbose=0)
    assert after < 0.8 * before, (before, after)
