import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import chunks
from tests.ops import checks

X, W = np.random.default_rng(0).normal(size=(3, 4, 2)), np.random.default_rng(1).normal(size=(2, 5))
INDEX, MASK = [2, 0, 1], [True, False, True, True]


def function(part, whole):
    """Of floats and others, sliced and whole."""
    kept = tf.where(whole["mask"][:, None], part["x"], 0.0)
    return tf.sin(kept @ whole["w"]) * tf.cast(part["index"], tf.float64)


def one_after_another(x, w):
    whole = {"w": w, "mask": tf.constant(MASK)}
    return tf.stack([function({"x": x[i], "index": INDEX[i]}, whole) for i in range(3)])


def mapped(x, w):
    sliced = {"index": tf.constant(INDEX), "x": x}
    return chunks.map_slices(function, sliced, {"mask": tf.constant(MASK), "w": w}, tf.float64)


def gradients(function):
    x, w = tf.constant(X), tf.constant(W)
    upstream = np.random.default_rng(2).normal(size=(3, 4, 5))
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        result = function(x, w)
    return [result, *tape.gradient(result, [x, w], upstream)]


@pytest.mark.parametrize("how", [None, "graph", "xla"])
def test_map_slices(how):
    function = mapped if how is None else tf.function(mapped, jit_compile=how == "xla")
    for found, expected in zip(gradients(function), gradients(one_after_another)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_slice_that_does_not_use_an_argument_gives_it_no_gradient():
    x, unused = tf.constant(X), tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch([x, unused])
        result = chunks.map_slices(
            lambda part, whole: part["x"], {"x": x, "unused": unused}, {}, tf.float64
        )
    assert not np.any(tape.gradient(result, unused))


def heads_of(parts):
    """An attention function that notes how many heads it is given at a time."""

    def function(arguments):
        parts.append(arguments["query"].shape[1])
        scale = arguments["centroids"][:, :1, :] + arguments["bias"]
        return arguments["query"] * scale

    return function


@pytest.mark.parametrize(
    "logits, heads_at_once",
    [(200, 6), (201, 2), (250, 2), (301, 1), (10**9, 1), (None, 6)],
)
def test_over_heads_takes_as_many_heads_as_fit(logits, heads_at_once, monkeypatch):
    monkeypatch.setattr(chunks, "MAX_LOGITS", 200)
    monkeypatch.setattr(chunks, "LOGITS_AT_ONCE", 100)
    query = np.random.default_rng(0).normal(size=(2, 6, 4, 3))
    centroids = np.random.default_rng(1).normal(size=(6, 5, 3))
    parts = []
    found = chunks.over_heads(
        heads_of(parts),
        {"query": query, "centroids": centroids, "absent": None},
        {"bias": np.array(2.0)},
        tf.constant(1000) if logits is None else logits,
        tf.float64,
    )
    np.testing.assert_allclose(found, query * (centroids[:, :1] + 2.0), rtol=1e-12)
    assert set(parts) == {heads_at_once}


def test_every_chunk_has_a_seed_of_its_own(monkeypatch):
    checks.at_most_logits(1, monkeypatch)
    query = np.zeros((1, 4, 50, 1))
    found = chunks.over_heads(
        lambda arguments: (
            arguments["query"]
            + tf.random.stateless_uniform(
                tf.shape(arguments["query"]), arguments["seed"], dtype=tf.float64
            )
        ),
        {"query": query},
        {"seed": [1, 2]},
        10**6,
        tf.float64,
    )
    assert len(np.unique(found)) == 4 * 50
