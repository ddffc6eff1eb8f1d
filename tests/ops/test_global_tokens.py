import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import ops
from rt_keras.ops.naive import naive_logits, naive_mask, naive_normalize, naive_softmax
from rt_keras.ops.nearest.attention import naive_clusters, naive_nearest_keys
from tests.ops import checks

LENGTH = 11
GLOBAL = np.zeros((2, LENGTH), bool)
GLOBAL[0, [0, 6]] = GLOBAL[1, 4] = True

KINDS = {
    "full": (ops.full_attention, {}),
    "local": (ops.local_attention, {"block_size": 2}),
    "nearest": (ops.nearest_attention, {"window_size": 4, "num_probes": 2}),
    "shared": (ops.nearest_attention, {"window_size": 4}),
}


def inputs_of(kind, **options):
    if kind in ("nearest", "shared"):
        options |= {"clusters": 2, "shared": kind == "shared"}
    return checks.arrays(LENGTH, **options)


def op_of(kind):
    """The op with global tokens, as `checks` calls it."""
    tokens = ops.find_global_tokens(GLOBAL, 3)
    op, options = KINDS[kind]
    normalized = kind in ("nearest", "shared")

    def attend(**given):
        given = {**options, **given}
        return ops.global_attention(op, tokens, use_query_key_norm=normalized, **given)

    return attend


def seen_without_global_tokens(kind, query, key, centroids, causal, others):
    """The keys of a kind; `others` are real positions that are no global tokens."""
    if kind == "full":
        return np.ones((LENGTH, LENGTH), bool)
    if kind == "local":
        block = np.arange(LENGTH) // 2
        return abs(block[:, None] - block) <= 1
    _, options = KINDS[kind]
    clusters = naive_clusters(query, centroids)[..., : options.get("num_probes", 1)]
    of_keys = np.where(others[:, None], naive_clusters(key, centroids)[..., 0], -1)
    return naive_nearest_keys(clusters, of_keys, options["window_size"], causal)


def equation_of(kind):
    """One softmax over the keys of the kind and over global ones, which have no distances."""

    def attend(
        query, key, value, causal=False, mask=None, centroids=None, relative_embeddings=None
    ):
        key = query if key is None else key
        others = ~GLOBAL if mask is None else mask & ~GLOBAL
        seen = seen_without_global_tokens(kind, query, key, centroids, causal, others)
        if kind in ("nearest", "shared"):
            query, key = naive_normalize(query), naive_normalize(key)
        is_global = GLOBAL[:, None, :, None] | GLOBAL[:, None, None]
        plain, logits = naive_logits(query, key), naive_logits(query, key, relative_embeddings)
        real = naive_mask(LENGTH, LENGTH, causal=causal, query_mask=mask, key_mask=mask)
        return naive_softmax(np.where(is_global, plain, logits), (seen | is_global) & real) @ value

    return attend


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_equation(kind, causal):
    far = 3 if kind in ("full", "local") else None
    given = inputs_of(kind, far=far)
    checks.holds(op_of(kind), equation_of(kind), given, causal=causal)


@pytest.mark.parametrize("kind", ["local", "shared"])
def test_padding(kind):
    mask = checks.mask("right", LENGTH) | GLOBAL
    masks = {"query_mask": mask, "key_mask": None if kind == "shared" else mask}
    inputs = inputs_of(kind)
    found = op_of(kind)(**checks.tensors(inputs), **masks)
    np.testing.assert_allclose(found, equation_of(kind)(**inputs, mask=mask), rtol=0, atol=1e-12)


def test_bfloat16():
    inputs = checks.tensors(inputs_of("local"), tf.bfloat16)
    found = op_of("local")(**inputs)
    assert found.dtype == tf.bfloat16
    rounded = {name: np.array(tf.cast(x, tf.float64)) for name, x in inputs.items()}
    expected = equation_of("local")(**rounded)
    np.testing.assert_allclose(tf.cast(found, tf.float64), expected, rtol=0, atol=0.05)


def test_dropout_drops_every_part():
    inputs = inputs_of("local")
    op = functools.partial(op_of("local"), dropout=0.5)
    whole = checks.attention_of(op_of("local"), inputs, {})
    dropped = checks.attention_of(op, inputs, {"seed": [1, 2]})
    columns = GLOBAL[:, None, None] & ~GLOBAL[:, None, :, None]
    for part in (columns, GLOBAL[:, None, :, None], ~(columns | GLOBAL[:, None, :, None])):
        part = (whole > 0) & part
        assert 0.3 < (dropped[part] == 0).mean() < 0.7


def test_the_first_ones_count():
    mask = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 1, 0]], bool)
    with pytest.raises(ValueError, match="at most 2 global tokens in a sequence. .* a mask of 3"):
        ops.find_global_tokens(mask, 2)
    find = tf.function(lambda mask: ops.find_global_tokens(mask, 2), jit_compile=True)
    found = find(tf.constant(mask))
    assert found.is_global.numpy().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert found.places.numpy()[0].tolist() == [1, 2] and found.places[1, 0] == 3
    assert found.real.numpy().tolist() == [[True, True], [True, False]]


def test_more_tokens_than_positions():
    x = tf.random.stateless_normal([1, 2, 3, 4], [1, 2], dtype=tf.float64)
    tokens = ops.find_global_tokens([[True, False, True]], 8)
    options = {"query": x, "key": x, "value": x}
    found = ops.global_attention(ops.local_attention, tokens, block_size=3, **options)
    np.testing.assert_allclose(found, ops.full_attention(x, x, x), rtol=0, atol=1e-12)
