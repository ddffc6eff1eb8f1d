import keras_hub
import numpy as np
import pytest

from rt_keras.benchmarks.pretrained import embeddings
from rt_keras.benchmarks.pretrained.kinds import ENCODER_MEANINGS, head_groups
from tests.benchmarks.pretrained.bert_folder import WORDS, write_bert

LENGTH = 130


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(write_bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    words = np.random.default_rng(0).choice(WORDS, size=2100)
    path.write_text(" ".join(words), encoding="utf-8")
    return str(path)


@pytest.mark.end_to_end
def test_with_every_key_the_embeddings_are_the_same(bert, text):
    figures = {
        kind: embeddings.measure(bert, text, text, kind, LENGTH)
        for kind in ("full", "content_blocks:num_blocks=65", "oracle:num_keys=8")
    }
    full, blocks, oracle = figures.values()
    assert full["keys"] == blocks["keys"] == LENGTH
    assert abs(full["cosine"] - 1) < 1e-5 and abs(blocks["cosine"] - 1) < 1e-5
    assert 0 < full["retrieval"] < 1
    assert oracle["cosine"] < 1 - 1e-5 and all(x["seconds"] > 0 for x in figures.values())


@pytest.mark.end_to_end
def test_centroids_are_fitted(bert, text):
    figure = embeddings.measure(bert, text, text, "nearest", LENGTH)
    assert 0 < figure["cosine"] < 1


def test_embeddings_are_means_of_the_original_models_states(bert):
    rows = np.random.default_rng(0).integers(5, 14, size=[3, 20]).astype("int32")
    found, _ = embeddings._embedded(embeddings.load(bert, "full", 24), rows)
    inputs = {"token_ids": rows, "segment_ids": 0 * rows, "padding_mask": 0 * rows + 1}
    states = keras_hub.models.Backbone.from_preset(bert)(inputs)["sequence_output"]
    means = np.mean(states, axis=1)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_spans_are_of_their_passages():
    length, count = 200, embeddings.PASSAGES
    tokens = np.arange(count * (length - 2))
    passages, spans = embeddings.passages_and_spans(tokens, length)
    assert passages.shape == (count, length - 2)
    own = np.repeat(passages, embeddings.SPANS, axis=0)
    assert spans.shape == (len(own), embeddings.SPAN - 2)
    assert np.all(np.diff(spans) == 1)
    assert np.all((spans[:, 0] >= own[:, 0]) & (spans[:, -1] <= own[:, -1]))


def test_every_kind_has_heads():
    for kind in ENCODER_MEANINGS:
        assert sum(group.num_heads for group in head_groups(kind, 4, causal=False)) == 4
