import pytest
import tensorflow as tf

from rt_keras.ops import causal_clustered_attention
from rt_keras.ops.causal_clustered_decode import causal_clustered_cache, causal_clustered_step
from tests.ops import checks, decode_checks, reference

GIVEN = {"clusters": 3, "load_bias": True}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length, block_size", [(17, 4), (5, 8), (12, 1)])
def test_equation(shared, length, block_size):
    inputs = checks.arrays(length, shared=shared, **GIVEN)
    checks.holds(
        causal_clustered_attention, reference.causal_clustered, inputs, block_size=block_size
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(shared, padding):
    mask = checks.mask(padding, 15)
    checks.holds(
        causal_clustered_attention,
        reference.causal_clustered,
        checks.arrays(15, shared=shared, clusters=3),
        block_size=4,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("start", [1, 7, 8, 12])
def test_the_past_does_not_depend_on_the_future(start):
    inputs = checks.arrays(14, **GIVEN)
    assert checks.past_is_untouched(causal_clustered_attention, inputs, start, block_size=4)


@pytest.mark.end_to_end
def test_runs_of_blocks(monkeypatch):
    monkeypatch.setattr("rt_keras.ops.causal_clustered.RUN_SIZE", 3)
    options = {"block_size": 2, "key_mask": checks.mask("scattered", 23)}
    inputs = checks.arrays(23, **GIVEN)
    checks.holds(causal_clustered_attention, reference.causal_clustered, inputs, **options)
    checks.holds_compiled(causal_clustered_attention, inputs, **options)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    inputs = checks.arrays(9, clusters=1)
    checks.holds_in_lower_precision(
        causal_clustered_attention, reference.causal_clustered, inputs, dtype, atol, block_size=4
    )


@pytest.mark.end_to_end
def test_in_chunks(monkeypatch):
    inputs = checks.arrays(18, **GIVEN)
    checks.holds_in_chunks(causal_clustered_attention, inputs, monkeypatch, block_size=4)


def test_unknown_shapes():
    def inputs(length):
        found = checks.arrays(length, batch=1 + length % 3, **GIVEN)
        return {**found, "query_mask": checks.mask("scattered", length, 1 + length % 3)}

    checks.holds_for_unknown_shapes(causal_clustered_attention, (8, 5, 13), inputs, block_size=4)


def test_dropout():
    inputs = checks.arrays(9, clusters=3, batch=1)
    checks.drops_out(causal_clustered_attention, inputs, block_size=4)


def test_no_tensor_has_all_pairs_of_positions():
    length, clusters, block_size = 2048, 8, 32
    inputs = checks.arrays(length, clusters=clusters, batch=1, heads=1)
    largest = checks.largest_tensor(causal_clustered_attention, inputs, block_size=block_size)
    assert largest <= 2 * (block_size + clusters) * length


@pytest.mark.parametrize("count", [0, 4, 6])
def test_steps(count):
    inputs = checks.arrays(13, clusters=3, load_bias=True)

    def make_cache(key, value, count):
        return causal_clustered_cache(key, value, inputs["centroids"], count, block_size=4)

    found = decode_checks.decode(make_cache, causal_clustered_step, inputs, count, block_size=4)

    def op(causal, **given):
        return causal_clustered_attention(**given)

    decode_checks.same(found, op, inputs, count, block_size=4)
    decode_checks.rows_at_own_positions(
        make_cache, causal_clustered_step, op, inputs, [count, 2], block_size=4
    )


def test_bad_lengths():
    inputs = checks.tensors(checks.arrays(5, keys=7, clusters=3))
    with pytest.raises(ValueError, match="as many keys as queries.*length 5, value of length 7"):
        causal_clustered_attention(**inputs, block_size=4)
