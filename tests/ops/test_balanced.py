import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import balanced_attention
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "length, window, clusters",
    [
        pytest.param(16, 4, 4, id="as many places as positions"),
        pytest.param(17, 4, 3, id="positions left out"),
        pytest.param(13, 5, 6, id="positions chosen several times"),
        pytest.param(9, 16, 2, id="length shorter than the window"),
        pytest.param(12, 1, 3, id="window 1"),
        pytest.param(1, 4, 3, id="one position"),
        pytest.param(13, 4, 1, id="one cluster"),
        pytest.param(7, 3, 11, id="more clusters than positions"),
    ],
)
def test_equation(causal, shared, length, window, clusters):
    checks.holds(
        balanced_attention,
        reference.balanced,
        checks.arrays(length, shared=shared, clusters=clusters),
        window_size=window,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
@pytest.mark.parametrize("window", [4, 12])
def test_padding(causal, shared, padding, window):
    # With a window of 12 there are fewer real positions than places.
    mask = checks.mask(padding, 15)
    checks.holds(
        balanced_attention,
        reference.balanced,
        checks.arrays(15, shared=shared, clusters=3, far=3),
        window_size=window,
        causal=causal,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("window, part_size", [(5, 2), (6, 1)])
@pytest.mark.parametrize("padding", [None, "scattered"])
def test_in_parts(shared, window, part_size, padding, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.attend.PART_SIZE", part_size)
    inputs = checks.arrays(17, shared=shared, clusters=3, far=3)
    mask = checks.mask(padding, 17)
    options = {"window_size": window, "causal": True, "query_mask": mask}
    options["key_mask"] = None if shared else mask
    checks.holds(balanced_attention, reference.balanced, inputs, **options)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("clusters", [5, 6])
def test_members_of_some_clusters_at_a_time(shared, clusters, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.balanced.MAX_SCORES", 2 * 2 * 17 * 2)
    inputs = checks.arrays(17, shared=shared, clusters=clusters)
    mask = checks.mask("scattered", 17)
    options = {"window_size": 4, "causal": True, "query_mask": mask}
    options["key_mask"] = None if shared else mask
    found = checks.op_types(balanced_attention, inputs, options)
    assert found & {"While", "StatelessWhile"}
    checks.holds(balanced_attention, reference.balanced, inputs, **options)


def test_dropout_in_parts(monkeypatch):
    monkeypatch.setattr("rt_keras.ops.attend.PART_SIZE", 2)
    inputs = checks.arrays(6, shared=True, clusters=1, batch=1)
    checks.drops_out(balanced_attention, inputs, window_size=6, causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length, keys", [(9, 14), (14, 9), (3, 14), (14, 3), (1, 6), (6, 1)])
def test_cross_attention(causal, length, keys):
    checks.holds(
        balanced_attention,
        reference.balanced,
        checks.arrays(length, keys=keys, clusters=3, far=2),
        window_size=4,
        causal=causal,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("far", [1, 4, 30])
def test_relative_embeddings(causal, shared, far):
    checks.holds(
        balanced_attention,
        reference.balanced,
        checks.arrays(18, shared=shared, clusters=3, far=far),
        window_size=5,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_relative_embeddings_and_padding(causal, shared):
    mask = checks.mask("scattered", 13)
    checks.holds(
        balanced_attention,
        reference.balanced,
        checks.arrays(13, shared=shared, clusters=3, far=2),
        window_size=5,
        causal=causal,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_centroids_that_are_all_alike(causal):
    # Every cluster has the same members, and the others get 0.
    inputs = checks.arrays(17, clusters=3)
    inputs["centroids"][:] = inputs["centroids"][:, :1]
    options = {"window_size": 4, "causal": causal}
    checks.holds(balanced_attention, reference.balanced, inputs, **options)
    output = balanced_attention(**checks.tensors(inputs), **options).numpy()
    assert np.all(np.sum(np.any(output, axis=-1), axis=-1) <= 4)


@st.composite
def cases(draw):
    length, keys = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    shared = draw(st.booleans())
    keys = length if shared else keys
    inputs = checks.arrays(
        length,
        keys=keys,
        shared=shared,
        clusters=draw(st.integers(1, 5)),
        far=draw(st.sampled_from([None, 2])),
        batch=1,
        seed=draw(st.integers(0, 10**6)),
    )

    def mask(size):
        row = st.lists(st.booleans(), min_size=size, max_size=size)
        return draw(st.none() | row.map(lambda row: np.array([row])))

    options = {
        "window_size": draw(st.integers(1, 10)),
        "causal": draw(st.booleans()),
        "query_mask": mask(length),
        "key_mask": mask(keys),
    }
    return inputs, options


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases())
def test_any_case(case):
    inputs, options = case
    checks.holds(balanced_attention, reference.balanced, inputs, **options)


@pytest.mark.parametrize("padding", ["left", "right", "scattered"])
def test_padding_is_as_if_it_were_not_there(padding):
    inputs = checks.arrays(17, clusters=3, batch=1)
    mask = checks.mask(padding, 17, batch=1)
    output = balanced_attention(
        **checks.tensors(inputs), window_size=4, causal=True, query_mask=mask, key_mask=mask
    ).numpy()
    without = {
        name: x[:, :, mask[0]] if name in ("query", "key", "value") else x
        for name, x in inputs.items()
    }
    expected = balanced_attention(**checks.tensors(without), window_size=4, causal=True)
    np.testing.assert_allclose(output[:, :, mask[0]], expected, rtol=0, atol=1e-12)
    assert not output[:, :, ~mask[0]].any()


@pytest.mark.parametrize("shared", [False, True])
def test_no_position_after_the_query_is_seen_but_members_depend_on_the_future(shared):
    inputs = checks.arrays(33, shared=shared, clusters=4)
    options = {"window_size": 6, "causal": True}
    attention = checks.attention_of(balanced_attention, inputs, options)
    assert not np.triu(attention, k=1).any()
    assert not checks.past_is_untouched(balanced_attention, inputs, 20, **options)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_in_chunks(shared, monkeypatch):
    checks.holds_in_chunks(
        balanced_attention,
        checks.arrays(18, shared=shared, clusters=3, far=2, heads=4),
        monkeypatch,
        window_size=4,
        causal=True,
        query_mask=checks.mask("right", 18),
        key_mask=None if shared else checks.mask("scattered", 18),
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_compiled(shared):
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(
        balanced_attention,
        checks.arrays(18, shared=shared, clusters=3, far=2),
        window_size=4,
        causal=True,
        query_mask=mask,
        key_mask=mask,
    )


def test_unknown_shapes():
    def inputs(length):
        batch, keys = 1 + length % 3, length + 3
        found = checks.arrays(length, keys=keys, clusters=3, far=2, batch=batch)
        query_mask = checks.mask("scattered", length, batch)
        key_mask = checks.mask("scattered", keys, batch)
        return {**found, "query_mask": query_mask, "key_mask": key_mask}

    checks.holds_for_unknown_shapes(
        balanced_attention, (8, 1, 13, 30), inputs, window_size=6, causal=True
    )


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    # Every position is a member: rounding cannot change which ones are.
    checks.holds_in_lower_precision(
        balanced_attention,
        reference.balanced,
        checks.arrays(9, clusters=2, far=2),
        dtype,
        atol,
        window_size=9,
        causal=True,
    )


def test_lower_precision_of_members():
    # float32 does round differently, but not so much as to change an order of 17 scores.
    checks.holds_in_lower_precision(
        balanced_attention,
        reference.balanced,
        checks.arrays(17, clusters=3),
        tf.float32,
        1e-5,
        window_size=5,
    )


def test_dropout():
    # One cluster: where several clusters choose a position, one may drop what another keeps.
    checks.drops_out(
        balanced_attention, checks.arrays(9, batch=1, clusters=1), window_size=5, causal=True
    )


def test_dropout_in_chunks(monkeypatch):
    checks.at_most_logits(1, monkeypatch)
    inputs = checks.arrays(9, batch=1, shared=True, clusters=1)
    checks.drops_out(balanced_attention, inputs, window_size=5, causal=True)


@pytest.mark.parametrize("shared", [False, True])
def test_no_tensor_of_length_squared(shared):
    length, window = 4096, 16
    inputs = checks.arrays(
        length, shared=shared, clusters=64, far=4, batch=1, depth=4, value_depth=4
    )
    largest = checks.largest_tensor(balanced_attention, inputs, window_size=window, causal=True)
    # n² is 256 times n * window.
    assert largest <= 8 * 2 * length * window


def test_numpy_arguments(monkeypatch):
    mask = checks.mask("scattered", 7)
    checks.takes_numpy(
        balanced_attention,
        reference.balanced,
        checks.arrays(7, far=2, clusters=2),
        monkeypatch,
        window_size=3,
        query_mask=mask,
        key_mask=mask,
    )
