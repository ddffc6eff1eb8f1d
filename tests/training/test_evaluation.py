import math

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.training import experiment
from rt_keras.training.evaluation import evaluate


@pytest.fixture(scope="module")
def model(tiny_run):
    return experiment.load_model(tiny_run)


@pytest.fixture(scope="module")
def documents(books):
    return data.load_documents("text_folder", "test", directory=books)


def test_a_model_that_knows_nothing_pays_the_same_for_every_byte(tiny_run, documents):
    model = experiment.load_model(tiny_run)
    table = model.backbone.token_embedding
    table.embeddings.assign(tf.zeros_like(table.embeddings))
    scores = evaluate(model, documents)
    texts = list(documents.as_numpy_iterator())
    assert scores["documents"] == 2
    assert scores["bytes"] == sum(map(len, texts))
    assert scores["words"] == sum(len(text.split()) for text in texts)
    assert scores["tokens"] == scores["bytes"] + 2
    nats = math.log(258) * scores["tokens"]
    assert scores["nats_per_token"] == pytest.approx(math.log(258), rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(nats / math.log(2) / scores["bytes"], rel=1e-5)
    assert scores["perplexity_per_token"] == pytest.approx(258, rel=1e-4)
    assert math.log(scores["perplexity_per_word"]) == pytest.approx(
        nats / scores["words"], rel=1e-5
    )


@pytest.mark.end_to_end
def test_every_token_counts_once_given_what_precedes_it_in_its_sequence(model, documents):
    stream = [1]
    for text in documents.as_numpy_iterator():
        stream += [byte + 2 for byte in text] + [1]
    nats, length = 0.0, model.preprocessor.sequence_length
    for start in range(0, len(stream) - 1, length):
        piece = np.array([stream[start : start + length + 1]])
        inputs = {"token_ids": piece[:, :-1], "padding_mask": np.ones_like(piece[:, :-1])}
        logits = np.asarray(model(inputs), np.float64)
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats -= np.take_along_axis(log_probabilities, piece[:, 1:, None], -1).sum()
    for batch_size in (1, 3):
        scores = evaluate(model, documents, batch_size)
        assert scores["tokens"] == len(stream) - 1
        np.testing.assert_allclose(scores["nats_per_token"], nats / (len(stream) - 1), rtol=1e-5)


def test_no_text_is_an_error(model):
    with pytest.raises(ValueError, match="no text to evaluate"):
        evaluate(model, tf.data.Dataset.from_tensor_slices([""]))


def test_a_second_evaluation_compiles_nothing(model, documents):
    first = evaluate(model, documents, batch_size=2)
    sums = model.compiled_function("evaluation", make=None)
    traces = sums.experimental_get_tracing_count()
    assert evaluate(model, documents, batch_size=2) == first
    assert model.compiled_function("evaluation", make=None) is sums
    assert sums.experimental_get_tracing_count() == traces


@pytest.mark.end_to_end
def test_variables_that_are_replaced_are_seen(tiny_run, documents):
    model = experiment.load_model(tiny_run)
    before = evaluate(model, documents)["nats_per_token"]
    model.quantize("int8")
    after = evaluate(model, documents)["nats_per_token"]
    assert after != before and after == pytest.approx(before, rel=0.1)
