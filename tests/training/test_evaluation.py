import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.models.programs import make_once
from rt_keras.training import experiment
from rt_keras.training.evaluation import evaluate
from tests.training.tasks.checks import nats_of


@pytest.fixture(scope="module")
def model(tiny_run):
    return experiment.load_model(tiny_run)


@pytest.fixture(scope="module")
def documents(books):
    return data.load_documents("text_folder", "test", directory=books)


@pytest.mark.slow
def test_every_token_counts_once_given_what_precedes_it_in_its_sequence(model, documents):
    stream = [1]
    for text in documents.as_numpy_iterator():
        stream += [byte + 2 for byte in text] + [1]
    length = model.preprocessor.sequence_length
    starts = range(0, len(stream) - 1, length)
    nats = sum(nats_of(model, stream[start : start + length + 1]).sum() for start in starts)
    for batch_size in (2, 3):
        scores = evaluate(model, documents, batch_size)
        assert scores["tokens"] == len(stream) - 1 == scores["bytes"] + scores["documents"]
        assert scores["words"] == sum(map(len, map(bytes.split, documents.as_numpy_iterator())))
        np.testing.assert_allclose(scores["nats_per_token"], nats / (len(stream) - 1), rtol=1e-5)
    # A second evaluation compiles nothing.
    sums = make_once(model, "evaluation", make=None)
    traces = sums.experimental_get_tracing_count()
    assert evaluate(model, documents, batch_size=3) == scores
    assert make_once(model, "evaluation", make=None) is sums
    assert sums.experimental_get_tracing_count() == traces


def test_no_text_is_an_error(model):
    with pytest.raises(ValueError, match="no text to evaluate"):
        evaluate(model, tf.data.Dataset.from_tensor_slices([""]))


@pytest.mark.slow
def test_variables_that_are_replaced_are_seen(tiny_run, documents):
    model = experiment.load_model(tiny_run)
    before = evaluate(model, documents)["nats_per_token"]
    model.quantize("int8")
    after = evaluate(model, documents)["nats_per_token"]
    assert after != before and after == pytest.approx(before, rel=0.1)


@pytest.mark.slow
def test_a_recurrent_state_gives_what_one_pass_over_each_document_gives(model, documents):
    scores = evaluate(model, documents, batch_size=1, context="stateful")
    streams = [[1, *(byte + 2 for byte in text), 1] for text in documents.as_numpy_iterator()]
    nats = [nats_of(model, stream) for stream in streams]
    expected = np.mean(np.concatenate(nats))
    assert scores["tokens"] == scores["bytes"] + 2
    np.testing.assert_allclose(scores["nats_per_token"], expected, rtol=1e-5)
    ranges = scores["by_position"]
    assert sum(x["tokens"] for x in ranges) == scores["tokens"]
    # The token after the start of each document, and the next two.
    assert [x["tokens"] for x in ranges[:3]] == [2, 4, 8]
    mean = sum(x["tokens"] * x["bits_per_byte"] for x in ranges) / scores["tokens"]
    np.testing.assert_allclose(mean, scores["bits_per_byte"], rtol=1e-5)
    first = np.mean([of_document[0] for of_document in nats])
    expected = first / np.log(2) * scores["tokens"] / scores["bytes"]
    np.testing.assert_allclose(ranges[0]["bits_per_byte"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"context": "all"}, "context must be one of .*'stateful'.* Received: context='all'"),
        ({"stride": 4}, "stride needs context='sliding'. Received: stride=4, context='window'"),
    ],
)
def test_bad_contexts(model, documents, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(model, documents, **options)
