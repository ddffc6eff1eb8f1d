import keras
import keras_hub
import numpy as np
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from tests.models import checks

TEXTS = ["the fox is quick", "a dog"]


def preprocessor(**options):
    return models.RoutingTransformerMaskedLMPreprocessor(ByteTokenizer(), 24, **options)


def make_model(preprocessor=None, **changes):
    backbone = checks.make_backbone(
        cls=models.RoutingTransformerEncoderBackbone, vocabulary_size=259, **changes
    )
    return models.RoutingTransformerMaskedLM(backbone, preprocessor)


@pytest.fixture(scope="module")
def model():
    return make_model(preprocessor())


def test_texts_become_tokens_of_which_some_are_masked():
    rates = {"mask_selection_rate": 0.9, "mask_token_rate": 1.0, "random_token_rate": 0.0}
    x, y, weights = preprocessor(**rates)(TEXTS)
    assert x["token_ids"].shape == (2, 24) and y.shape == (2, 22)
    whole = np.array(x["token_ids"])
    for row, text in enumerate(TEXTS):
        real = np.asarray(weights[row]) == 1
        places = np.asarray(x["mask_positions"][row])[real]
        assert len(places) > 0 and np.all(whole[row, places] == 258)
        whole[row, places] = np.asarray(y[row])[real]
        assert whole[row].tolist() == [1, *(b + 2 for b in text.encode()), 1] + [0] * (
            22 - len(text)
        )
        assert np.asarray(x["padding_mask"][row]).sum() == len(text) + 2


def test_logits_are_those_of_the_positions(model):
    x, _, _ = model.preprocessor(TEXTS)
    head, hidden = model.masked_lm_head, model.backbone({k: x[k] for k in model.backbone.input})
    rows = np.take_along_axis(
        np.asarray(hidden), np.asarray(x["mask_positions"])[..., None].astype("int64"), 1
    )
    rows = np.asarray(head._intermediate_layer_norm(head._intermediate_dense(rows)))
    table = np.asarray(model.backbone.token_embedding.embeddings)
    assert checks.largest_difference(model(x), rows @ table.T + np.asarray(head._bias)) <= 1e-4


@pytest.mark.end_to_end
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "embedding_dim": 4}])
def test_a_preset_and_a_file_hold_all_of_it(changes, tmp_path):
    model = make_model(preprocessor(), **changes)
    x, _, _ = model.preprocessor(TEXTS)
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    for copy in (
        keras_hub.models.MaskedLM.from_preset(str(tmp_path / "preset")),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert type(copy) is type(model)
        assert checks.largest_difference(copy(x), model(x)) <= 1e-6
        assert copy.preprocessor.get_config()["mask_selection_length"] == 4


@pytest.mark.end_to_end
def test_learns_from_texts_and_is_exported(tmp_path):
    model = make_model(preprocessor(), head_groups=[LocalHeads(1, 8)], num_layers=1)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    history = model.fit(TEXTS * 4, batch_size=8, epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    model.export(tmp_path, verbose=False)
    call = keras.layers.TFSMLayer(tmp_path, call_endpoint="serve")
    x, _, _ = model.preprocessor(TEXTS)
    x = {name: keras.ops.cast(values, "int32") for name, values in x.items()}
    assert checks.largest_difference(call(x), model(x)) <= 1e-4


def test_wrong_backbones_are_refused():
    with pytest.raises(TypeError, match="backbone must be a RoutingTransformerEncoderBackbone"):
        models.RoutingTransformerMaskedLM(checks.make_backbone())
    small = checks.make_backbone(cls=models.RoutingTransformerEncoderBackbone, vocabulary_size=258)
    with pytest.raises(ValueError, match="at least the 259 token ids .* vocabulary_size=258"):
        models.RoutingTransformerMaskedLM(small, preprocessor())
    with pytest.raises(TypeError, match="tokenizer must be a tokenizer of rt_keras.data"):
        models.RoutingTransformerMaskedLMPreprocessor(str)
