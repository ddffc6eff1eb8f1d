import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data.order import batches_of_numbers, rows_of_share


def numbers(count, batch_size, batches, **options):
    found = batches_of_numbers(count, batch_size, **{"seed": 0, **options}).take(batches)
    return np.stack(list(found.as_numpy_iterator()))


@settings(max_examples=6)
@given(st.integers(1, 1000), st.integers(0, 9))
def test_a_pass_is_a_permutation(count, seed):
    for order in numbers(count, count, 3, seed=seed):
        assert sorted(order) == list(range(count))


def test_orders_differ_between_passes_and_seeds():
    orders = [*numbers(100_000, 100_000, 2), *numbers(100_000, 100_000, 2, seed=1), range(100_000)]
    # Correlations of independent orders are below 5 / sqrt(100,000) = 0.016.
    correlations = np.corrcoef(orders) - np.eye(5)
    assert np.abs(correlations).max() < 0.016


def test_neighbors_are_far_apart():
    count = 10**9
    order = numbers(count, 10_000, 1)[0]
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert 0.3 < np.abs(np.diff(order)).mean() / count < 0.37


def test_a_batch_may_hold_the_end_of_a_pass_and_the_start_of_the_next():
    found = numbers(5, 3, 10).reshape(6, 5)
    np.testing.assert_array_equal(found, numbers(5, 5, 6))
    # A batch may be larger than a pass.
    np.testing.assert_array_equal(numbers(5, 10, 3).reshape(6, 5), found)


def test_bad_arguments():
    with pytest.raises(ValueError, match="count must be at least 1"):
        batches_of_numbers(0, 1, 0)
    with pytest.raises(ValueError, match="first_batch must be at least 0. Received: first_b"):
        batches_of_numbers(1, 1, 0, first_batch=-1)
    with pytest.raises(ValueError, match="must be a multiple of .* workers, 4. Received: .*=6"):
        rows_of_share(6, (0, 4))
    for share in ((2, 2), (-1, 2)):
        with pytest.raises(ValueError, match=r"share must be \(worker, workers\).* share=\("):
            rows_of_share(6, share)
