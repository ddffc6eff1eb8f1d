import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer, T2TSubwordTokenizer
from rt_keras.layers import LocalHeads
from tests.models import checks

PAIRS = (["the fox is quick", "a dog"], ["", "it sleeps"])


def make_model(num_classes=3, preprocessor=None, pooling="mean", dtype="float32", **changes):
    backbone = checks.make_backbone(
        cls=models.RoutingTransformerEncoderBackbone, vocabulary_size=259, dtype=dtype, **changes
    )
    if preprocessor is None:
        preprocessor = models.RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 24)
    return models.RoutingTransformerTextClassifier(
        backbone, num_classes, preprocessor, pooling=pooling
    )


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_pairs_are_in_one_sequence_and_truncated_alike():
    preprocessor = models.RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 7)
    x = preprocessor((["abcde"], ["fghij"]), y=None)
    assert x["token_ids"].numpy().tolist() == [[1, 99, 100, 1, 104, 105, 1]]
    assert set(x) == {"token_ids", "padding_mask"}
    one, label = preprocessor("ab", 2)
    assert one["token_ids"].shape == (7,) and int(label) == 2


def test_a_sequence_never_starts_with_padding(t2t_vocabulary):
    # A tokenizer whose start token is padding.
    tokenizer = T2TSubwordTokenizer(t2t_vocabulary)
    preprocessor = models.RoutingTransformerTextClassifierPreprocessor(tokenizer, 8)
    assert preprocessor(["the fox"])["padding_mask"].numpy()[0, 0]


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_logits_come_from_the_pooled_states(pooling):
    model = make_model(pooling=pooling)
    x = model.preprocessor(PAIRS, y=None)
    hidden, mask = np.asarray(model.backbone(x)), np.asarray(x["padding_mask"])
    pooled = hidden[:, 0]
    if pooling == "mean":
        pooled = np.stack([row[real].mean(axis=0) for row, real in zip(hidden, mask)])
    expected = model.output_dense(np.tanh(model.pooled_dense(pooled)))
    assert checks.largest_difference(model(x), expected) <= 1e-5


def test_padding_changes_nothing(model):
    x = model.preprocessor(PAIRS, y=None)
    length = int(np.asarray(x["padding_mask"]).sum(axis=1).max())
    short = {name: values[:, :length] for name, values in x.items()}
    assert checks.largest_difference(model(x), model(short)) <= 1e-5


@pytest.mark.end_to_end
def test_a_preset_keeps_the_head_unless_there_are_other_classes(model, tmp_path):
    x = model.preprocessor(PAIRS, y=None)
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    for copy in (
        keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset")),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert type(copy) is type(model)
        assert checks.largest_difference(copy(x), model(x)) <= 1e-6
    other = models.RoutingTransformerTextClassifier.from_preset(
        str(tmp_path / "preset"), num_classes=5
    )
    assert other(x).shape == (2, 5)
    assert checks.largest_difference(other.backbone(x), model.backbone(x)) <= 1e-6
    # A span predictor or a masked language model can start from it as well.
    masked = models.RoutingTransformerMaskedLM.from_preset(str(tmp_path / "preset"))
    assert checks.largest_difference(masked.backbone(x), model.backbone(x)) <= 1e-6
    assert isinstance(masked.preprocessor, models.RoutingTransformerMaskedLMPreprocessor)


def test_labels_out_of_range_are_an_error(model):
    for wrong in (-1, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 2"):
            model.preprocess_samples(PAIRS, np.array([0, wrong]))


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="pooling must be one of mean, first. .*'last'"):
        make_model(pooling="last")
    with pytest.raises(ValueError, match="num_classes must be a positive integer"):
        make_model(num_classes=0)


@pytest.mark.end_to_end
def test_learns_under_mixed_precision_and_is_exported(tmp_path):
    model = make_model(2, dtype="mixed_bfloat16", head_groups=[LocalHeads(1, 8)], num_layers=1)
    model.compile(keras.optimizers.Adam(1e-2))
    texts, labels = ["good", "bad", "so good", "so bad"] * 4, [1, 0, 1, 0] * 4
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(8)
    model.fit(dataset, epochs=12, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 1"):
        model.fit(dataset.map(lambda text, label: (text, 2 * label)), verbose=0)
    assert model.evaluate(dataset, verbose=0)[1] == 1.0
    assert model.predict(texts[:2], verbose=0).argmax(axis=1).tolist() == [1, 0]
    model.export(tmp_path, verbose=False)
    call = keras.layers.TFSMLayer(tmp_path, call_endpoint="serve")
    x = {k: keras.ops.cast(v, "int32") for k, v in model.preprocessor(texts[:2]).items()}
    assert checks.largest_difference(call(x), model(x)) <= 1e-2
