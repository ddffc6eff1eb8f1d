import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import slices

INDEX = [2, 0, 1]


def rows_and_sums(part, whole):
    """Two results from rows that are gathered from a whole argument, one of them twice."""
    rows = tf.gather(whole["w"], [part["index"], 0, part["index"]])
    return tf.sin(rows) * part["x"], tf.reduce_sum(rows, axis=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_slices_with_two_results_and_rows_of_a_whole_argument(compiled):
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(3, 1, 2)), rng.normal(size=(4, 2))

    def mapped(x, w):
        sliced = {"index": tf.constant(INDEX), "x": x}
        return slices.map_slices(rows_and_sums, sliced, {"w": w}, (tf.float64, tf.float64))

    def one_after_another(x, w):
        parts = [rows_and_sums({"index": i, "x": x[n]}, {"w": w}) for n, i in enumerate(INDEX)]
        return [tf.stack(results) for results in zip(*parts)]

    found = []
    for function in (tf.function(mapped, jit_compile=compiled), one_after_another):
        given = [tf.constant(x), tf.constant(w)]
        with tf.GradientTape() as tape:
            tape.watch(given)
            results = function(*given)
            loss = tf.reduce_sum(results[0] ** 2) + tf.reduce_sum(tf.exp(results[1]))
        found.append([*results, *map(tf.convert_to_tensor, tape.gradient(loss, given))])
    for of_chunks, expected in zip(*found):
        np.testing.assert_allclose(of_chunks, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("gathers", [False, True])
def test_gradients_of_many_slices_are_summed_in_float32(gathers):
    """In bfloat16, a sum of ones would stop at 256."""
    x, whole = tf.ones([400, 1], tf.bfloat16), tf.ones([1, 1], tf.bfloat16)

    def function(part, whole):
        return part["x"] * (tf.gather(whole["w"], [0]) if gathers else whole["w"])

    with tf.GradientTape() as tape:
        tape.watch(whole)
        result = slices.map_slices(function, {"x": x}, {"w": whole}, tf.bfloat16)
    gradient = tape.gradient(result, whole)
    assert gradient.dtype == tf.bfloat16 and float(gradient[0, 0]) == 400


def test_slices_are_far_smaller_than_what_needs_none_and_larger_on_accelerators(monkeypatch):
    monkeypatch.setattr(slices, "LOGITS_AT_ONCE", 100)
    for elements, count in ((99, 1), (100, 9), (1200, 100), (tf.constant(10**6), 1)):
        assert slices.num_slices(elements) == count
    monkeypatch.setattr(slices, "LOGITS_ON_ACCELERATORS", 800)
    monkeypatch.setattr(slices, "has_accelerator", lambda: True)
    assert slices.num_slices(1200) == 12


@pytest.mark.parametrize(
    "logits, heads_at_once", [(200, 6), (201, 2), (250, 2), (301, 1), (10**9, 1), (None, 6)]
)
def test_over_heads_takes_as_many_heads_as_fit(logits, heads_at_once, monkeypatch):
    monkeypatch.setattr(slices, "MAX_LOGITS", 200)
    monkeypatch.setattr(slices, "LOGITS_AT_ONCE", 100)
    query = np.random.default_rng(0).normal(size=(2, 6, 4, 3))
    centroids = np.random.default_rng(1).normal(size=(6, 5, 3))
    parts = []

    def function(arguments):
        parts.append(arguments["query"].shape[1])
        return arguments["query"] * (arguments["centroids"][:, :1, :] + arguments["bias"])

    found = slices.over_heads(
        function,
        {"query": query, "absent": None},
        {"centroids": centroids},
        {"bias": np.array(2.0)},
        tf.constant(1000) if logits is None else logits,
        tf.float64,
    )
    np.testing.assert_allclose(found, query * (centroids[:, :1] + 2.0), rtol=1e-12)
    assert set(parts) == {heads_at_once}
