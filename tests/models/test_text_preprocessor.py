import keras_hub
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer

# The preprocessors, each with one of its length arguments.
PREPROCESSORS = {
    models.RoutingTransformerCausalLMPreprocessor: "sequence_length",
    models.RoutingTransformerSeq2SeqLMPreprocessor: "decoder_sequence_length",
    models.RoutingTransformerMaskedLMPreprocessor: "mask_selection_length",
    models.RoutingTransformerTextClassifierPreprocessor: "sequence_length",
    models.RoutingTransformerSpanPredictorPreprocessor: "sequence_length",
    models.RoutingTransformerTextEmbedderPreprocessor: "sequence_length",
    models.RoutingTransformerReaderPreprocessor: "answer_length",
}


@pytest.mark.parametrize(("cls", "length"), PREPROCESSORS.items(), ids=lambda x: str(x)[-30:])
def test_other_tokenizers_and_lengths_are_refused(cls, length):
    with pytest.raises(TypeError, match="of rt_keras.data, such as ByteTokenizer.*Received: a Tok"):
        cls(keras_hub.tokenizers.Tokenizer())
    with pytest.raises(ValueError, match=f"{length} must be at least 1. Received: {length}=0"):
        cls(ByteTokenizer(), **{length: 0})


@pytest.mark.parametrize("cls", PREPROCESSORS, ids=lambda cls: cls.__name__)
def test_config_makes_an_equal_preprocessor(cls):
    preprocessor = cls(ByteTokenizer(), **{PREPROCESSORS[cls]: 7})
    config = preprocessor.get_config()
    assert config[PREPROCESSORS[cls]] == 7
    # KerasHub changes the dictionary that it receives.
    assert cls.from_config({**config}).get_config() == config


@pytest.mark.parametrize("name", ["MaskedLM", "TextClassifier", "TextEmbedder"])
def test_encoders_get_one_sequence_without_segment_ids(name):
    preprocessor = getattr(models, f"RoutingTransformer{name}Preprocessor")(ByteTokenizer(), 8)
    inputs, *_ = preprocessor((["ab"], ["c"]), [1])
    assert "segment_ids" not in inputs and inputs["token_ids"].shape == (1, 8)
    assert inputs["padding_mask"].numpy().tolist() == [[True] * 6 + [False] * 2]
