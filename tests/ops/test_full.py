import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import full_attention
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", [None, "left", "right", "scattered", "a whole row"])
def test_equation(causal, shared, padding):
    inputs = checks.arrays(9, shared=shared)
    mask = checks.mask(padding, 9)
    checks.holds(
        full_attention, reference.full, inputs, causal=causal, query_mask=mask, key_mask=mask
    )


@pytest.mark.parametrize("length, keys", [(7, 4), (4, 7), (1, 1), (1, 5), (5, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_cross_attention(length, keys, causal):
    inputs = checks.arrays(length, keys=keys, far=2)
    checks.holds(
        full_attention,
        reference.full,
        inputs,
        causal=causal,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


@pytest.mark.parametrize("far", [1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_relative_embeddings(far, causal):
    checks.holds(full_attention, reference.full, checks.arrays(8, far=far), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_relative_embeddings_and_padding(causal):
    checks.holds(
        full_attention,
        reference.full,
        checks.arrays(6, keys=8, far=2),
        causal=causal,
        key_mask=checks.mask("left", 8),
    )


@pytest.mark.end_to_end
def test_relative_embeddings_in_chunks(monkeypatch):
    inputs = checks.arrays(7, far=2)
    checks.holds_in_chunks(full_attention, inputs, monkeypatch, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_mask(causal):
    allowed = np.random.default_rng(3).random((2, 6, 8)) < 0.5
    allowed[0, 2] = False
    checks.holds(
        full_attention,
        reference.full,
        checks.arrays(6, keys=8),
        causal=causal,
        attention_mask=allowed,
        key_mask=checks.mask("left", 8),
    )


def test_a_query_without_keys_gets_0_and_no_gradient():
    inputs = checks.arrays(5)
    allowed = np.ones((2, 5, 5), bool)
    allowed[:, 3] = False
    output, gradients = checks.run(full_attention, inputs, {"attention_mask": allowed})
    assert not np.any(output[:, :, 3])
    assert not np.any(gradients["query"][:, :, 3])
    assert np.any(gradients["query"][:, :, 2])


def test_causality():
    inputs = checks.arrays(9, far=3)
    for start in (1, 5, 8):
        assert checks.past_is_untouched(full_attention, inputs, start, causal=True)
    assert not checks.past_is_untouched(full_attention, inputs, 5, causal=False)


@pytest.mark.parametrize("causal", [False, True])
def test_in_chunks(causal, monkeypatch):
    # A limit of 1 takes one query at a time.
    allowed = np.random.default_rng(3).random((2, 7, 6)) < 0.7
    checks.holds_in_chunks(
        full_attention,
        checks.arrays(7, keys=6, far=2),
        monkeypatch,
        causal=causal,
        query_mask=checks.mask("right", 7),
        key_mask=checks.mask("scattered", 6),
        attention_mask=allowed,
    )


def test_in_chunks_that_do_not_divide_the_queries(monkeypatch):
    inputs = checks.arrays(7, far=2)
    whole = checks.run(full_attention, inputs, {"causal": True})
    monkeypatch.setattr("rt_keras.ops.chunks.LOGITS_AT_ONCE", 3 * 2 * 2 * 7)
    checks.same(checks.run(full_attention, inputs, {"causal": True}), whole, atol=1e-12)


def test_compiled():
    mask = checks.mask("left", 9)
    checks.holds_compiled(
        full_attention, checks.arrays(9, far=3), causal=True, query_mask=mask, key_mask=mask
    )


def test_unknown_shapes():
    def inputs(length):
        batch = 1 + length % 3
        found = checks.arrays(length, keys=length + 2, far=2, batch=batch)
        return {**found, "key_mask": checks.mask("scattered", length + 2, batch)}

    checks.holds_for_unknown_shapes(full_attention, (8, 1, 12), inputs, causal=True)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.03)])
def test_lower_precision(dtype, atol):
    # bfloat16 keeps 8 bits of a mean of values near 1, and of each weight.
    checks.holds_in_lower_precision(
        full_attention, reference.full, checks.arrays(9, far=3), dtype, atol, causal=True
    )


def test_dropout():
    checks.drops_out(full_attention, checks.arrays(6, batch=1, far=2), causal=True)


def test_dropout_in_chunks(monkeypatch):
    monkeypatch.setattr("rt_keras.ops.chunks.LOGITS_AT_ONCE", 2 * 1000 * 2 * 6)
    checks.drops_out(full_attention, checks.arrays(6, batch=1, far=2), causal=True)


def test_numpy_arguments(monkeypatch):
    mask = checks.mask("scattered", 6)
    checks.takes_numpy(
        full_attention,
        reference.full,
        checks.arrays(6, far=2),
        monkeypatch,
        query_mask=mask,
        key_mask=mask,
        attention_mask=np.random.default_rng(3).random((2, 6, 6)) < 0.8,
    )


def test_logsumexp(monkeypatch):
    inputs = checks.arrays(6, keys=8)
    logits = np.einsum("bhid,bhjd->bhij", inputs["query"], inputs["key"]) * 6**-0.5
    for limit in (2**20, 1):
        checks.at_most_logits(limit, monkeypatch)
        output, found = full_attention(**checks.tensors(inputs), return_logsumexp=True)
        np.testing.assert_allclose(found, np.log(np.exp(logits).sum(axis=-1)), rtol=1e-12)
        np.testing.assert_allclose(output, reference.full(**inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"attention_activation": "entmax15"}, {"relative": True}], ids=str
)
def test_the_causal_mask_is_no_constant_of_the_program(options):
    far = 5 if options.pop("relative", False) else None
    inputs = checks.arrays(256, batch=1, far=far)
    # Two lists of positions at most.
    assert checks.largest_constant(full_attention, inputs, causal=True, **options) <= 2 * 256


def test_a_causal_mask_does_not_depend_on_the_first_query():
    inputs = checks.tensors(checks.arrays(9))
    for first in (np.nan, np.inf, -np.inf):
        query = tf.concat([tf.fill([2, 2, 1, 6], tf.cast(first, tf.float64)), inputs["query"]], 2)
        key, value = (tf.concat([x[:, :, :1], x], 2) for x in (inputs["key"], inputs["value"]))
        found = full_attention(query, key, value, causal=True)[:, :, 1:]
        assert np.all(np.isfinite(found))
        mask = np.tril(np.ones([10, 10], bool))[None]
        same = full_attention(query, key, value, attention_mask=mask)[:, :, 1:]
        np.testing.assert_allclose(found, same, rtol=0, atol=1e-12)
