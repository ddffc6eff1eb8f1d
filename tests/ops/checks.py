"""Inputs for the ops, and checks of an op against its equation."""

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras.ops import slices

CLUSTERED = Path(__file__).parents[1] / "golden" / "clustered.npz"
LEARNT = ("query", "key", "value", "token_bias", "relative_embeddings", "relative_values")
LEARNT += ("log_decay", "beta")


def arrays(
    length,
    *,
    keys=None,
    shared=False,
    clusters=None,
    far=None,
    load_bias=False,
    batch=2,
    heads=2,
    depth=6,
    value_depth=5,
    seed=0,
):
    """Random float64 inputs by name. `keys` is their number, `far` the relative reach."""
    rng = np.random.default_rng(seed)
    keys = length if keys is None else keys
    found = {
        "query": rng.normal(size=(batch, heads, length, depth)),
        "key": None if shared else rng.normal(size=(batch, heads, keys, depth)),
        "value": rng.normal(size=(batch, heads, keys, value_depth)),
    }
    if clusters is not None:
        found["centroids"] = rng.normal(size=(heads, clusters, depth))
    if load_bias:
        found["load_bias"] = rng.normal(size=(heads, clusters))
    if far is not None:
        found["relative_embeddings"] = rng.normal(size=(heads, 2 * far + 1, depth))
    return found


def mask(kind, length, batch=2, seed=0):
    """A padding mask `[batch, length]`, False for padding, or None."""
    positions = np.arange(length)
    rng = np.random.default_rng(seed + length)
    padding = np.arange(1, batch + 1)[:, None] * length // (batch + 2)
    scattered = rng.random((batch, length)) < 0.6
    if kind == "right":
        return positions < length - padding
    if kind == "left":
        return positions >= padding
    if kind == "scattered":
        return scattered
    if kind == "a whole row":
        return scattered & (np.arange(batch) > 0)[:, None]
    assert kind is None
    return None


def tensors(inputs, dtype=tf.float64):
    return {name: None if x is None else tf.constant(x, dtype) for name, x in inputs.items()}


def run(op, inputs, options, *, dtype=tf.float64, cotangent=None, jit_compile=None):
    """The output, and the gradient of sum(output * cotangent) for each of `LEARNT`."""
    given = tensors(inputs, dtype)
    learnt = [name for name in LEARNT if given.get(name) is not None]
    if cotangent is None:
        size = given["query"].shape[:3] + given["value"].shape[3:]
        cotangent = np.random.default_rng(1).normal(size=size)

    def step(given):
        with tf.GradientTape() as tape:
            tape.watch([given[name] for name in learnt])
            output = op(**given, **options)
            loss = tf.reduce_sum(output * tf.cast(cotangent, output.dtype))
        vectors = [given[name] for name in learnt]
        return output, tape.gradient(loss, vectors, unconnected_gradients="zero")

    if jit_compile is not None:
        step = tf.function(step, jit_compile=jit_compile)
    output, gradients = step(given)
    return output, dict(zip(learnt, gradients))


def holds(op, equation, inputs, **options):
    """Checks the output against the equation, and the gradient along a direction of all inputs."""
    output, gradients = run(op, inputs, options)
    np.testing.assert_allclose(output, equation(**inputs, **options), rtol=0, atol=1e-12)

    cotangent = np.random.default_rng(1).normal(size=output.shape)
    rng = np.random.default_rng(2)
    directions = {name: rng.normal(size=inputs[name].shape) for name in gradients}
    # Small, as members of clusters change where scores are equal.
    step = 1e-6

    def loss(shift, names):
        moved = {name: inputs[name] + shift * directions[name] for name in names}
        return np.sum(equation(**{**inputs, **moved}, **options) * cotangent)

    def agrees(names):
        found = sum(np.sum(gradients[name] * directions[name]) for name in names)
        slope = (loss(step, names) - loss(-step, names)) / (2 * step)
        return np.isclose(found, slope, rtol=1e-6, atol=1e-6)

    if not agrees(gradients):
        wrong = [name for name in gradients if not agrees([name])]
        raise AssertionError(f"The op's gradient is not the equation's, by {wrong or 'all'}.")


def same(found, expected, atol):
    """Checks that two results of `run` agree."""
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=atol, err_msg="output")
    assert found[1].keys() == expected[1].keys()
    for name in expected[1]:
        np.testing.assert_allclose(
            found[1][name], expected[1][name], rtol=0, atol=atol, err_msg=f"gradient of {name}"
        )


def holds_compiled(op, inputs, **options):
    """Checks that XLA and eager execution have the same output and gradients."""
    eager = run(op, inputs, options)
    same(run(op, inputs, options, jit_compile=True), eager, atol=1e-12)


def holds_in_slices(op, inputs, monkeypatch, **options):
    """Checks that the output and gradients are the same in chunks and all at once."""
    whole = run(op, inputs, options)
    assert "While" not in op_types(op, inputs, options)
    at_most_logits(1, monkeypatch)
    assert op_types(op, inputs, options) & {"While", "StatelessWhile"}
    # In a graph, because an eager loop would run each of possibly many chunks op by op.
    same(run(op, inputs, options, jit_compile=False), whole, atol=1e-12)


def at_most_logits(limit, monkeypatch):
    """Limits the number of attention logits that ops compute at once, where possible."""
    monkeypatch.setattr(slices, "MAX_LOGITS", limit)
    monkeypatch.setattr(slices, "LOGITS_AT_ONCE", limit)


def op_types(op, inputs, options):
    traced = tf.function(lambda given: op(**given, **options)).get_concrete_function(
        tensors(inputs)
    )
    return {node.type for node in traced.graph.get_operations()}


def holds_in_lower_precision(op, equation, inputs, dtype, atol, **options):
    """Checks the dtype of the output, and the output against the equation of rounded inputs."""
    rounded = {
        name: None if x is None else np.array(tf.cast(tf.cast(x, dtype), tf.float64))
        for name, x in inputs.items()
    }
    output, gradients = run(op, rounded, options, dtype=dtype)
    assert output.dtype == dtype
    expected = equation(**rounded, **options)
    np.testing.assert_allclose(tf.cast(output, tf.float64), expected, rtol=0, atol=atol)
    wide = run(op, rounded, options)[1]
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype, name
        error = np.max(np.abs(np.array(tf.cast(gradient, tf.float64)) - wide[name]))
        assert error <= 3 * atol * max(1, np.max(np.abs(wide[name]))), name


def takes_numpy(op, equation, inputs, **options):
    """Checks that the op accepts NumPy arrays, and does not change them."""
    copies = {name: np.copy(x) for name, x in inputs.items() if x is not None}
    value = tf.Variable(inputs["value"])
    with tf.GradientTape() as tape:
        output = op(**{**inputs, "value": value}, **options)
    expected = equation(**inputs, **options)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(op(**inputs, **options), output)
    assert np.any(tape.gradient(output, value))
    for name, x in copies.items():
        np.testing.assert_array_equal(inputs[name], x)


def holds_for_unknown_shapes(op, lengths, make_inputs, **options):
    """Checks that one trace of an op and its gradient serves every batch size and length."""
    names = make_inputs(lengths[0]).keys()
    shapes = {
        "query": [None, 2, None, 6],
        "key": [None, 2, None, 6],
        "value": [None, 2, None, 5],
        "query_mask": [None, None],
        "key_mask": [None, None],
        "token_bias": [None, None],
        "log_decay": [None, 2, None],
        "beta": [None, 2, None],
    }

    def spec(name):
        shape = shapes.get(name, make_inputs(lengths[0])[name].shape)
        return tf.TensorSpec(shape, tf.bool if name.endswith("mask") else tf.float64)

    def step(given):
        learnt = {name: x for name, x in given.items() if name in LEARNT}
        with tf.GradientTape() as tape:
            tape.watch(learnt)
            output = op(**{"key": None, **given}, **options)
        return output, tape.gradient(output, learnt, unconnected_gradients="zero")

    signature = [{name: spec(name) for name in names}]
    traced = tf.function(step, input_signature=signature, autograph=False)
    for length in lengths:
        given = {name: tf.constant(x) for name, x in make_inputs(length).items()}
        same(traced(given), step(given), 1e-12)


def attention_of(op, inputs, options):
    """Returns attention matrices `[batch, heads, queries, keys]`: outputs for identity values."""
    keys = inputs["value"].shape[2]
    identity = np.broadcast_to(np.eye(keys), (*inputs["value"].shape[:2], keys, keys))
    return np.array(op(**tensors({**inputs, "value": identity}), **options))


def compiled_program(op, inputs, options, stage):
    """Returns the text of the compiled program of the op and its gradient.

    Args:
        stage: "hlo" for the input of XLA, "optimized_hlo" for the program that it runs.
    """
    given = tensors(inputs, tf.float32)
    learnt = [name for name in LEARNT if given.get(name) is not None]

    def step(given):
        with tf.GradientTape() as tape:
            tape.watch([given[name] for name in learnt])
            loss = tf.reduce_sum(op(**given, **options))
        return tape.gradient(loss, [given[name] for name in learnt])

    compiled = tf.function(step, jit_compile=True)
    return compiled.experimental_get_compiler_ir(given)(stage=stage)


def largest(shapes):
    """Returns the number of elements of the largest of some shapes, such as "2,3"."""
    return max(np.prod([int(size) for size in shape.split(",") if size]) for shape in shapes)


def largest_tensor(op, inputs, **options):
    """Returns the size of the largest tensor of the op or its gradient in the input of XLA."""
    text = compiled_program(op, inputs, options, "hlo")
    return largest(re.findall(r"(?:pred|[a-z]+\d+)\[([\d,]+)\]", text))


def largest_constant(op, inputs, **options):
    """Returns the size of the largest constant in the compiled op or its gradient."""
    text = compiled_program(op, inputs, options, "optimized_hlo")
    return largest(re.findall(r"\w+\[([\d,]*)\]\S* constant\(", text))


def drops_out(op, inputs, **options):
    """Checks that dropout sets its share of the weights to 0, keeps their mean and obeys a seed.

    `inputs` are of one sequence, and are repeated: dropout differs from copy to copy.
    """
    rate, copies = 0.3, 1000
    many = {
        name: np.repeat(x, copies, axis=0)
        if name in ("query", "key", "value") and x is not None
        else x
        for name, x in inputs.items()
    }
    undropped = attention_of(op, inputs, options)[0]
    dropped = attention_of(op, many, {**options, "dropout": rate, "seed": [3, 4]})
    seen = undropped > 0
    # 5 standard errors of a binomial.
    tolerance = 5 * np.sqrt(rate * (1 - rate) / copies)
    shares = (dropped == 0).mean(axis=0)
    np.testing.assert_allclose(shares[seen], rate, rtol=0, atol=tolerance)
    kept = dropped.mean(axis=0)
    np.testing.assert_allclose(kept[seen] / undropped[seen], 1, atol=tolerance / (1 - rate))
    assert not dropped[:, ~seen].any()

    def output(seed):
        return op(**tensors(inputs), **options, dropout=rate, seed=seed).numpy()

    assert np.array_equal(output([1, 2]), output([1, 2]))
    assert not np.array_equal(output([1, 2]), output([1, 3]))
    heads = dropped[0] == 0
    assert not np.array_equal(heads[0], heads[1])


def golden_clustered(name):
    """The arrays of a case of the clustered attention of its authors, by name."""
    with np.load(CLUSTERED) as arrays:
        start = f"{name}/"
        return {x.removeprefix(start): arrays[x] for x in arrays if x.startswith(start)}
