import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.convert import T2TSubwordTokenizer
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from rt_keras.models.retrieval import contrastive
from rt_keras.training import experiment
from tests.models import checks

TEXTS = ["the fox is quick", "", "a dog, é", "it sleeps on and on, until it is late"]
LENGTH = 24


def make_model(preprocessor=None, dtype="float32", changes=None, **options):
    backbone = checks.make_backbone(
        cls=models.RoutingTransformerEncoderBackbone,
        vocabulary_size=258,
        dtype=dtype,
        **(changes or {}),
    )
    if preprocessor is None:
        preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), LENGTH)
    return models.RoutingTransformerTextEmbedder(backbone, preprocessor, **options)


@pytest.fixture(scope="module")
def model():
    model = make_model(projection_dim=6, temperature=0.3, question_length=9)
    model.compile(jit_compile=False)
    return model


@pytest.fixture(scope="module")
def embeddings(model):
    return model.embed_texts(TEXTS)


def test_a_sequence_never_starts_with_padding(t2t_vocabulary):
    # A tokenizer whose start token is padding.
    tokenizer = T2TSubwordTokenizer(t2t_vocabulary)
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(tokenizer, 8)
    assert preprocessor(["the fox"])["padding_mask"].numpy()[0, 0]


def test_texts_are_packed_and_truncated(tokenizer):
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(tokenizer, 6)
    end = tokenizer.end_token_id
    for text in ("the fox", "", "the quick fox jumps, the dog jumps"):
        found = preprocessor([text])
        tokens = [*map(int, tokenizer(text))][:4]
        assert found["token_ids"][0].numpy().tolist()[1 : len(tokens) + 2] == [*tokens, end]
        assert int(np.sum(found["padding_mask"][0])) == len(tokens) + 2
    assert set(found) == {"token_ids", "padding_mask"}


def test_pairs_of_texts_share_a_sequence():
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 7)
    x = preprocessor((["abcde"], ["fghij"]), y=None)
    assert x["token_ids"].numpy().tolist() == [[1, 99, 100, 1, 104, 105, 1]]


@pytest.mark.parametrize(("pooling", "projection_dim"), [("mean", 6), ("first", None)])
def test_embeddings_are_of_length_one_and_from_the_pooled_states(pooling, projection_dim):
    model = make_model(pooling=pooling, projection_dim=projection_dim)
    x = model.preprocessor(TEXTS)
    hidden, mask = np.asarray(model.backbone(x)), np.asarray(x["padding_mask"])
    pooled = hidden[:, 0]
    if pooling == "mean":
        pooled = np.stack([row[real].mean(axis=0) for row, real in zip(hidden, mask)])
    if projection_dim:
        pooled = np.asarray(model.projection(pooled))
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    found = model(x)
    assert found.shape == (4, projection_dim or 8) == (4, model.output_shape[-1])
    assert checks.largest_difference(found, expected) <= 1e-5


# === embed_texts ===


@pytest.mark.slow
def test_a_text_has_one_embedding_alone_and_in_a_batch(model, embeddings, monkeypatch):
    assert embeddings.shape == (4, 6) and embeddings.dtype == np.float32
    assert checks.largest_difference(embeddings, model(model.preprocessor(TEXTS))) <= 1e-5
    for text, embedding in zip(TEXTS, embeddings):
        assert checks.largest_difference(model.embed_texts([text])[0], embedding) <= 1e-5
    # In batches of 3 and of 1, at another place.
    monkeypatch.setattr(contrastive, "TEXTS_AT_ONCE", 3)
    found = model.embed_texts(TEXTS[::-1])
    assert checks.largest_difference(found[::-1], embeddings) <= 1e-5


def test_texts_are_truncated_at_a_length_and_by_another_preprocessor(model, embeddings):
    found = model.embed_texts([TEXTS[3]], sequence_length=9)
    assert checks.largest_difference(found, embeddings[3:]) > 1e-3
    cut = model.embed_texts(tf.constant([TEXTS[3][:7]]))
    assert checks.largest_difference(found, cut) <= 1e-5
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 9)
    assert checks.largest_difference(model.embed_texts([TEXTS[3]], None, preprocessor), cut) <= 1e-5


@pytest.mark.slow
def test_only_as_many_positions_are_computed_as_the_longest_text_has(monkeypatch):
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 200)
    model = make_model(preprocessor, changes={"num_layers": 1, "head_groups": [LocalHeads(1, 8)]})
    model.compile(jit_compile=False)
    seen, call = [], type(model).__call__

    def record(self, inputs, **options):
        seen.append(tuple(inputs["token_ids"].shape))
        return call(self, inputs, **options)

    monkeypatch.setattr(type(model), "__call__", record)
    for texts in (["a" * 9], ["a" * 60, "b"], ["a", "b" * 100], ["a" * 500]):
        model.embed_texts(texts)
    assert seen == [(1, 64), (32, 64), (32, 128), (1, 200)]


# === Arguments and files ===


def test_arguments_out_of_range_are_refused(model):
    for options, message in [
        ({"pooling": "last"}, "pooling must be one of mean, first. .*'last'"),
        ({"projection_dim": 0}, "projection_dim must be a positive integer"),
        ({"temperature": 0.0}, "temperature must be .*0"),
        ({"question_length": 0}, "question_length must be a positive integer"),
    ]:
        with pytest.raises(ValueError, match=message):
            models.RoutingTransformerTextEmbedder(model.backbone, **options)
    with pytest.raises(TypeError, match="RoutingTransformerEncoderBackbone"):
        models.RoutingTransformerTextEmbedder(checks.make_backbone())
    with pytest.raises(ValueError, match="preprocessor must be given"):
        models.RoutingTransformerTextEmbedder(model.backbone).embed_texts(["a text"])
    with pytest.raises(ValueError, match="texts must be a list of strings. Received: texts='a"):
        model.embed_texts("a text")


@pytest.mark.slow
def test_a_file_and_a_preset_keep_everything(model, tmp_path):
    x, cls = model.preprocessor(TEXTS), keras_hub.models.TextEmbedder
    checks.check_files(model, lambda copy: copy(x), tmp_path, cls=cls)
    copy = experiment.load_model(tmp_path / "preset")
    assert type(copy) is type(model) and copy.get_config()["temperature"] == 0.3
    assert (copy.pooling, copy.projection_dim, copy.question_length) == ("mean", 6, 9)
    assert copy.preprocessor.sequence_length == LENGTH


def test_embeddings_are_of_float32_and_of_length_one_in_mixed_precision():
    model = make_model(dtype="mixed_bfloat16", changes={"num_layers": 1}, projection_dim=8)
    found = model(model.preprocessor(TEXTS))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(np.linalg.norm(np.asarray(found), axis=1), 1, rtol=1e-5)
