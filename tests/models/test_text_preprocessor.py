"""What all preprocessors of texts have in common."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer

TEXTS = ["the quick fox", "", "é"]
# The preprocessors, each with one of its length arguments, and an example.
PREPROCESSORS = {
    models.RoutingTransformerCausalLMPreprocessor: ("sequence_length", TEXTS),
    models.RoutingTransformerSeq2SeqLMPreprocessor: (
        "decoder_sequence_length",
        {"encoder_text": TEXTS, "decoder_text": TEXTS[::-1]},
    ),
    models.RoutingTransformerTextEmbedderPreprocessor: ("sequence_length", TEXTS),
    models.RoutingTransformerReaderPreprocessor: (
        "answer_length",
        {"question": TEXTS, "passages": [TEXTS, TEXTS, TEXTS], "answer": TEXTS[::-1]},
    ),
}


def same(results, others):
    for result, other in zip(tf.nest.flatten(results), tf.nest.flatten(others), strict=True):
        np.testing.assert_array_equal(result, other)


@pytest.mark.parametrize("cls", PREPROCESSORS, ids=lambda cls: cls.__name__)
def test_config_and_pipelines_give_the_same(cls):
    length, texts = PREPROCESSORS[cls]
    preprocessor = cls(ByteTokenizer(), **{length: 7})
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(preprocessor))
    assert type(copy) is cls and copy.get_config() == preprocessor.get_config()
    assert copy.get_config()[length] == 7
    expected = preprocessor(texts)
    same(copy(texts), expected)
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    (batched,) = dataset.batch(3).map(preprocessor)
    same(batched, expected)
    with pytest.raises(TypeError, match="of rt_keras.data, such as ByteTokenizer.*Received: a Tok"):
        cls(keras_hub.tokenizers.Tokenizer())
    with pytest.raises(ValueError, match=f"{length} must be at least 1. Received: {length}=0"):
        cls(ByteTokenizer(), **{length: 0})


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "word_piece"], indirect=True)
def test_a_saved_model_takes_and_gives_strings(tokenizer, tmp_path):
    causal = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    pairs = models.RoutingTransformerSeq2SeqLMPreprocessor(tokenizer)
    strings = tf.TensorSpec([None], tf.string)
    names = ("encoder_text", "decoder_text")
    module = tf.Module()
    module.preprocessors = [causal, pairs]
    module.causal = tf.function(
        lambda text: causal.generate_postprocess(causal.generate_preprocess(text)),
        input_signature=[strings],
    )
    module.pairs = tf.function(
        lambda texts: pairs.generate_postprocess(pairs.generate_preprocess(texts)),
        input_signature=[dict.fromkeys(names, strings)],
    )
    tf.saved_model.save(module, tmp_path)
    loaded, given = tf.saved_model.load(tmp_path), tf.constant(["the quick fox", ""])
    for found in (loaded.causal(given), loaded.pairs(dict.fromkeys(names, given))):
        assert found.numpy().tolist() == [b"the quick fox", b""]
