import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import ops
from rt_keras.ops.full import naive_full_attention
from rt_keras.ops.local.windows import naive_local_attention
from rt_keras.ops.naive import naive_normalize
from rt_keras.ops.nearest.attention import naive_nearest_attention
from tests.ops import checks

LENGTH = 11
GLOBAL = np.zeros((2, LENGTH), bool)
GLOBAL[0, [0, 6]] = GLOBAL[1, 4] = True

KINDS = {
    "full": (ops.full_attention, naive_full_attention, {}),
    "local": (ops.local_attention, naive_local_attention, {"block_size": 2}),
    "nearest": (
        ops.nearest_attention,
        naive_nearest_attention,
        {"window_size": 4, "num_probes": 2},
    ),
    "shared": (ops.nearest_attention, naive_nearest_attention, {"window_size": 4}),
}


def inputs_of(kind, **options):
    if kind in ("nearest", "shared"):
        options |= {"clusters": 2, "shared": kind == "shared"}
    return checks.arrays(LENGTH, **options)


def op_of(kind):
    """The op with global tokens, as `checks` calls it."""
    tokens = ops.find_global_tokens(GLOBAL, 3)
    op, _, options = KINDS[kind]
    normalized = kind in ("nearest", "shared")

    def attend(**given):
        given = {**options, **given}
        return ops.global_attention(op, tokens, use_query_key_norm=normalized, **given)

    return attend


def equation_of(kind):
    """The weights of the kind without global keys; then those keys, by their logits."""
    _, equation, options = KINDS[kind]

    def attend(query, key, value, causal=False, mask=None, **given):
        table = given.get("relative_embeddings")
        real = np.ones((2, LENGTH), bool) if mask is None else mask
        others = real & ~GLOBAL
        masks = {"query_mask": others if key is None else mask, "key_mask": others}
        identity = np.broadcast_to(np.eye(LENGTH), (*query.shape[:3], LENGTH))
        given |= {**options, **masks, "causal": causal}
        weights = equation(query, key, identity, **given)
        key = query if key is None else key
        if kind in ("nearest", "shared"):
            query, key = naive_normalize(query), naive_normalize(key)
        output = np.zeros(value.shape)

        def logit(b, h, i, j, vector=0.0):
            product = query[b, h, i] @ (key[b, h, j] + vector)
            return product * query.shape[-1] ** -0.5

        for b, h, i in np.ndindex(*query.shape[:3]):
            seen = [j for j in range(LENGTH) if real[b, j] and (j <= i or not causal)]
            found = {j: logit(b, h, i, j) for j in seen if GLOBAL[b, j] or GLOBAL[b, i]}
            found = {j: np.exp(x) for j, x in found.items()} if real[b, i] else {}
            row = weights[b, h, i]
            if row.any() and not GLOBAL[b, i]:
                # Of all kinds, the own position has the plain logit, if it is seen.
                anchor = i if row[i] else np.argmax(row)
                vector = 0.0 if table is None else table[h, np.clip(i - anchor, -3, 3) + 3]
                total = np.exp(logit(b, h, i, anchor, vector)) / row[anchor]
                found |= {j: row[j] * total for j in np.flatnonzero(row)}
            if found:
                total = sum(found.values())
                output[b, h, i] = sum(x / total * value[b, h, j] for j, x in found.items())
        return output

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
