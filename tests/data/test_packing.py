import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer, evaluation_dataset, training_dataset

# Building and tracing a pipeline takes most of a test's time, so there are fewer examples.
few = settings(max_examples=8)
text_lists = st.lists(st.binary(max_size=20), min_size=1, max_size=6)
sizes = st.integers(1, 9)


def dataset_of(texts):
    return tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string, [len(texts)]))


def stream_of(texts, tokenizer=None):
    """The inputs and labels of all texts one after the other, by plain Python."""
    tokenizer = tokenizer or ByteTokenizer()
    end = [tokenizer.end_token_id]
    tokens = [list(map(int, tokenizer(text))) for text in texts]
    return sum((end + row for row in tokens), []), sum((row + end for row in tokens), [])


def rows_of(batches):
    """All rows of some batches: token ids, masks, labels and weights."""
    parts = [(x["token_ids"], x["padding_mask"], y, weights) for x, y, weights in batches]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


@few
@given(text_lists, sizes, sizes)
def test_evaluation_has_every_token_once_in_order(texts, length, batch_size):
    batches = list(evaluation_dataset(dataset_of(texts), ByteTokenizer(), length, batch_size))
    inputs, labels = stream_of(texts)
    assert len(batches) == -(-len(labels) // (length * batch_size))
    assert all(y.shape == (batch_size, length) for _, y, _ in batches)
    token_ids, mask, targets, weights = (part.ravel() for part in rows_of(batches))
    real = len(labels)
    assert token_ids[:real].tolist() == inputs
    assert targets[:real].tolist() == labels
    assert mask[:real].all() and (weights[:real] == 1).all()
    assert not token_ids[real:].any() and not targets[real:].any()
    assert not mask[real:].any() and not weights[real:].any()


def one_pass(texts, length, batch_size=1, **options):
    """The rows of the first pass over the texts, a tuple of ints each, without their padding."""
    batches = training_dataset(dataset_of(texts), ByteTokenizer(), length, batch_size, **options)
    rows = -(-len(stream_of(texts)[1]) // length)
    token_ids, mask, targets, weights = rows_of(batches.take(-(-rows // batch_size)))
    assert (mask == (weights == 1)).all()
    return [
        (tuple(token_ids[row][mask[row]].tolist()), tuple(targets[row][mask[row]].tolist()))
        for row in range(rows)
    ]


@few
@given(text_lists, sizes, sizes, st.integers(0, 3))
def test_training_has_every_token_once_in_a_pass(texts, length, batch_size, seed):
    rows = one_pass(texts, length, batch_size, seed=seed)
    inputs, labels = stream_of(texts)
    assert sorted(sum((row[0] for row in rows), ())) == sorted(inputs)
    assert sorted(sum((row[1] for row in rows), ())) == sorted(labels)
    assert sorted(len(row[0]) for row in rows)[1:] == [length] * (len(rows) - 1)


@few
@given(text_lists, sizes)
def test_training_unshuffled_is_the_stream(texts, length):
    rows = one_pass(texts, length, shuffle_buffer=1, document_buffer=1)
    assert [sum(part, ()) for part in zip(*rows, strict=True)] == [
        tuple(part) for part in stream_of(texts)
    ]


def test_documents_are_shuffled_before_they_are_packed():
    texts = [bytes([65 + number]) * 3 for number in range(8)]
    rows = one_pass(texts, 4, shuffle_buffer=1)
    labels = [row[1] for row in rows]
    whole = [tuple(stream_of([text])[1]) for text in texts]
    assert labels != whole and sorted(labels) == whole


def test_sequences_are_shuffled_within_a_document():
    rows = one_pass([bytes(range(200))], 8)
    in_order = one_pass([bytes(range(200))], 8, shuffle_buffer=1)
    assert rows != in_order and sorted(rows) == sorted(in_order)


def test_the_seed_fixes_the_order_and_each_pass_has_its_own():
    texts = [bytes(range(start, start + 50)) for start in range(0, 200, 50)]

    def labels(seed):
        batches = training_dataset(dataset_of(texts), ByteTokenizer(), 6, 2, seed=seed)
        return np.stack([y for _, y, _ in batches.take(51)]), batches

    first, batches = labels(seed=1)
    again = np.stack([y for _, y, _ in batches.take(51)])
    assert (first == again).all()
    assert (first == labels(seed=1)[0]).all()
    assert (first != labels(seed=2)[0]).any()
    # 204 labels are 34 rows, so 17 batches, a pass.
    passes = np.split(first.reshape(-1, 6), 3)
    assert (passes[0] != passes[1]).any() and (passes[1] != passes[2]).any()
    for rows in passes:
        assert sorted(rows.ravel()) == sorted(stream_of(texts)[1])


def test_the_global_seed_makes_no_difference():
    expected = one_pass([bytes(range(200))], 8)
    tf.random.set_seed(0)
    assert one_pass([bytes(range(200))], 8) == expected


def test_static_shapes():
    documents = dataset_of([b"text"])
    ints, bools = tf.TensorSpec([3, 5], tf.int32), tf.TensorSpec([3, 5], tf.bool)
    expected = ({"token_ids": ints, "padding_mask": bools}, ints, tf.TensorSpec([3, 5], tf.float32))
    assert training_dataset(documents, ByteTokenizer(), 5, 3).element_spec == expected
    assert evaluation_dataset(documents, ByteTokenizer(), 5, 3).element_spec == expected


def test_any_tokenizer(tokenizer):
    texts = ["the quick fox", "jumps, the dog", ""]
    inputs, labels = stream_of(texts, tokenizer)
    rows = rows_of(evaluation_dataset(dataset_of(texts), tokenizer, 4, 2))
    real = rows[1]
    assert rows[0][real].tolist() == inputs
    assert rows[2][real].tolist() == labels
    assert (rows[2][~real] == tokenizer.pad_token_id).all()
    assert next(iter(training_dataset(dataset_of(texts), tokenizer, 4, 2)))[1].shape == (2, 4)


def test_no_documents():
    assert list(evaluation_dataset(dataset_of([]), ByteTokenizer(), 4, 2)) == []
    with pytest.raises(ValueError, match="documents must not be empty"):
        training_dataset(dataset_of([]), ByteTokenizer(), 4, 2)


@pytest.mark.parametrize(
    "name", ["sequence_length", "batch_size", "shuffle_buffer", "document_buffer"]
)
def test_numbers_below_one(name):
    options = {"sequence_length": 4, "batch_size": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1. Received: {name}=0"):
        training_dataset(dataset_of([b"a"]), ByteTokenizer(), **options)


def test_tokenizer_that_cuts_documents():
    with pytest.raises(ValueError, match="Received: sequence_length=8"):
        evaluation_dataset(dataset_of([b"a"]), ByteTokenizer(sequence_length=8), 4, 2)
