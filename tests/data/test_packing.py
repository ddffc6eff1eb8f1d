import itertools
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import (
    ByteTokenizer,
    WordTokenizer,
    evaluation_dataset,
    pack_documents,
    packing,
    training_dataset,
)
from rt_keras.data.shards import read_manifest

# Building and tracing a pipeline takes most of a test's time, so there are fewer examples.
few = settings(max_examples=8)
text_lists = st.lists(st.binary(max_size=20), min_size=1, max_size=6)
sizes = st.integers(1, 9)


def dataset_of(texts):
    return tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string, [len(texts)]))


def stream_of(texts, tokenizer=None):
    """Returns the inputs and labels of all texts in sequence, computed in plain Python."""
    tokenizer = tokenizer or ByteTokenizer()
    end = [tokenizer.end_token_id]
    tokens = [list(map(int, tokenizer(text))) for text in texts]
    return sum((end + row for row in tokens), []), sum((row + end for row in tokens), [])


def rows_of(batches):
    """Returns all rows of some batches: token ids, masks, labels and weights."""
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


@pytest.fixture
def pack(tmp_path, monkeypatch):
    """Packs texts with `ByteTokenizer` into a new folder, with few tokens per file."""
    monkeypatch.setattr(packing, "SHARD_TOKENS", 10)
    numbers = itertools.count()

    def pack(texts, tokenizer=None, folder=None):
        folder = folder or tmp_path / str(next(numbers))
        return pack_documents(dataset_of(texts), tokenizer or ByteTokenizer(), folder)

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


def test_a_large_vocabulary_has_tokens_of_four_bytes(pack):
    words = ["<pad>", "<EOS>", "<unk>", *map(str, range(2**16))]
    folder = pack([b"65535 0"], WordTokenizer(words))
    tokens = np.load(folder / "00000.npy")
    assert tokens.dtype == np.int32 and tokens.tolist() == [1, 65538, 3]


@few
@given(text_lists, sizes, sizes, st.integers(0, 3))
def test_training_has_every_token_once_in_a_pass(texts, length, batch_size, seed):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SHARD_TOKENS", 7)
        packed = pack_documents(dataset_of(texts), ByteTokenizer(), folder)
        inputs, labels = stream_of(texts)
        count = -(-len(labels) // length)
        batches = training_dataset(packed, length, batch_size, seed)
        # With as many batches as sequences, there are as many passes as rows in a batch.
        rows = rows_of_batches(batches, count)
    starts = range(0, len(labels), length)
    whole = sorted((tuple(inputs[i : i + length]), tuple(labels[i : i + length])) for i in starts)
    for one in range(batch_size):
        assert sorted(rows[one * count : (one + 1) * count]) == whole


@pytest.fixture
def packed(pack):
    return pack([bytes(range(200))])


def labels_of(packed, count, **options):
    return np.stack([y for _, y, _ in training_dataset(packed, 6, 12, **options).take(count)])


def test_the_seed_fixes_the_order_and_each_pass_has_its_own(packed):
    # 201 labels are 34 rows; 17 batches of 12 are 6 passes.
    first = labels_of(packed, 17, seed=1)
    np.testing.assert_array_equal(labels_of(packed, 17, seed=1), first)
    orders = [tuple(rows[:, 0]) for rows in first.reshape(6, 34, 6)]
    orders += [tuple(labels_of(packed, 17, seed=2).reshape(6, 34, 6)[0][:, 0])]
    assert len(set(orders)) == 7 and len({tuple(sorted(order)) for order in orders}) == 1


def test_the_global_seed_makes_no_difference(packed):
    expected = labels_of(packed, 3)
    tf.random.set_seed(0)
    np.testing.assert_array_equal(labels_of(packed, 3), expected)


@pytest.mark.parametrize("first", [1, 3, 16])
def test_any_first_batch_is_the_rest_of_the_whole(packed, first):
    whole = labels_of(packed, 20, seed=4)
    np.testing.assert_array_equal(
        labels_of(packed, 20 - first, seed=4, first_batch=first), whole[first:]
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_share_each_batch(packed, workers):
    whole = rows_of(training_dataset(packed, 6, 12, seed=4, first_batch=5).take(4))
    shares = [
        training_dataset(packed, 6, 12, seed=4, first_batch=5, share=(worker, workers)).take(4)
        for worker in range(workers)
    ]
    in_turn = [rows_of([part]) for parts in zip(*shares, strict=True) for part in parts]
    for expected, parts in zip(whole, zip(*in_turn, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_a_batch_a_long_way_on_is_read_at_once(packed):
    (found,) = labels_of(packed, 1, first_batch=10**12)
    assert set(found.ravel()) <= set(stream_of([bytes(range(200))])[1]) | {0}


def test_packing_goes_on_where_it_was_interrupted(pack, tmp_path):
    def interrupted():
        for number, text in enumerate(TEXTS):
            if number == 5:
                raise OSError("the disk is gone")
            yield text

    whole, folder = pack(TEXTS), tmp_path / "interrupted"
    broken = tf.data.Dataset.from_generator(
        interrupted, output_signature=tf.TensorSpec([], tf.string)
    )
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        pack_documents(broken, ByteTokenizer(), folder)
    written = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    assert list(written) and not read_manifest(folder)["finished"]
    with pytest.raises(ValueError, match="interrupted is incomplete; pack the same doc"):
        training_dataset(folder, 4, 1)
    pack(TEXTS, folder=folder)
    assert_equal_folders(folder, whole)
    for name, time in written.items():
        assert (folder / name).stat().st_mtime_ns == time


def assert_equal_folders(one, other):
    files = [
        {x.name: x.read_bytes() for x in f.iterdir() if x.name != ".lock"} for f in (one, other)
    ]
    assert files[0] == files[1]


def test_what_is_packed_is_not_packed_again(pack, capfd):
    folder = pack(TEXTS)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert capfd.readouterr().err == "packing documents\n"
    pack(TEXTS, folder=folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert capfd.readouterr().err == ""


def test_another_tokenizer_is_refused(pack):
    folder = pack([b"a"])
    words = WordTokenizer(["<pad>", "<EOS>", "<unk>"])
    with pytest.raises(ValueError, match="packed data whose tokenizer is '[0-9a-f]{64}', not"):
        pack([b"a"], words, folder)


def test_a_file_that_shrinks_in_training_is_named(packed):
    batches = iter(training_dataset(packed, 6, 1))
    next(batches)
    path = packed / "00000.npy"
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(tf.errors.OpError, match="00000.npy is shorter than at the start of"):
        for _ in range(100):
            next(batches)


def test_static_shapes(packed):
    documents = dataset_of([b"text"])
    ints, bools = tf.TensorSpec([3, 5], tf.int32), tf.TensorSpec([3, 5], tf.bool)
    expected = ({"token_ids": ints, "padding_mask": bools}, ints, tf.TensorSpec([3, 5], tf.float32))
    assert training_dataset(packed, 5, 3).element_spec == expected
    assert training_dataset(packed, 5, 6, share=(1, 2)).element_spec == expected
    assert evaluation_dataset(documents, ByteTokenizer(), 5, 3).element_spec == expected


def test_any_tokenizer(tokenizer, pack):
    texts = ["the quick fox", "jumps, the dog", ""]
    inputs, labels = stream_of(texts, tokenizer)
    rows = rows_of(evaluation_dataset(dataset_of(texts), tokenizer, 4, 2))
    real = rows[1]
    assert rows[0][real].tolist() == inputs
    assert rows[2][real].tolist() == labels
    assert (rows[2][~real] == tokenizer.pad_token_id).all()
    (found,) = rows_of_batches(training_dataset(pack(texts, tokenizer), len(labels), 1), 1)
    assert found == (tuple(inputs), tuple(labels))


def test_sequences_can_begin_with_a_token_of_their_own():
    documents = dataset_of(["abcd", "e", "fg"])
    batches = list(evaluation_dataset(documents, ByteTokenizer(), 4, 2, start_token_id=7))
    # The cuts: 7 a b | c d 7 | 7 e 7 | ..., the last of which does not end with a document.
    inputs, mask, labels, weights = (
        np.concatenate([np.asarray(part) for part in parts]).tolist()
        for parts in zip(
            *((x["token_ids"], x["padding_mask"], y, weights) for x, y, weights in batches)
        )
    )
    a, b, c, d, e, f, g = (ord(letter) + 2 for letter in "abcdefg")
    assert inputs == [[7, a, b, 0], [7, c, d, 7], [7, e, 7, f], [7, g, 0, 0]]
    assert labels == [[a, b, c, 0], [c, d, 1, e], [e, 1, f, g], [g, 1, 0, 0]]
    assert weights == [[1, 1, 1, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0]]
    assert mask == [[True] * 3 + [False], [True] * 4, [True] * 4, [True] * 2 + [False] * 2]
    with pytest.raises(ValueError, match="must be at least 2 with a start token"):
        evaluation_dataset(documents, ByteTokenizer(), 1, 2, start_token_id=7)


def test_no_documents(pack, tmp_path):
    assert list(evaluation_dataset(dataset_of([]), ByteTokenizer(), 4, 2)) == []
    with pytest.raises(ValueError, match="documents must not be empty"):
        pack([])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sequence_length", "batch_size"])
def test_numbers_below_one(packed, name):
    options = {"sequence_length": 4, "batch_size": 2, name: 0}
    message = f"{name} must be at least 1. Received: {name}=0"
    with pytest.raises(ValueError, match=message):
        training_dataset(packed, **options)
    with pytest.raises(ValueError, match=message):
        evaluation_dataset(dataset_of([b"a"]), ByteTokenizer(), **options)


def test_tokenizer_that_cuts_documents(pack):
    with pytest.raises(ValueError, match="Received: sequence_length=8"):
        evaluation_dataset(dataset_of([b"a"]), ByteTokenizer(sequence_length=8), 4, 2)
    with pytest.raises(ValueError, match="Received: sequence_length=8"):
        pack([b"a"], ByteTokenizer(sequence_length=8))
