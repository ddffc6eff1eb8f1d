import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import (
    ByteTokenizer,
    document_chunks,
    pack_documents,
    sliding_dataset,
    stateful_dataset,
)
from tests.data.checks import check_order

TEXTS = st.lists(st.binary(max_size=12), min_size=1, max_size=3)


def dataset_of(texts):
    return tf.data.Dataset.from_tensor_slices(texts)


def streams(texts):
    """Returns the tokens of each document between two end-of-text tokens."""
    return [[1, *(byte + 2 for byte in text), 1] for text in texts]


@pytest.mark.slow
@settings(max_examples=6)
@given(texts=TEXTS, length=st.integers(1, 8))
def test_chunks_of_a_document_follow_one_another(texts, length):
    found = [[] for _ in texts]
    number = -1
    for inputs, labels, weights, position in document_chunks(
        dataset_of(texts), ByteTokenizer(), length
    ):
        assert labels.shape == (1, length)
        number += int(position) == 0
        real = weights[0].numpy() == 1
        np.testing.assert_array_equal(inputs["padding_mask"][0], real)
        assert int(position) == len(found[number])
        found[number] += zip(inputs["token_ids"][0][real].numpy(), labels[0][real].numpy())
    assert found == [list(zip(stream, stream[1:])) for stream in streams(texts)]


@pytest.mark.slow
@settings(max_examples=6)
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
            # The first window, or the last one that ends less than a stride after it.
            start = 0 if label <= length else -(-(label - length) // stride) * stride
            expected.append((stream[start:label], stream[label]))
    assert found == expected


def test_documents_can_begin_with_a_token_of_their_own():
    a, b, c, d = (ord(letter) + 2 for letter in "abcd")
    documents = dataset_of([b"abcd", b"c"])
    chunks = document_chunks(documents, ByteTokenizer(), 3, start_token_id=7)
    found = np.concatenate([inputs["token_ids"] for inputs, *_ in chunks])
    np.testing.assert_array_equal(found, [[7, a, b], [c, d, 0], [7, c, 0]])
    windows = sliding_dataset(documents, ByteTokenizer(), 4, 2, stride=2, start_token_id=7)
    (inputs, labels, weights), *_ = windows
    np.testing.assert_array_equal(inputs["token_ids"], [[7, a, b, 0], [7, b, c, d]])
    np.testing.assert_array_equal(labels, [[a, b, c, 0], [b, c, d, 1]])
    np.testing.assert_array_equal(weights, [[1, 1, 1, 0], [0, 0, 1, 1]])
    with pytest.raises(ValueError, match="stride must be at most 3"):
        sliding_dataset(documents, ByteTokenizer(), 4, 2, stride=4, start_token_id=7)


def chunks_of(texts, length):
    """Returns each chunk of each document with its context, both as (inputs, labels)."""
    found = []
    for stream in streams(texts):
        for start in range(0, len(stream) - 1, length):
            stop = min(start + length, len(stream) - 1)
            found.append((tuple(stream[:start]), (*stream[start:stop], stream[stop])))
    return found


def rows_of(batches, count):
    """Returns each row of some batches: its context since its start, and its chunk."""
    read, found = {}, []
    for inputs, labels, weights in batches.take(count):
        assert weights.shape == labels.shape == inputs["token_ids"].shape
        for row, start in enumerate(inputs["reset_states"].numpy()):
            real = inputs["padding_mask"][row].numpy()
            np.testing.assert_array_equal(weights[row], real)
            tokens, following = (x[row].numpy()[real] for x in (inputs["token_ids"], labels))
            np.testing.assert_array_equal(tokens[1:], following[:-1])
            before = () if start else read[row]
            found.append((before, (*tokens.tolist(), int(following[-1]))))
            read[row] = (*before, *tokens.tolist())
    return found


@pytest.fixture(scope="module")
def books_of_letters(tmp_path_factory):
    starts = (65, 88, 92, 92, 109, 118)
    texts = [bytes(range(*bounds)) for bounds in zip(starts, starts[1:])]
    folder = tmp_path_factory.mktemp("packed")
    pack_documents(dataset_of(texts), ByteTokenizer(), folder)
    return texts, folder


@pytest.mark.parametrize("batch_size", [1, 3])
def test_rows_go_on_until_their_document_ends(books_of_letters, batch_size):
    texts, folder = books_of_letters
    expected = chunks_of(texts, 5)
    steps = len(expected) // batch_size
    found = rows_of(stateful_dataset(folder, 5, batch_size), 2 * steps)
    for part in (found[: steps * batch_size], found[steps * batch_size :]):
        # A pass contains each chunk once, except for a remainder of less than a batch.
        assert len(set(part)) == len(part)
        assert {chunk for _, chunk in part} <= {chunk for _, chunk in expected}
        # The context is complete, except where a row began inside a document.
        cut = [(before, chunk) for before, chunk in part if (before, chunk) not in expected]
        longest = -(-24 // 5)
        assert len(cut) <= (batch_size - 1) * (longest - 1)
    if batch_size == 1:
        assert sorted(found) == sorted(2 * expected)
        assert found[:steps] != found[steps:]


def test_workers_and_later_batches_read_the_same_rows_and_some_chunks_start_anew(books_of_letters):
    _, folder = books_of_letters
    batches = functools.partial(stateful_dataset, folder, 5, 4)
    check_order(functools.partial(batches, state_dropout=0.3))
    every, dropped = (list(batches(state_dropout=x).take(60)) for x in (0.0, 0.3))
    starts = [[x[0].pop("reset_states").numpy() for x in batches] for batches in (every, dropped)]
    assert np.all(starts[1] >= np.array(starts[0]))
    share = np.mean(starts[1]) - np.mean(starts[0])
    assert share / (1 - np.mean(starts[0])) == pytest.approx(0.3, abs=0.12)
    # The texts are the same.
    tf.nest.map_structure(np.testing.assert_array_equal, every, dropped)


@pytest.mark.parametrize(
    "make, options, message",
    [
        (document_chunks, [ByteTokenizer(), 0], "length must be at least 1"),
        (document_chunks, [ByteTokenizer(3), 4], "Received: sequence_length=3"),
        (sliding_dataset, [ByteTokenizer(), 4, 0, 2], "batch_size must be at least 1"),
        (sliding_dataset, [ByteTokenizer(), 4, 1, 5], "stride must be at most 4"),
        (stateful_dataset, [24, 1], "length .data.sequence_length. is 24, and no document is lon"),
        (stateful_dataset, [5, 15], "at most the number of chunks, 13. Received: .*=15"),
        (stateful_dataset, [4, 2, 0, 0, (0, 1), 1.0], "state_dropout must be at least 0 and below"),
    ],
)
def test_bad_arguments(books_of_letters, make, options, message):
    text = books_of_letters[1] if make is stateful_dataset else dataset_of([b"a"])
    with pytest.raises(ValueError, match=message):
        make(text, *options)
