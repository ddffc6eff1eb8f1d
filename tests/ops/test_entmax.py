import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import entmax15, full_attention, local_attention, nearest_attention, sparsemax
from rt_keras.ops.full_decode import full_cache, full_step
from rt_keras.ops.local_decode import local_cache, local_step
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from tests.ops import checks, decode_checks, reference

POWERS = {sparsemax: 1, entmax15: 2}
ACTIVATIONS = ["sparsemax", "entmax15"]


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


@pytest.mark.parametrize("activation", POWERS)
def test_bfloat16_is_computed_in_float32(activation):
    logits = tf.cast(rows(), tf.bfloat16)
    found = activation(logits)
    assert found.dtype == tf.bfloat16
    exact = activation(tf.cast(logits, tf.float32))
    assert np.array_equal(found, tf.cast(exact, tf.bfloat16))


@pytest.mark.parametrize("activation", POWERS)
def test_nothing_to_choose_from(activation):
    logits = tf.constant([[-np.inf] * 3, [0.0, -np.inf, -np.inf]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        found = activation(logits)
    np.testing.assert_array_equal(found, [[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(tape.gradient(found, logits), np.zeros([2, 3]))
    for shape in ([0, 3], [2, 0]):
        assert tf.function(activation)(tf.zeros(shape)).shape == shape


@pytest.mark.parametrize("activation", POWERS)
def test_gradients(activation):
    rng = np.random.default_rng(1)
    logits, direction, upstream = rng.normal(size=(3, 6, 20))
    logits[1:, :5] = -np.inf
    with tf.GradientTape() as tape:
        given = tf.constant(logits)
        tape.watch(given)
        loss = tf.reduce_sum(activation(given) * upstream)
    found = np.sum(tape.gradient(loss, given) * direction, axis=-1)
    ends = [expected(logits + step * direction, activation) for step in (1e-6, -1e-6)]
    slopes = np.sum((ends[0] - ends[1]) * upstream, axis=-1) / 2e-6
    np.testing.assert_allclose(found, slopes, rtol=1e-6, atol=1e-7)


OPS = {
    "full": (full_attention, reference.full, {}),
    "local": (local_attention, reference.local, {"block_size": 4, "sliding_window": 4}),
    "nearest": (nearest_attention, reference.nearest, {"window_size": 4}),
}


def inputs_of(kind, seed=0, **options):
    inputs = checks.arrays(13, far=3, seed=seed, **options)
    if kind == "nearest":
        inputs |= checks.arrays(13, clusters=3, load_bias=True, **options)
    return inputs


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind, causal", [("full", True), ("local", False), ("nearest", False)])
def test_attention(kind, causal, activation):
    op, equation, options = OPS[kind]
    mask = checks.mask("scattered", 13)
    options = {**options, "causal": causal, "attention_activation": activation, "key_mask": mask}
    checks.holds(op, equation, inputs_of(kind), **options, query_mask=mask)


@pytest.mark.parametrize("causal", [True, False])
def test_shared_queries_and_keys(causal):
    op, equation, options = OPS["nearest"]
    inputs = inputs_of("nearest", shared=True)
    checks.holds(op, equation, inputs, **options, causal=causal, attention_activation="entmax15")


@pytest.mark.parametrize("kind, start", [("full", 5), ("local", 9), ("nearest", 8)])
def test_the_future_does_not_change_the_past(kind, start):
    op, _, options = OPS[kind]
    options = {**options, "causal": True, "attention_activation": "sparsemax"}
    assert checks.past_is_untouched(op, inputs_of(kind), start, **options)


def test_compiled_by_xla():
    checks.holds_compiled(full_attention, checks.arrays(5), attention_activation="entmax15")


@pytest.mark.end_to_end
def test_in_chunks(monkeypatch):
    options = {"causal": True, "attention_activation": "sparsemax"}
    inputs = checks.arrays(5)
    whole = checks.run(full_attention, inputs, options)
    checks.at_most_logits(1, monkeypatch)
    checks.same(checks.run(full_attention, inputs, options, jit_compile=False), whole, 1e-12)


def test_attention_in_bfloat16():
    checks.holds_in_lower_precision(
        local_attention,
        reference.local,
        checks.arrays(9),
        tf.bfloat16,
        0.05,
        block_size=4,
        attention_activation="entmax15",
    )


def test_dropout():
    inputs = checks.arrays(6, batch=1)
    checks.drops_out(full_attention, inputs, causal=True, attention_activation="entmax15")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_steps(activation):
    given = {"attention_activation": activation}

    def full(key, value, count, **options):
        return full_cache(key, value, max_length=13, **options)

    inputs = inputs_of("full")
    found = decode_checks.decode(full, full_step, inputs, 4, **given)
    decode_checks.same(found, full_attention, inputs, 4, **given)

    def local(key, value, count, **options):
        return local_cache(key, value, count, block_size=4, **options)

    options = {**OPS["local"][2], **given}
    found = decode_checks.decode(local, local_step, inputs, 4, **options)
    decode_checks.same(found, local_attention, inputs, 4, **options)

    inputs = inputs_of("nearest")
    routing = {name: inputs[name] for name in ("centroids", "load_bias")}

    def nearest(key, value, count, **options):
        options |= {**checks.tensors(routing), "window_size": 4, "keep_positions": True}
        return nearest_cache(key, value, count=count, **options)

    found = decode_checks.decode(nearest, nearest_step, inputs, 4, **given)
    decode_checks.same(found, nearest_attention, inputs, 4, window_size=4, **given)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"attention_activation": "softmin"}, "must be one of .*'entmax15'.* Received: 'softmin'"),
        ({"num_probes": 2}, "must be 'softmax' with num_probes=2. Received: 'sparsemax'"),
        ({"block_size": 2}, "must be 'softmax' with a block_size"),
        ({"return_logsumexp": True}, "must be 'softmax' with return_logsumexp"),
    ],
)
def test_what_needs_a_softmax(options, message):
    inputs = checks.tensors(inputs_of("nearest"))
    with pytest.raises(ValueError, match=message):
        nearest_attention(
            **inputs, window_size=4, **{"attention_activation": "sparsemax", **options}
        )
