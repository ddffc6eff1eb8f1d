import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length, block_size", [(12, 4), (13, 4), (3, 8), (1, 4), (5, 1), (11, 3)])
@pytest.mark.parametrize("look_back", [0, 1, 2])
def test_equation(causal, length, block_size, look_back):
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(length),
        block_size=block_size,
        look_back=look_back,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size, look_back, window", [(4, 1, 5), (4, 2, 6), (3, 2, 1)])
def test_sliding_window(causal, block_size, look_back, window):
    mask = checks.mask("scattered", 14)
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(14, far=3),
        block_size=block_size,
        look_back=look_back,
        sliding_window=window,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. Received: 6"),
        ({"sliding_window": 0}, "from 1 to look_back · block_size . 1, 5. Received: 0"),
        ({"sliding_window": 3, "grid": (2, 1)}, "cannot be combined with grid or key_block_size"),
        ({"sliding_window": 3, "key_block_size": 4}, "with grid or key_block_size"),
    ],
)
def test_bad_sliding_window(options, message):
    with pytest.raises(ValueError, match=message):
        local_attention(**checks.tensors(checks.arrays(8)), block_size=4, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, shared, padding):
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(11, shared=shared),
        block_size=3,
        causal=causal,
        query_mask=checks.mask(padding, 11),
        key_mask=checks.mask(padding, 11, seed=5),
    )


@pytest.mark.parametrize("far", [1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_relative_embeddings(far, causal):
    checks.holds(
        local_attention, reference.local, checks.arrays(11, far=far), block_size=4, causal=causal
    )


@pytest.mark.parametrize("block_size, part_size", [(5, 2), (6, 1), (4, 2)])
@pytest.mark.parametrize("padding", [None, "scattered"])
def test_in_parts(block_size, part_size, padding, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.attend.PART_SIZE", part_size)
    inputs = checks.arrays(17, far=3)
    mask = checks.mask(padding, 17)
    options = {"block_size": block_size, "causal": True, "query_mask": mask, "key_mask": mask}
    checks.holds(local_attention, reference.local, inputs, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "grid, look_back",
    [((3, 2), 1), ((2, 3), (0, 1)), ((2, 3), (1, 0)), ((4, 1), (2, 3)), ((2, 1, 2), (1, 0, 1))],
)
def test_grid(causal, grid, look_back):
    length = 2 * int(np.prod(grid))
    inputs = checks.arrays(length, batch=1, far=3)
    options = {"block_size": 2, "grid": grid, "look_back": look_back, "causal": causal}
    checks.holds(local_attention, reference.local, inputs, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["right", "scattered"])
def test_padding_of_a_grid(causal, padding):
    mask = checks.mask(padding, 12)
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(12, shared=True),
        block_size=2,
        grid=(3, 2),
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_seen_in_an_image(causal):
    # 3 x 3 blocks of one position each: all neighbors, or the previous ones in reading order.
    options = {"block_size": 1, "grid": (3, 3), "causal": causal}
    attention = checks.attention_of(local_attention, checks.arrays(9), options)[0, 0]
    seen = [np.flatnonzero(row).tolist() for row in attention]
    if causal:
        assert seen[4] == [0, 1, 2, 3, 4]
        assert seen[3] == [0, 1, 3]
        assert seen[8] == [4, 5, 7, 8]
    else:
        assert seen[4] == list(range(9))
        assert seen[3] == [0, 1, 3, 4, 6, 7]


def test_causality_of_a_grid():
    inputs = checks.arrays(12, far=3)
    options = {"block_size": 2, "grid": (2, 3), "look_back": (1, 2)}
    for start in (1, 6, 11):
        assert checks.past_is_untouched(local_attention, inputs, start, causal=True, **options)
    assert not checks.past_is_untouched(local_attention, inputs, 6, **options)


@pytest.mark.parametrize("look_back", [0, 1])
@pytest.mark.parametrize(
    "length, block_size, keys, key_block_size", [(9, 3, 6, 2), (7, 3, 14, 5), (4, 1, 11, 3)]
)
def test_key_block_size(look_back, length, block_size, keys, key_block_size):
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(length, keys=keys, far=2),
        block_size=block_size,
        key_block_size=key_block_size,
        look_back=look_back,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


def test_key_block_size_in_a_grid():
    checks.holds(
        local_attention,
        reference.local,
        checks.arrays(8, keys=12, far=2),
        block_size=2,
        key_block_size=3,
        grid=(2, 2),
        look_back=(1, 0),
    )


def test_causality():
    inputs = checks.arrays(13, far=3)
    for start in (1, 6, 12):
        assert checks.past_is_untouched(local_attention, inputs, start, block_size=4, causal=True)
    assert not checks.past_is_untouched(local_attention, inputs, 6, block_size=4, causal=False)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_in_chunks(shared, monkeypatch):
    mask = checks.mask("scattered", 11)
    checks.holds_in_chunks(
        local_attention,
        checks.arrays(11, shared=shared, far=2, heads=4),
        monkeypatch,
        block_size=3,
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("causal", [False, True])
def test_compiled(causal):
    mask = checks.mask("left", 11)
    checks.holds_compiled(
        local_attention,
        checks.arrays(11, far=3),
        block_size=4,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.end_to_end
def test_grid_compiled():
    checks.holds_compiled(
        local_attention,
        checks.arrays(12, far=3),
        block_size=2,
        grid=(2, 3),
        causal=True,
    )


def test_unknown_shapes():
    def inputs(length):
        batch = 1 + length % 3
        found = checks.arrays(length, far=2, batch=batch)
        mask = checks.mask("scattered", length, batch)
        return {**found, "query_mask": mask, "key_mask": mask}

    checks.holds_for_unknown_shapes(local_attention, (8, 1, 13), inputs, block_size=4)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.03)])
def test_lower_precision(dtype, atol):
    checks.holds_in_lower_precision(
        local_attention, reference.local, checks.arrays(11, far=3), dtype, atol, block_size=4
    )


def test_dropout():
    checks.drops_out(local_attention, checks.arrays(7, batch=1), block_size=3, causal=True)


def test_dropout_in_chunks(monkeypatch):
    checks.at_most_logits(1, monkeypatch)
    checks.drops_out(local_attention, checks.arrays(7, batch=1), block_size=3, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_no_tensor_of_length_squared(causal):
    length, window = 4096, 16
    inputs = checks.arrays(length, far=4, batch=1, depth=4, value_depth=4)
    largest = checks.largest_tensor(local_attention, inputs, block_size=window, causal=causal)
    # n² is 256 times n * window.
    assert largest <= 6 * 2 * length * window


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="query of length 5, key of length 7"):
        local_attention(**checks.tensors(checks.arrays(5, keys=7)), block_size=4)


@pytest.mark.parametrize(
    "length, keys, options, message",
    [
        (8, 12, {"key_block_size": 4}, "length 8 in blocks of 4, key of length 12 in blocks of 4"),
        (8, 8, {"grid": (3, 1)}, "A grid of 3x1 blocks of 4 positions has 12.*query of length 8"),
        (8, 4, {"key_block_size": 2, "causal": True}, "queries and keys of one sequence"),
    ],
)
def test_blocks_that_do_not_fit(length, keys, options, message):
    inputs = checks.tensors(checks.arrays(length, keys=keys))
    with pytest.raises(ValueError, match=message):
        local_attention(**inputs, block_size=4, **options)


def test_numpy_arguments(monkeypatch):
    mask = checks.mask("scattered", 7)
    checks.takes_numpy(
        local_attention,
        reference.local,
        checks.arrays(7, far=2),
        monkeypatch,
        block_size=3,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 6])
def test_span(causal, window):
    inputs = {**checks.arrays(14, far=2), "span": np.array([0.3, 4.2])}
    mask = checks.mask("scattered", 14)
    options = {"block_size": 3, "look_back": 2, "sliding_window": window, "span_ramp": 3}
    options |= {"causal": causal, "key_mask": mask, "query_mask": mask}
    checks.holds(local_attention, reference.local, inputs, **options)


def test_span_compiled_by_xla():
    inputs = {**checks.arrays(9, far=2), "span": np.array([0.3, 4.2])}
    checks.holds_compiled(local_attention, inputs, block_size=3, causal=True, span_ramp=2)


def test_span_in_bfloat16():
    inputs = {**checks.arrays(9, far=2), "span": np.array([0.25, 4.0])}
    options = {"block_size": 3, "span_ramp": 2}
    checks.holds_in_lower_precision(
        local_attention, reference.local, inputs, tf.bfloat16, 0.05, **options
    )


def test_span_sees_no_further_than_its_ramp():
    inputs = {**checks.arrays(20), "span": np.array([0.0, 2.5])}
    options = {"block_size": 5, "look_back": 3, "span_ramp": 4, "causal": True}
    weights = checks.attention_of(local_attention, inputs, options)
    distance = np.arange(20)[:, None] - np.arange(20)
    for head, reach in enumerate([4, 6.5]):
        seen = (distance >= 0) & (distance < reach)
        assert np.array_equal(weights[:, head] > 0, np.broadcast_to(seen, (2, 20, 20)))
    assert checks.past_is_untouched(local_attention, inputs, 11, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("before, look_back", [(3, 1), (3, 2), (6, 2)])
def test_keys_before(causal, before, look_back):
    inputs, mask = checks.arrays(13), checks.mask("scattered", 13)
    options = {"block_size": 3, "look_back": look_back, "causal": causal}
    expected = reference.local(**inputs, key_mask=mask, **options)
    given = checks.tensors({**inputs, "query": inputs["query"][:, :, before:]})
    found = local_attention(**given, key_mask=mask, keys_before=before, **options)
    np.testing.assert_allclose(found, expected[:, :, before:], atol=1e-12)


@pytest.mark.parametrize("keys_before", [2, 6, -3])
def test_bad_keys_before(keys_before):
    x = tf.zeros([1, 1, 9, 2])
    with pytest.raises(ValueError, match=f"Received: keys_before={keys_before}, block_size=3"):
        local_attention(x, x, x, block_size=3, keys_before=keys_before)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("return_logsumexp", [False, True])
def test_key_heads_serve_several_heads(relative, return_logsumexp):
    rng = np.random.default_rng(0)
    query, keys = rng.normal(size=(2, 6, 300, 4)), rng.normal(size=(2, 2, 300, 4))
    # Blocks of 256 are attended to in parts.
    options = {"block_size": 256, "causal": True, "sliding_window": 99}
    options["query_mask"] = options["key_mask"] = checks.mask("scattered", 300)
    if relative:
        options["relative_embeddings"] = rng.normal(size=(6, 7, 4))
    repeated = np.repeat(keys, 3, axis=1)
    found, expected = (
        local_attention(query, x, x[..., ::-1], return_logsumexp=return_logsumexp, **options)
        for x in (keys, repeated)
    )
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected
    )
