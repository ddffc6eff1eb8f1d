import numpy as np
import pytest

from rt_keras.benchmarks.approximate.tasks import (
    FILLERS,
    LONGEST_SPAN,
    MASK,
    TASKS,
    batches,
    unigram_accuracy,
)

TEXT = np.frombuffer(b"the cat sat on the mat, and the dog sat on the log. " * 9, np.uint8)


def draw(name, length=64, count=5):
    return next(batches(name, 3, count, length, TEXT))


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_the_same_for_the_same_seed(name):
    for ours, theirs in zip(draw(name), draw(name)):
        np.testing.assert_array_equal(ours, theirs)
    first, second = (batch for batch, _ in zip(batches(name, 3, 2, 64, TEXT), range(2)))
    assert np.any(first[0] != second[0])


def test_what_is_hidden_of_a_text_is_to_be_told():
    tokens, targets, weights = draw("masked", count=50)
    np.testing.assert_array_equal(tokens == MASK, weights == 1)
    np.testing.assert_array_equal(tokens[weights == 0], targets[weights == 0])
    assert 0.12 < weights.mean() < 0.18
    assert all(bytes(row.astype(np.uint8)) in TEXT.tobytes() for row in targets)


def test_the_next_byte_is_to_be_told():
    tokens, targets, _ = draw("causal")
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])


def test_what_is_hidden_in_one_copy_is_in_the_other():
    tokens, targets, weights = draw("copy", count=20)
    halves = np.split(tokens, 2, axis=1)
    hidden = [half == MASK for half in halves]
    assert not np.any(hidden[0] & hidden[1]) and np.all(weights == np.concatenate(hidden, axis=1))
    for half, other, wanted in zip(halves, halves[::-1], np.split(targets, 2, axis=1)):
        np.testing.assert_array_equal(np.where(half == MASK, other, half), wanted)


def test_a_span_begins_with_its_key_and_ends_with_its_end():
    tokens, targets, _ = draw("span", length=128, count=20)
    for row, (start, end) in zip(tokens, targets):
        assert row[start] == row[0] and np.count_nonzero(row == row[0]) == 2
        assert row[end] == 2 * FILLERS + row[0] and np.count_nonzero(row == row[end]) == 1
        assert 0 < end - start < LONGEST_SPAN


def test_the_commonest_byte_of_a_sequence_is_a_baseline():
    assert unigram_accuracy(64, b"a" * 100) == 1.0
    assert 0.1 < unigram_accuracy(64, TEXT.tobytes()) < 0.3
