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


def test_causality():
    inputs = checks.arrays(13, far=3)
    for start in (1, 6, 12):
        assert checks.past_is_untouched(local_attention, inputs, start, block_size=4, causal=True)
    assert not checks.past_is_untouched(local_attention, inputs, 6, block_size=4, causal=False)


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
    monkeypatch.setattr("rt_keras.ops.chunks.MAX_LOGITS", 1)
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
