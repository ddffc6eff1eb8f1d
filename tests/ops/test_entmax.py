import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import entmax15, full_attention, local_attention, nearest_attention, sparsemax
from tests.ops import checks, reference

POWERS = {sparsemax: 1, entmax15: 2}


def rows(n=40):
    """Rows from nearly equal logits to very different ones, with ties and masked logits."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(12, n)) * np.geomspace(1e-3, 1e3, 12)[:, None]
    logits[::2] = np.round(logits[::2])
    logits[3:, : n // 4] = -np.inf
    return logits


def expected(logits, activation):
    return np.stack([reference.entmax(row, POWERS[activation]) for row in logits])


@pytest.mark.parametrize("activation", POWERS)
@pytest.mark.parametrize("dtype, atol", [(tf.float64, 1e-14), (tf.float32, 5e-7)])
def test_equation(activation, dtype, atol):
    logits = np.array(tf.cast(tf.cast(rows(), dtype), tf.float64))
    found = tf.function(activation, jit_compile=True)(tf.constant(logits, dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected(logits, activation), rtol=0, atol=atol)
    np.testing.assert_allclose(activation(tf.constant(logits, dtype)), found, rtol=0, atol=atol)
    np.testing.assert_allclose(np.sum(found, axis=-1), 1, rtol=0, atol=10 * atol)
    assert np.all(np.asarray(found)[3:, :10] == 0)


OPS = {
    "full": (full_attention, reference.full, {}),
    "local": (local_attention, reference.local, {"block_size": 4, "sliding_window": 4}),
    "nearest": (nearest_attention, reference.nearest, {"window_size": 4}),
}


def inputs_of(kind, **options):
    inputs = checks.arrays(13, far=3, **options)
    if kind == "nearest":
        inputs |= checks.arrays(13, clusters=3, load_bias=True, **options)
    return inputs


@pytest.mark.parametrize(
    "kind, shared, causal, activation",
    [
        ("full", False, True, "sparsemax"),
        ("local", False, False, "entmax15"),
        ("nearest", False, False, "sparsemax"),
        ("nearest", True, True, "entmax15"),
    ],
)
def test_attention(kind, shared, causal, activation):
    op, equation, options = OPS[kind]
    mask = checks.mask("scattered", 13)
    options = {**options, "causal": causal, "attention_activation": activation, "key_mask": mask}
    inputs = inputs_of(kind, shared=shared)
    checks.holds(op, equation, inputs, **options, query_mask=mask)
    if causal:
        assert checks.past_is_untouched(op, inputs, 5, **options)
