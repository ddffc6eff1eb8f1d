import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks import TASKS, make_task
from rt_keras.benchmarks.quality.tasks.task import HELD_OUT

# Lengths at which drawing a batch is fast.
LENGTHS = {"recall": 32, "mqar": 64, "listops": 64, "common_words": 512}


@pytest.fixture(params=TASKS)
def task(request, books):
    """Each of the tasks in turn, with short sequences."""
    return make_task(request.param, LENGTHS.get(request.param, 64), str(books))


def drawn(task, seed, held_out=False, count=2):
    batches = task.batches(seed, batch=4, held_out=held_out).take(count)
    return [tuple(x.numpy() for x in batch) for batch in batches]


def test_batches_are_the_same_bits_for_a_seed_and_index(task):
    first, second = drawn(task, 3)
    for ours, again in zip((first, second), drawn(task, 3)):
        for x, y in zip(ours, again):
            np.testing.assert_array_equal(x, y)
    assert (first[0] != second[0]).any()
    (skipped,) = task.batches(3, batch=4).skip(1).take(1)
    np.testing.assert_array_equal(skipped[0], second[0])


def test_seeds_and_held_out_batches_differ(task):
    tokens = [
        drawn(task, seed, held_out, 1)[0][0]
        for seed in (0, 1, HELD_OUT - 1)
        for held_out in (False, True)
    ]
    for i, ours in enumerate(tokens):
        assert all((ours != other).any() for other in tokens[:i])


def test_batches_are_of_the_declared_shapes_types_and_vocabulary(task):
    spec = task.batches(0, batch=4).element_spec
    of_sequences = [4] if task.classes else [4, task.length]
    shapes = [[4, task.length], of_sequences, of_sequences]
    assert [x.shape.as_list() for x in spec] == shapes
    assert [x.dtype.name for x in spec] == ["int32", "int32", "float32"]
    for tokens, targets, weights in drawn(task, 0):
        assert tokens.min() >= 0 and tokens.max() < task.vocabulary_size
        assert targets.min() >= 0 and targets.max() < (task.classes or task.vocabulary_size)
        assert set(np.unique(weights)) <= {0, 1}
        np.testing.assert_array_equal(weights.reshape(4, -1).sum(axis=1), task.scored)


def test_every_task_has_a_name_and_a_length_of_its_own():
    for name in TASKS:
        task = make_task(name)
        assert task.name == name and task.length == task.default_length


@pytest.mark.parametrize(
    "name, length, allowed",
    [
        ("recall", 7, "at least 8 for recall"),
        ("mqar", 100, "among 64, 128, 256, 512 for mqar"),
        ("listops", 15, "at least 16 for listops"),
        ("needle", 131073, "from 64 to 131,072 for needle"),
        ("common_words", 500, "from 512 to 131,072 for common_words"),
        ("text", 7, "at least 8 for text"),
    ],
)
def test_lengths_without_sequences_are_refused(name, length, allowed):
    with pytest.raises(ValueError, match=f"^--length must be {allowed}. Received: {length}$"):
        make_task(name, length)
