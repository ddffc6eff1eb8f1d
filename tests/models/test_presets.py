import keras
import numpy as np
import pytest

from rt_keras import data, models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads, RoutingHeads


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:.compile.*was not called as part of model loading")
def test_a_quantized_model_loads_back(tmp_path):
    groups = [LocalHeads(1, block_size=4), RoutingHeads(1, num_clusters=2, window_size=4)]
    backbone = models.RoutingTransformerBackbone(258, 1, 16, 16, groups)
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer())
    model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    inputs = {name: np.ones([1, 8], "int32") for name in ("token_ids", "padding_mask")}
    model.quantize("int8")
    expected = np.asarray(model(inputs))
    model.save_to_preset(str(tmp_path / "preset"))
    model.save(tmp_path / "model.keras")
    for loaded in (
        type(model).from_preset(str(tmp_path / "preset")),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        np.testing.assert_array_equal(loaded(inputs), expected)


def test_encoders_of_subwords_come_back(tmp_path):
    # KerasHub makes the model before it reads the vocabulary.
    tokenizer = data.SentencePieceTokenizer(data.compute_sentence_piece_proto([b"la do"] * 9, 300))
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(tokenizer, 16)
    size = tokenizer.vocabulary_size() + 1
    backbone = models.RoutingTransformerEncoderBackbone(size, 1, 8, 16, [LocalHeads(2, 4)])
    model = models.RoutingTransformerTextEmbedder(backbone, preprocessor)
    model.save_to_preset(tmp_path)
    loaded = type(model).from_preset(str(tmp_path))
    assert loaded.preprocessor.tokenizer.vocabulary_size() == tokenizer.vocabulary_size()
