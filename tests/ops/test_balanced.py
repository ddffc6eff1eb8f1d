import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.ops import balanced, balanced_attention
from rt_keras.ops.balanced import naive_balanced_attention
from tests.ops import checks


def test_float32_chooses_the_members_of_float64():
    # Rounding is not so much as to change an order of 17 scores.
    inputs, options = checks.arrays(17, clusters=3), {"window_size": 5}
    found = balanced_attention(**checks.tensors(inputs, "float32"), **options)
    expected = naive_balanced_attention(**inputs, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
    count=st.integers(1, 20),
    longest=st.integers(1, 20),
    seed=st.integers(0, 9),
)
def test_of_equal_scores_the_first_positions_are_taken(scores, count, longest, seed):
    count = min(count, len(scores))
    mask = np.random.default_rng(seed).random([1, len(scores)]) < 0.7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balanced, "LONGEST_ROW", longest)
        found = balanced.top_members(
            tf.constant(scores, tf.float32)[None, None, None], tf.constant(mask), count
        )
    # Real positions before padding, then high scores before low ones.
    keys = np.where(mask[0], np.array(scores), -np.inf)
    expected = np.argsort(-keys, kind="stable")[:count]
    assert sorted(found[0, 0, 0].numpy()) == sorted(expected)
