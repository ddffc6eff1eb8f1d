import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import nearest_attention, nearest_centroid, normalize
from tests.ops import checks, reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "length, window, clusters",
    [
        pytest.param(16, 4, 3, id="length a multiple of the window"),
        pytest.param(17, 4, 3, id="length no multiple"),
        pytest.param(17, 5, 2, id="odd window"),
        pytest.param(9, 16, 2, id="length shorter than the window"),
        pytest.param(12, 1, 3, id="window 1"),
        pytest.param(12, 2, 3, id="window 2"),
        pytest.param(1, 4, 3, id="one position"),
        pytest.param(13, 4, 1, id="one cluster"),
        pytest.param(7, 3, 11, id="more clusters than positions"),
        pytest.param(40, 4, 4, id="many blocks"),
    ],
)
def test_equation(causal, shared, length, window, clusters):
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(length, shared=shared, clusters=clusters, load_bias=True),
        window_size=window,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probes", [1, 2])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(causal, shared, probes, padding):
    mask = checks.mask(padding, 15)
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(15, shared=shared, clusters=3),
        window_size=4,
        causal=causal,
        num_probes=probes,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 1), (False, 2)])
@pytest.mark.parametrize("window, largest_block", [(4, 2), (5, 2), (7, 3), (4, 1), (20, 3)])
def test_blocks_smaller_than_the_window(causal, shared, probes, window, largest_block, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.nearest_windows.MAX_BLOCK_SIZE", largest_block)
    inputs = checks.arrays(23, shared=shared, clusters=3, far=3, load_bias=True)
    mask = checks.mask("scattered", 23)
    options = {"window_size": window, "causal": causal, "num_probes": probes}
    checks.holds(nearest_attention, reference.nearest, inputs, query_mask=mask, **options)


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "shared, probes, causal", [(True, 1, True), (False, 1, False), (False, 2, True)]
)
def test_blocks_smaller_than_the_window_compiled(shared, probes, causal, monkeypatch):
    monkeypatch.setattr("rt_keras.ops.nearest_windows.MAX_BLOCK_SIZE", 2)
    inputs = checks.arrays(23, shared=shared, clusters=3, far=3, load_bias=True)
    checks.holds_compiled(
        nearest_attention,
        inputs,
        window_size=5,
        causal=causal,
        num_probes=probes,
        query_mask=checks.mask("scattered", 23),
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_and_keys_padded_differently(shared, causal):
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(15, shared=shared, clusters=2, far=2),
        window_size=4,
        causal=causal,
        query_mask=checks.mask("right", 15),
        key_mask=checks.mask("scattered", 15),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probes", [1, 2, 3, 4])
def test_probes(causal, shared, probes):
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(18, shared=shared, clusters=4, load_bias=True),
        window_size=3,
        causal=causal,
        num_probes=probes,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 1), (True, 2), (False, 3)])
@pytest.mark.parametrize("far", [1, 4, 30])
def test_relative_embeddings(causal, shared, probes, far):
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(18, shared=shared, clusters=3, far=far),
        window_size=5,
        causal=causal,
        num_probes=probes,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 1), (False, 2)])
def test_relative_embeddings_and_padding(causal, shared, probes):
    mask = checks.mask("scattered", 18)
    checks.holds(
        nearest_attention,
        reference.nearest,
        checks.arrays(18, shared=shared, clusters=3, far=2),
        window_size=4,
        causal=causal,
        num_probes=probes,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of_queries, of_keys", [(0, 0), (0, 2), (2, 0), (None, 1), (1, None)])
def test_uneven_clusters(causal, of_queries, of_keys):
    # All queries, all keys or both in one cluster; None leaves them unchanged.
    inputs = checks.arrays(21, clusters=3)
    inputs["centroids"] *= 3
    for name, cluster in (("query", of_queries), ("key", of_keys)):
        if cluster is not None:
            inputs[name] = inputs["centroids"][:, None, cluster] + 0.1 * inputs[name]
            found = nearest_centroid(normalize(inputs[name]), inputs["centroids"])
            assert np.all(found == cluster)
    options = {"window_size": 4, "causal": causal}
    checks.holds(nearest_attention, reference.nearest, inputs, **options)
    output = nearest_attention(**checks.tensors(inputs), **options)
    if {of_queries, of_keys} == {0, 2}:
        assert not np.any(output)


def test_load_bias_decides():
    inputs = checks.arrays(14, clusters=3)
    inputs["load_bias"] = np.array([[0.0, 100.0, 0.0], [0.0, 0.0, 100.0]])
    attention = checks.attention_of(nearest_attention, inputs, {"window_size": 4, "causal": True})
    # All in one cluster: the last 4 positions.
    distance = np.arange(14)[:, None] - np.arange(14)
    assert np.array_equal(attention[0, 0] > 0, (distance >= 0) & (distance < 4))
    checks.holds(nearest_attention, reference.nearest, inputs, window_size=4, causal=True)


@st.composite
def cases(draw):
    length = draw(st.integers(1, 24))
    clusters = draw(st.integers(1, 6))
    shared = draw(st.booleans())
    inputs = checks.arrays(
        length,
        shared=shared,
        clusters=clusters,
        far=draw(st.sampled_from([None, 1, 3])),
        batch=1,
        seed=draw(st.integers(0, 10**6)),
    )
    # A strong bias makes clusters uneven.
    strength = draw(st.sampled_from([0, 1, 5]))
    inputs["load_bias"] = strength * np.random.default_rng(length).normal(size=(2, clusters))
    mask = st.none() | st.lists(st.booleans(), min_size=length, max_size=length).map(
        lambda row: np.array([row])
    )
    options = {
        "window_size": draw(st.integers(1, 12)),
        "causal": draw(st.booleans()),
        "num_probes": draw(st.integers(1, clusters)),
        "query_mask": draw(mask),
        "key_mask": draw(mask),
        "routed_key": "previous_query" if shared and draw(st.booleans()) else "key",
    }
    return inputs, options


@settings(max_examples=25, deadline=None, derandomize=True)
@given(case=cases())
def test_any_case(case):
    inputs, options = case
    checks.holds(nearest_attention, reference.nearest, inputs, **options)


@pytest.mark.parametrize("padding", ["left", "right", "scattered"])
@pytest.mark.parametrize("shared", [False, True])
def test_padding_is_as_if_it_were_not_there(padding, shared):
    inputs = checks.arrays(17, shared=shared, clusters=3, batch=1)
    mask = checks.mask(padding, 17, batch=1)
    options = {"window_size": 4, "causal": True, "num_probes": 2}
    output = nearest_attention(
        **checks.tensors(inputs), **options, query_mask=mask, key_mask=mask
    ).numpy()
    without = {
        name: x[:, :, mask[0]] if name in ("query", "key", "value") and x is not None else x
        for name, x in inputs.items()
    }
    expected = nearest_attention(**checks.tensors(without), **options)
    np.testing.assert_allclose(output[:, :, mask[0]], expected, rtol=0, atol=1e-12)
    assert not output[:, :, ~mask[0]].any()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probes", [1, 3])
def test_causality(shared, probes):
    inputs = checks.arrays(33, shared=shared, clusters=4, far=3, load_bias=True)
    options = {"window_size": 5, "num_probes": probes}
    for start in (1, 8, 20, 32):
        assert checks.past_is_untouched(nearest_attention, inputs, start, causal=True, **options)
    assert not checks.past_is_untouched(nearest_attention, inputs, 20, causal=False, **options)


@pytest.mark.parametrize("shared", [False, True])
def test_causality_where_the_future_changes_how_full_clusters_are(shared):
    inputs = checks.arrays(33, shared=shared, clusters=4)
    start = 16
    crowded = checks.with_another_future(inputs, start)
    for name in ("query", "key"):
        if crowded[name] is not None:
            crowded[name][:, :, start:] = inputs["centroids"][:, :1]
    options = {"window_size": 5, "causal": True}
    matrices = [checks.attention_of(nearest_attention, x, options) for x in (inputs, crowded)]
    before, after = (matrix[:, :, :start] for matrix in matrices)
    assert np.array_equal(before > 0, after > 0)
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-12)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 2)])
def test_in_chunks(shared, probes, monkeypatch):
    checks.holds_in_chunks(
        nearest_attention,
        checks.arrays(18, shared=shared, clusters=3, far=2, load_bias=True, heads=4),
        monkeypatch,
        window_size=4,
        causal=True,
        num_probes=probes,
        query_mask=checks.mask("right", 18),
        key_mask=None if shared else checks.mask("scattered", 18),
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared, probes, far", [(True, 1, 2), (False, 2, None), (False, 1, 2)])
def test_grouped_queries(shared, probes, far, monkeypatch):
    inputs = checks.arrays(10, shared=shared, clusters=3, far=far, load_bias=True, heads=4)
    axes = {"key": 1, "value": 1, "centroids": 0, "load_bias": 0}
    axes = {name: axis for name, axis in axes.items() if inputs[name] is not None}
    few = {name: inputs[name].take([0, 2], axis) for name, axis in axes.items()}
    repeated = {name: few[name].repeat(2, axis) for name, axis in axes.items()}
    options = {"window_size": 3, "causal": True, "num_probes": probes}
    expected = reference.nearest(**{**inputs, **repeated}, **options)

    def found():
        return nearest_attention(**{**inputs, **few}, **options)

    np.testing.assert_allclose(found(), expected, rtol=0, atol=1e-12)
    # A chunk has one key/value head with all of its queries.
    checks.at_most_logits(1, monkeypatch)
    np.testing.assert_allclose(tf.function(found)(), expected, rtol=0, atol=1e-12)


def test_grouped_queries_without_positions():
    query, value, centroids = tf.zeros([2, 4, 0, 6]), tf.zeros([2, 2, 0, 5]), tf.zeros([2, 3, 6])
    output = nearest_attention(query, query[:, :2], value, centroids, window_size=3)
    assert output.shape == (2, 4, 0, 5)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared, probes, causal", [(True, 1, True), (False, 2, False)])
def test_compiled(shared, probes, causal):
    mask = checks.mask("scattered", 18)
    checks.holds_compiled(
        nearest_attention,
        checks.arrays(18, shared=shared, clusters=3, far=2, load_bias=True),
        window_size=4,
        causal=causal,
        num_probes=probes,
        query_mask=mask,
        key_mask=mask,
    )


@pytest.mark.parametrize("shared", [False, True])
def test_unknown_shapes(shared):
    def inputs(length):
        batch = 1 + length % 3
        found = checks.arrays(length, clusters=3, far=2, batch=batch, load_bias=True)
        if shared:
            del found["key"]
        return {**found, "query_mask": checks.mask("scattered", length, batch)}

    checks.holds_for_unknown_shapes(
        nearest_attention, (8, 1, 13, 30), inputs, window_size=4, causal=True
    )


@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 2)])
@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(shared, probes, dtype, atol):
    inputs = checks.arrays(17, shared=shared, clusters=3)
    spread_out(inputs)
    checks.holds_in_lower_precision(
        nearest_attention,
        reference.nearest,
        inputs,
        dtype,
        atol,
        window_size=4,
        causal=True,
        num_probes=probes,
    )


def spread_out(inputs, margin=0.2):
    """Draws vectors until none is so close to a border that rounding could change its cluster."""
    rng = np.random.default_rng(4)
    for name in ("query", "key"):
        x = inputs[name]
        while x is not None:
            scores = np.einsum("bhnd,hcd->bhnc", reference.normalize(x), inputs["centroids"])
            close = np.min(np.diff(np.sort(scores)), axis=-1) < margin
            if not close.any():
                break
            x[close] = rng.normal(size=x[close].shape)


@pytest.mark.parametrize("shared", [False, True])
def test_dropout(shared):
    inputs = checks.arrays(9, batch=1, shared=shared, clusters=2)
    checks.drops_out(nearest_attention, inputs, window_size=3, causal=True)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shared", [False, True])
def test_dropout_in_chunks(shared, monkeypatch):
    checks.at_most_logits(1, monkeypatch)
    inputs = checks.arrays(9, batch=1, shared=shared, clusters=2)
    checks.drops_out(nearest_attention, inputs, window_size=3, causal=True, num_probes=2)


@pytest.mark.parametrize("shared, probes", [(True, 1), (False, 1), (False, 2)])
@pytest.mark.parametrize("far", [None, 4])
def test_no_tensor_of_length_squared(shared, probes, far):
    length, window = 4096, 16
    inputs = checks.arrays(
        length, shared=shared, clusters=32, far=far, batch=1, depth=4, value_depth=4
    )
    largest = checks.largest_tensor(
        nearest_attention, inputs, window_size=window, causal=True, num_probes=probes
    )
    # n² is 256 times n * window. XLA is given 5 indices for each relative logit that is read.
    assert largest <= (4 if far is None else 20) * probes * 2 * length * window


def test_lengths_that_differ():
    inputs = checks.arrays(5, keys=7, clusters=2)
    with pytest.raises(ValueError, match='"nearest".*query of length 5, key of length 7'):
        nearest_attention(**checks.tensors(inputs), window_size=4)


@pytest.mark.end_to_end
def test_numpy_arguments(monkeypatch):
    mask = checks.mask("scattered", 7)
    checks.takes_numpy(
        nearest_attention,
        reference.nearest,
        checks.arrays(7, far=2, clusters=2),
        monkeypatch,
        window_size=3,
        query_mask=mask,
        key_mask=mask,
    )


def test_one_length_known_and_the_other_not():
    inputs = checks.tensors(checks.arrays(9, clusters=2))
    unknown = tf.TensorSpec([2, 2, None, 6], tf.float64)

    @tf.function(input_signature=[unknown])
    def call(key):
        return nearest_attention(**{**inputs, "key": key}, window_size=4)

    expected = nearest_attention(**inputs, window_size=4)
    np.testing.assert_allclose(call(inputs["key"]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"block_size": 4}, {"key": tf.zeros([1, 2, 9, 4])}])
def test_shifted_keys_are_the_queries_and_leave_out_no_window(options):
    x = tf.zeros([1, 2, 9, 4])
    arguments = {"query": x, "key": None, "value": x, "centroids": x[0, :, :3], **options}
    with pytest.raises(
        ValueError, match="routed_key='previous_query' needs key=None and block_size=None"
    ):
        nearest_attention(**arguments, window_size=4, routed_key="previous_query")
