import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks import TASKS, make_task
from rt_keras.benchmarks.quality.tasks.task import HELD_OUT

# Lengths at which drawing a batch is fast.
LENGTHS = {"recall": 32, "common_words": 512}


def drawn(task, seed, held_out=False, count=1):
    batches = task.batches(seed, batch=4, held_out=held_out).take(count)
    return [tuple(x.numpy() for x in batch) for batch in batches]


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_repeated_by_seed_and_index_and_of_the_declared_shapes(name, books):
    task = make_task(name, LENGTHS.get(name, 64), str(books))
    first, second = drawn(task, 3, count=2)
    for x, y in zip(first, drawn(task, 3)[0]):
        np.testing.assert_array_equal(x, y)
    (skipped,) = task.batches(3, batch=4).skip(1).take(1)
    np.testing.assert_array_equal(skipped[0], second[0])
    others = [drawn(task, seed, out)[0][0] for seed in (0, HELD_OUT - 1) for out in (False, True)]
    different = [first[0], second[0], *others]
    for i, ours in enumerate(different):
        assert all((ours != other).any() for other in different[:i])

    of_sequences = [4] if task.classes else [4, task.length]
    spec = task.batches(0, batch=4).element_spec
    assert [x.shape.as_list() for x in spec] == [[4, task.length], of_sequences, of_sequences]
    assert [x.dtype.name for x in spec] == ["int32", "int32", "float32"]
    tokens, targets, weights = first
    assert tokens.min() >= 0 and tokens.max() < task.vocabulary_size
    assert targets.min() >= 0 and targets.max() < (task.classes or task.vocabulary_size)
    assert set(np.unique(weights)) <= {0, 1}
    np.testing.assert_array_equal(weights.reshape(4, -1).sum(axis=1), task.scored)
    usual = make_task(name)
    assert usual.name == name and usual.length == usual.default_length


@pytest.mark.parametrize(
    "name, length, allowed",
    [
        ("recall", 7, "at least 8 for recall"),
        ("mqar", 100, "among 64, 128, 256, 512 for mqar"),
        ("listops", 15, "at least 16 for listops"),
        ("needle", 131073, "from 64 to 131,072 for needle"),
        ("common_words", 500, "from 512 to 131,072 for common_words"),
    ],
)
def test_lengths_without_sequences_are_refused(name, length, allowed):
    with pytest.raises(ValueError, match=f"^--length must be {allowed}. Received: {length}$"):
        make_task(name, length)
