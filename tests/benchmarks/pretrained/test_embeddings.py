import keras_hub
import numpy as np
import pytest

from rt_keras.benchmarks.pretrained import embeddings
from tests.benchmarks.pretrained.bert_folder import write_bert


@pytest.mark.weekly
def test_embeddings_are_means_of_the_original_models_states(tmp_path):
    bert = str(write_bert(tmp_path / "bert"))
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
