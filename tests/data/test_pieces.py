import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer, document_pieces, sliding_dataset

TEXTS = st.lists(st.binary(max_size=12), min_size=1, max_size=3)


def dataset_of(texts):
    return tf.data.Dataset.from_tensor_slices(texts)


def streams(texts):
    """The tokens of each document, between two ends of text."""
    return [[1, *(byte + 2 for byte in text), 1] for text in texts]


@settings(max_examples=15)
@given(texts=TEXTS, length=st.integers(1, 8))
def test_pieces_of_a_document_follow_one_another(texts, length):
    found = [[] for _ in texts]
    number = -1
    for inputs, labels, weights, position in document_pieces(
        dataset_of(texts), ByteTokenizer(), length
    ):
        assert labels.shape == (1, length)
        number += int(position) == 0
        real = weights[0].numpy() == 1
        np.testing.assert_array_equal(inputs["padding_mask"][0], real)
        assert int(position) == len(found[number])
        found[number] += zip(inputs["token_ids"][0][real].numpy(), labels[0][real].numpy())
    assert found == [list(zip(stream, stream[1:])) for stream in streams(texts)]


@settings(max_examples=15)
@given(texts=TEXTS, length=st.integers(1, 8), batch_size=st.integers(1, 3), data=st.data())
def test_windows_score_each_token_once_after_as_many_as_they_can(texts, length, batch_size, data):
    stride = data.draw(st.integers(1, length))
    batches = sliding_dataset(dataset_of(texts), ByteTokenizer(), length, batch_size, stride)
    found = []
    for inputs, labels, weights in batches:
        assert labels.shape == (batch_size, length)
        for row, following, scored in zip(inputs["token_ids"], labels, weights):
            for place in np.flatnonzero(scored):
                before = row[: place + 1].numpy().tolist()
                found.append((before, int(following[place])))
    expected = []
    for stream in streams(texts):
        for label in range(1, len(stream)):
            # The first window, or the last of those that end behind it by less than a stride.
            start = 0 if label <= length else -(-(label - length) // stride) * stride
            expected.append((stream[start:label], stream[label]))
    assert found == expected


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda x, t: document_pieces(x, t, 0), "length must be at least 1"),
        (lambda x, t: sliding_dataset(x, t, 4, 0, 2), "batch_size must be at least 1"),
        (lambda x, t: sliding_dataset(x, t, 4, 1, 5), "stride must be at most 4"),
        (lambda x, _: document_pieces(x, ByteTokenizer(sequence_length=3), 4), "sequence_length=3"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make(dataset_of([b"a"]), ByteTokenizer())
