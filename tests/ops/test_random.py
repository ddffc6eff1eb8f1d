import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import random_attention
from rt_keras.ops.random import random_scores
from tests.ops import checks, reference

SEEDS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], "int32")


def of_heads(count=2, **options):
    """The op and its equation, with seeds for a number of heads."""
    seeds = SEEDS[:count]
    return [
        functools.partial(function, routing_seed=seeds, num_clusters=3, window_size=5, **options)
        for function in (random_attention, reference.random)
    ]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [1, 4, 17])
def test_equation(causal, shared, length):
    inputs = checks.arrays(length, shared=shared, far=2)
    checks.holds(*of_heads(), inputs, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, shared, padding):
    mask = checks.mask(padding, 15)
    checks.holds(
        *of_heads(),
        checks.arrays(15, shared=shared),
        causal=causal,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("length, keys", [(9, 14), (14, 9), (1, 6), (6, 1)])
def test_cross_attention(length, keys):
    checks.holds(
        *of_heads(),
        checks.arrays(length, keys=keys, far=2),
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


def members(heads=2, **inputs):
    """Mask of the keys that any query of each head sees, `[batch, heads, keys]`."""
    op = of_heads(heads)[0]
    return checks.attention_of(op, checks.arrays(30, heads=heads, **inputs), {}).any(axis=2)


def test_members_depend_on_nothing_but_the_seed_of_the_head():
    found = members()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found, members(seed=1))
    assert np.any(found[0, 0] != found[0, 1])
    other = members(heads=4)
    np.testing.assert_array_equal(found, other[:, :2])


def test_draws_are_even_and_independent():
    heads, clusters, length, count = 200, 10, 12, 4
    seeds = np.stack([np.zeros(heads), np.arange(heads)], axis=-1).astype("int32")
    scores = random_scores(seeds, clusters, length).numpy()
    ranks = np.argsort(np.argsort(-scores, axis=-1), axis=-1).reshape(-1, length)
    chosen = (ranks < count).astype("float64")
    draws, share = heads * clusters, count / length
    # 4.5 standard errors of a binomial: of positions, of pairs, and of one draw and the next.
    for found, expected in (
        (chosen.mean(axis=0), share),
        (
            (chosen.T @ chosen / draws)[~np.eye(length, dtype=bool)],
            share * (count - 1) / (length - 1),
        ),
        (chosen[1:].T @ chosen[:-1] / draws, share**2),
        (chosen[clusters:].T @ chosen[:-clusters] / draws, share**2),
    ):
        error = 4.5 * np.sqrt(expected * (1 - expected) / draws)
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)


@pytest.mark.parametrize("shared", [False, True])
def test_causality(shared):
    op = of_heads()[0]
    inputs = checks.arrays(19, shared=shared, far=3)
    for start in (1, 8, 18):
        assert checks.past_is_untouched(op, inputs, start, causal=True)
    assert not checks.past_is_untouched(op, inputs, 8, causal=False)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_in_chunks(shared, monkeypatch):
    checks.holds_in_chunks(
        of_heads(4)[0],
        checks.arrays(18, shared=shared, far=2, heads=4),
        monkeypatch,
        causal=True,
        query_mask=checks.mask("right", 18),
        key_mask=None if shared else checks.mask("scattered", 18),
    )


@pytest.mark.end_to_end
def test_compiled():
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(
        of_heads()[0],
        checks.arrays(18, far=2),
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


def test_unknown_shapes():
    def inputs(length):
        batch, keys = 1 + length % 3, length + 3
        found = checks.arrays(length, keys=keys, far=2, batch=batch)
        return {**found, "key_mask": checks.mask("scattered", keys, batch)}

    checks.holds_for_unknown_shapes(of_heads()[0], (8, 1, 13), inputs, causal=True)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    checks.holds_in_lower_precision(*of_heads(), checks.arrays(11, far=2), dtype, atol, causal=True)


def test_dropout():
    op = functools.partial(
        random_attention, routing_seed=SEEDS[:2], num_clusters=1, window_size=5, causal=True
    )
    checks.drops_out(op, checks.arrays(9, batch=1))
