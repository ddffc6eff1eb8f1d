import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention
from tests.layers import checks
from tests.layers.test_multi_head_attention import twins

BATCH, HEADS, QUERIES, KEYS = 2, 2, 5, 7


def some(*shape):
    """Returns a mask with a key for every query. In Keras, queries without keys see all keys."""
    mask = np.random.default_rng(3).random(shape) < 0.5
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("options", [{}, {"use_causal_mask": True}], ids=["plain", "causal"])
def test_broadcast_as_in_keras(options):
    query, value = checks.random(BATCH, QUERIES, 6), checks.random(BATCH, KEYS, 6, seed=1)
    theirs, ours = twins(query, value)
    plain = ours(query, value, **options)
    for shape in (
        (QUERIES, KEYS),
        (1, KEYS),
        (BATCH, QUERIES, KEYS),
        (1, QUERIES, KEYS),
        (BATCH, 1, KEYS),
        (BATCH, 1, QUERIES, KEYS),
        (BATCH, 1, 1, KEYS),
        (BATCH, HEADS, QUERIES, KEYS),
        (1, HEADS, 1, KEYS),
        (1, 1, 1, 1),
    ):
        for mask in (some(*shape), some(*shape).astype("int32")):
            expected = theirs(query, value, attention_mask=mask, **options)
            found = ours(query, value, attention_mask=mask, **options)
            checks.close(found, expected, 5e-6)
        assert (checks.largest_difference(found, plain) > 1e-3) == (shape != (1, 1, 1, 1)), shape


def test_each_head_gets_its_mask():
    x, mask = checks.random(2, 5, 6), some(2, 3, 5, 5)
    layer = MultiHeadAttention([FullHeads(1), FullHeads(2)], 4)
    _, scores = layer(x, x, attention_mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(scores.numpy() > 0, mask)


def test_masks_that_every_group_supports():
    x, mask = checks.random(2, 5, 6), checks.padding(2, 5)
    layer = MultiHeadAttention([LocalHeads(2, 3)], 4)
    expected = layer(x, x, value_mask=mask)
    for of_keys in (mask[:, None], mask[:, None, None]):
        np.testing.assert_array_equal(layer(x, x, attention_mask=of_keys), expected)
    expected = layer(x, x, query_mask=mask)
    np.testing.assert_array_equal(layer(x, x, attention_mask=mask[..., None]), expected)
    same = np.array([[True, True, True, True, False]])
    expected = layer(x, x, value_mask=same.repeat(2, axis=0))
    np.testing.assert_array_equal(layer(x, x, attention_mask=same), expected)


@pytest.mark.parametrize("shape", [(2,), (5, 4), (3, 5, 5), (2, 3, 5, 5), (2, 1, 1, 5, 5)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_masks_that_do_not_broadcast(shape, symbolic):
    x, mask = checks.random(2, 5, 6), np.ones(shape, bool)
    if symbolic:
        x, mask = keras.Input(batch_shape=x.shape), keras.Input(batch_shape=shape, dtype="bool")
    message = (
        r"attention_mask must broadcast .* here \(2, 2, 5, 5\) .*as value_mask. Received: .*\("
    )
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention([FullHeads(2)], 4)(x, x, attention_mask=mask)
