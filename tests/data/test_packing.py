import functools
import itertools
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras import data
from rt_keras.data import packing
from rt_keras.data.shards import read_manifest
from tests.data.checks import check_order

# Building and tracing a pipeline takes most of a test's time, so there are fewer examples.
few = settings(max_examples=6)
text_lists = st.lists(st.binary(max_size=20), min_size=1, max_size=6)
sizes = st.integers(1, 9)


def dataset_of(texts):
    return tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string, [len(texts)]))


def stream_of(texts, tokenizer=None):
    """Returns the inputs and labels of all texts in sequence, computed in plain Python."""
    tokenizer = tokenizer or data.ByteTokenizer()
    end = [tokenizer.end_token_id]
    tokens = [list(map(int, tokenizer(text))) for text in texts]
    return sum((end + row for row in tokens), []), sum((row + end for row in tokens), [])


def rows_of(batches):
    """Returns all rows of some batches: token ids, masks, labels and weights."""
    parts = [(x["token_ids"], x["padding_mask"], y, weights) for x, y, weights in batches]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def spec_of(*shape):
    ints, bools, floats = (tf.TensorSpec(shape, x) for x in (tf.int32, tf.bool, tf.float32))
    return {"token_ids": ints, "padding_mask": bools}, ints, floats


@pytest.mark.slow
@few
@given(text_lists, sizes, sizes)
def test_evaluation_has_every_token_once_in_order(texts, length, batch_size):
    batches = data.evaluation_dataset(dataset_of(texts), data.ByteTokenizer(), length, batch_size)
    assert batches.element_spec == spec_of(batch_size, length)
    batches = list(batches)
    inputs, labels = stream_of(texts)
    assert len(batches) == -(-len(labels) // (length * batch_size))
    token_ids, mask, targets, weights = (part.ravel() for part in rows_of(batches))
    real = len(labels)
    assert token_ids[:real].tolist() == inputs
    assert targets[:real].tolist() == labels
    assert mask[:real].all() and (weights[:real] == 1).all()
    assert not token_ids[real:].any() and not targets[real:].any()
    assert not mask[real:].any() and not weights[real:].any()


@pytest.fixture
def pack(tmp_path, monkeypatch):
    """Packs texts with `ByteTokenizer` into a new folder, with few tokens per file."""
    monkeypatch.setattr(packing, "SHARD_TOKENS", 10)
    numbers = itertools.count()

    def pack(texts, tokenizer=None, folder=None):
        folder = folder or tmp_path / str(next(numbers))
        return data.pack_documents(dataset_of(texts), tokenizer or data.ByteTokenizer(), folder)

    return pack


TEXTS = [b"abcdefgh", b"", b"ijk", b"l" * 25, b"mn", b"opqrstuv", b"w"]


def rows_of_batches(batches, count):
    """Returns the rows of some batches without their padding, a tuple of ints each."""
    token_ids, mask, targets, weights = rows_of(batches.take(count))
    assert (mask == (weights == 1)).all()
    assert not token_ids[~mask].any() and not targets[~mask].any()
    return [
        (tuple(token_ids[row][mask[row]].tolist()), tuple(targets[row][mask[row]].tolist()))
        for row in range(len(mask))
    ]


def test_files_hold_whole_documents_one_after_the_other(pack):
    folder = pack(TEXTS)
    parts = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    assert len(parts) == 4 and all(part.dtype == np.uint16 for part in parts)
    assert np.concatenate(parts).tolist() == stream_of(TEXTS)[0]
    # A file is full at 10 tokens and ends with a whole document.
    assert [len(part) for part in parts] == [10, 30, 12, 2]
    assert [shard["items"] for shard in read_manifest(folder)["shards"]] == [2, 2, 2, 1]
    # A large vocabulary has tokens of four bytes.
    words = ["<pad>", "<EOS>", "<unk>", *map(str, range(2**16))]
    tokens = np.load(pack([b"65535 0"], data.WordTokenizer(words)) / "00000.npy")
    assert tokens.dtype == np.int32 and tokens.tolist() == [1, 65538, 3]


@pytest.mark.slow
@few
@given(text_lists, sizes, sizes, st.integers(0, 3))
def test_training_has_every_token_once_in_a_pass(texts, length, batch_size, seed):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SHARD_TOKENS", 7)
        packed = data.pack_documents(dataset_of(texts), data.ByteTokenizer(), folder)
        inputs, labels = stream_of(texts)
        count = -(-len(labels) // length)
        batches = data.training_dataset(packed, length, batch_size, seed)
        assert batches.element_spec == spec_of(batch_size, length)
        # With as many batches as sequences, there are as many passes as rows in a batch.
        rows = rows_of_batches(batches, count)
    starts = range(0, len(labels), length)
    whole = sorted((tuple(inputs[i : i + length]), tuple(labels[i : i + length])) for i in starts)
    for one in range(batch_size):
        assert sorted(rows[one * count : (one + 1) * count]) == whole


@pytest.fixture
def packed(pack):
    return pack([bytes(range(200))])


def test_any_first_batch_is_the_rest_of_the_whole_and_workers_share_it(packed):
    check_order(functools.partial(data.training_dataset, packed, 6, 12))
    # A batch a long way on is read at once.
    ((_, found, _),) = data.training_dataset(packed, 6, 12, first_batch=10**12).take(1)
    assert set(np.ravel(found)) <= {0, 1, *range(2, 202)}


def test_what_is_packed_is_not_packed_again_nor_with_another_tokenizer(pack, capfd):
    folder = pack(TEXTS)
    # TensorFlow may log the end of the data.
    assert capfd.readouterr().err.startswith("packing documents\n")
    pack(TEXTS, folder=folder)
    assert "packing" not in capfd.readouterr().err
    words = data.WordTokenizer(["<pad>", "<EOS>", "<unk>"])
    with pytest.raises(ValueError, match="packed data whose tokenizer is '[0-9a-f]{64}', not"):
        pack(TEXTS, words, folder)


def test_a_file_that_shrinks_in_training_is_named(packed):
    batches = iter(data.training_dataset(packed, 6, 1))
    next(batches)
    path = packed / "00000.npy"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(tf.errors.OpError, match="00000.npy is shorter than at the start of"):
        for _ in range(100):
            next(batches)


def test_sequences_can_begin_with_a_token_of_their_own():
    documents = dataset_of(["abcd", "e", "fg"])
    # The cuts: 7 a b | c d 7 | 7 e 7 | ..., the last of which does not end with a document.
    batches = data.evaluation_dataset(documents, data.ByteTokenizer(), 4, 2, start_token_id=7)
    inputs, mask, labels, weights = (part.tolist() for part in rows_of(batches))
    a, b, c, d, e, f, g = (ord(letter) + 2 for letter in "abcdefg")
    assert inputs == [[7, a, b, 0], [7, c, d, 7], [7, e, 7, f], [7, g, 0, 0]]
    assert labels == [[a, b, c, 0], [c, d, 1, e], [e, 1, f, g], [g, 1, 0, 0]]
    assert weights == [[1, 1, 1, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0]]
    assert mask == [[True] * 3 + [False], [True] * 4, [True] * 4, [True] * 2 + [False] * 2]
    with pytest.raises(ValueError, match="must be at least 2 with a start token"):
        data.evaluation_dataset(documents, data.ByteTokenizer(), 1, 2, start_token_id=7)


def test_numbers_below_one_and_tokenizers_that_cut_documents_are_refused(packed, pack):
    assert list(data.evaluation_dataset(dataset_of([]), data.ByteTokenizer(), 4, 2)) == []
    documents, cutting = dataset_of([b"a"]), data.ByteTokenizer(sequence_length=8)
    for name in ("sequence_length", "batch_size"):
        options = {"sequence_length": 4, "batch_size": 2, name: 0}
        message = f"{name} must be at least 1. Received: {name}=0"
        with pytest.raises(ValueError, match=message):
            data.training_dataset(packed, **options)
        with pytest.raises(ValueError, match=message):
            data.evaluation_dataset(documents, data.ByteTokenizer(), **options)
    for use in (
        lambda: data.evaluation_dataset(documents, cutting, 4, 2),
        lambda: pack("a", cutting),
    ):
        with pytest.raises(ValueError, match="Received: sequence_length=8"):
            use()
