"""What all preprocessors of texts have in common."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.data.wav import encode_wav
from tests.models import checks

TEXTS = ["the quick fox", "", "é"]


def speech(tokenizer, **lengths):
    converter = models.RoutingTransformerAudioConverter(8)
    return models.RoutingTransformerSpeechRecognizerPreprocessor(tokenizer, converter, **lengths)


# The preprocessors, each with one of its length arguments, and an example.
PREPROCESSORS = {
    models.RoutingTransformerCausalLMPreprocessor: ("sequence_length", TEXTS),
    models.RoutingTransformerSeq2SeqLMPreprocessor: (
        "decoder_sequence_length",
        {"encoder_text": TEXTS, "decoder_text": TEXTS[::-1]},
    ),
    models.RoutingTransformerTextEmbedderPreprocessor: ("sequence_length", TEXTS),
    speech: ("sequence_length", [encode_wav(np.ones(900, "float32"), 16_000)] * 3),
    models.RoutingTransformerReaderPreprocessor: (
        "answer_length",
        {"question": TEXTS, "passages": [TEXTS, TEXTS, TEXTS], "answer": TEXTS[::-1]},
    ),
}


@pytest.mark.parametrize("cls", PREPROCESSORS, ids=lambda cls: cls.__name__)
def test_config_and_pipelines_give_the_same(cls):
    length, texts = PREPROCESSORS[cls]
    preprocessor = cls(ByteTokenizer(), **{length: 7})
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(preprocessor))
    assert type(copy) is type(preprocessor) and copy.get_config() == preprocessor.get_config()
    assert copy.get_config()[length] == 7
    expected = preprocessor(texts)
    checks.same(copy(texts), expected, 1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    (batched,) = dataset.batch(3).map(preprocessor)
    checks.same(batched, expected, 1e-5)
    with pytest.raises(TypeError, match="of rt_keras.data, such as ByteTokenizer.*Received: a Tok"):
        cls(keras_hub.tokenizers.Tokenizer())
    with pytest.raises(ValueError, match=f"{length} must be at least 1. Received: {length}=0"):
        cls(ByteTokenizer(), **{length: 0})
