"""Compares training with the callback to a NumPy loop over the positions of the same batches."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import cluster_use
from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.layers.centroids import centroids_inside
from tests.processes import found_on_two_replicas

HEADS, CLUSTERS, LENGTH, DEPTH, BATCH = 2, 3, 10, 4, 2
STATE = ("centroids", "load_bias", "average_counts", "average_sums", "updates")


def make_model(share_qk=False, num_clusters=CLUSTERS, **compile_options):
    """A model whose routing heads get their queries and keys straight from its inputs."""
    query = keras.Input((HEADS, None, DEPTH), name="query")
    key = keras.Input((HEADS, None, DEPTH), name="key")
    # With several replicas, Keras sums inputs, which does not work for bool.
    mask = keras.Input((None,), dtype="int32", name="mask")
    heads = RoutingHeads(HEADS, num_clusters, window_size=4, share_qk=share_qk, name="routing")
    masks = dict.fromkeys(("query_mask", "key_mask"), keras.ops.cast(mask, "bool"))
    x = heads(query, query, None if share_qk else key, **masks, use_causal_mask=True)
    model = keras.Model({"query": query, "key": key, "mask": mask}, keras.layers.Dense(1)(x))
    model.compile(**{"optimizer": "sgd", "loss": "mse", "jit_compile": False, **compile_options})
    rng = np.random.default_rng(1)
    centroids = heads.centroids
    centroids.centroids.assign(unit(rng.normal(size=centroids.centroids.shape)))
    centroids.load_bias.assign(rng.normal(size=centroids.load_bias.shape))
    return model


def make_eager_model(**options):
    """Such a model, run eagerly, because a few eager steps cost less than tracing."""
    return make_model(run_eagerly=True, **options)


def make_model_with_an_empty_cluster():
    model = make_eager_model()
    model.get_layer("routing").centroids.load_bias.assign([[50.0, -100.0, 50.0], [0.0, 0.0, 0.0]])
    return model


def make_data(batches=3, seed=0):
    rng = np.random.default_rng(seed)
    shape = batches * BATCH, HEADS, LENGTH, DEPTH
    mask = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, size=[batches * BATCH, 1])
    query, key = (rng.normal(size=shape).astype("float32") for _ in range(2))
    return {"query": query, "key": key, "mask": mask.astype("int32")}


def fit(model, data, *callbacks, **options):
    targets = np.zeros((*data["query"].shape[:3], 1))
    settings = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    return model.fit(data, targets, callbacks=list(callbacks), **settings)


def make_step(model, callback, strategy=None, jit_compile=None, update_inside=True):
    """One batch of a custom training loop: it trains the model and updates its centroids."""
    callback.set_model(model)

    def train(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch, training=True) ** 2) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return callback.update_centroids() if update_inside else None

    @tf.function(jit_compile=jit_compile)
    def step(batch):
        members = strategy.run(train, [batch]) if strategy else train(batch)
        return members if update_inside else callback.update_centroids()

    model.optimizer.build(model.trainable_variables)
    return step


def batches_of(data):
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


def state(model, heads="routing"):
    centroids = model.get_layer(heads).centroids
    return {name: getattr(centroids, name).numpy() for name in STATE}


def normalize(x):
    centered = x - np.mean(x, axis=-1, keepdims=True)
    return centered / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + 1e-6)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


class AfterEachBatch(keras.callbacks.Callback):
    """Records the state after each update. Place it after CentroidEMA."""

    def on_train_begin(self, logs=None):
        self.states = []

    def on_train_batch_end(self, batch, logs=None):
        self.states.append(state(self.model))


# The equations of design and docstring, one position and one cluster at a time.


def statistics(before, batch, share_qk):
    """Number and sum of each cluster's members, among the queries and among the keys."""
    sources = [batch["query"]] if share_qk else [batch["query"], batch["key"]]
    counts = np.zeros((len(sources), *before["load_bias"].shape))
    sums = np.zeros((len(sources), *before["centroids"].shape))
    for source, x in enumerate(sources):
        for b, h, i in np.ndindex(x.shape[:3]):
            if batch["mask"][b, i]:
                vector = normalize(x[b, h, i].astype("float64"))
                scores = before["centroids"][h] @ vector + before["load_bias"][h]
                counts[source, h, np.argmax(scores)] += 1
                sums[source, h, np.argmax(scores)] += vector
    return counts, sums


def mean_rule(before, counts, sums, decay):
    centroids = before["centroids"].copy()
    for h, c in np.ndindex(centroids.shape[:2]):
        means = [sums[s, h, c] / counts[s, h, c] for s in range(len(sums)) if counts[s, h, c]]
        if means:
            moved = decay * centroids[h, c] + sum((1 - decay) / len(means) * m for m in means)
            centroids[h, c] = moved / np.sqrt(np.sum(moved**2))
    return {"centroids": centroids}


def count_rule(before, counts, sums, decay):
    averages, totals = before["average_counts"].copy(), before["average_sums"].copy()
    for count, total in zip(counts, sums):
        averages = decay * averages + (1 - decay) * count
        totals = decay * totals + (1 - decay) * total
    centroids = before["centroids"].copy()
    for h, c in np.ndindex(centroids.shape[:2]):
        if counts[:, h, c].any():
            number = averages[h].sum()
            smoothed = (averages[h, c] + 1e-5) / (number + len(averages[h]) * 1e-5) * number
            centroids[h, c] = totals[h, c] / smoothed
    return {"centroids": centroids, "average_counts": averages, "average_sums": totals}


def load_rule(load_bias, counts, step):
    bias = load_bias.copy()
    for h in range(len(bias)):
        members = counts[:, h].sum(0)
        if members.sum():
            bias[h] -= step * np.clip(members / members.mean() - 1, -1, 1)
            bias[h] -= bias[h].mean()
    return bias


def follow(before, data, callback, share_qk=False, batches_per_update=1):
    """The state after `fit` on `data`, and the members of each cluster on the way."""
    now = {name: value.astype("float64") for name, value in before.items()}
    batches = [
        {name: x[i : i + BATCH] for name, x in data.items()}
        for i in range(0, len(data["query"]), BATCH)
    ]
    members = np.zeros(now["load_bias"].shape)
    for i in range(0, len(batches), batches_per_update):
        one_update = batches[i : i + batches_per_update]
        found = [statistics(now, batch, share_qk) for batch in one_update]
        counts, sums = (sum(x) for x in zip(*found))
        members += counts.sum(0)
        decay = callback.decay ** len(one_update)
        if callback.update == "mean":
            moved = mean_rule(now, counts, sums, decay)
        else:
            moved = count_rule(now, counts / len(one_update), sums / len(one_update), decay)
        bias = load_rule(now["load_bias"], counts, callback.load_bias_step)
        now = {**now, **moved, "load_bias": bias, "updates": now["updates"] + 1}
    return now, members


def assert_close(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("share_qk", [True, False])
@pytest.mark.parametrize("update", ["mean", "count"])
def test_updates_are_those_of_the_loop(update, share_qk):
    # Traced in one of the cases of each rule.
    make = make_model if share_qk else make_eager_model
    model, data = make(share_qk=share_qk), make_data(batches=3)
    callback = CentroidEMA(decay=0.8, update=update, load_bias_step=0.2)
    before = state(model)
    fit(model, data, callback)
    expected, _ = follow(before, data, callback, share_qk)
    assert_close(state(model), expected)
    assert expected["updates"] == 3
    assert np.abs(expected["centroids"] - before["centroids"]).max() > 0.1
    learned = model.get_layer("routing").centroids
    for statistic in (learned.member_counts, learned.member_sums, learned.member_batches):
        assert not statistic.numpy().any()


@pytest.mark.slow
def test_a_custom_training_loop_that_is_compiled():
    model, data = make_model(), make_data(batches=3)
    callback, total = CentroidEMA(decay=0.8), 0
    expected, members = follow(state(model), data, callback)
    step = make_step(model, callback, jit_compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for batch in batches_of(data):
            total += step(batch)[0]
    np.testing.assert_array_equal(total, members)
    assert_close(state(model), expected)


@pytest.mark.parametrize("frozen", ["heads", "attention", "model"])
def test_frozen_centroids_stay(frozen):
    heads, others = (RoutingHeads(1, 2, 4) for _ in range(2))
    attention = MultiHeadAttention([heads], key_dim=4)
    inputs = keras.Input((9, 8))
    x = MultiHeadAttention([others], key_dim=4)(*[attention(inputs, inputs)] * 2)
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse", run_eagerly=True)
    data = np.random.default_rng(0).normal(size=(4, 9, 8))
    with pytest.warns(UserWarning, match="nothing updates its centroids"):
        # Statistics from before the layer was frozen.
        attention(data, data, training=True)
    {"heads": heads, "attention": attention, "model": model}[frozen].trainable = False
    all_frozen = frozen == "model"
    before = [weight.numpy() for weight in heads.weights]
    callback = CentroidEMA(initialize_from_batch=True, restart_after=1)
    logs = model.fit(data, data, verbose=0, callbacks=[callback]).history
    for weight, value in zip(heads.weights, before):
        np.testing.assert_array_equal(weight, value, err_msg=weight.path)
    assert others.centroids.updates.numpy() == (0 if all_frozen else 1)
    # The remaining ones are numbered from 0.
    assert ("routing_0_fullest" in logs) != all_frozen and "routing_1_fullest" not in logs


@pytest.mark.slow
@pytest.mark.parametrize("update", ["mean", "count"])
def test_batches_of_one_compiled_execution_make_one_update(update):
    options = {"steps_per_execution": 2, "jit_compile": update == "count"}
    model, data = make_model(**options), make_data(batches=5)
    callback = CentroidEMA(decay=0.8, update=update)
    expected, _ = follow(state(model), data, callback, batches_per_update=2)
    fit(model, data, callback)
    assert expected["updates"] == 3
    assert_close(state(model), expected)


@pytest.mark.parametrize("update", ["mean", "count"])
def test_an_overflow_and_a_batch_that_never_came_move_nothing(update):
    data = make_data(batches=1)
    overflow = {**data, "query": np.where(np.arange(DEPTH) == 1, np.inf, data["query"])}
    found, expected = (make_eager_model() for _ in range(2))
    callback = CentroidEMA(update=update, initialize_from_batch=True, restart_after=1)
    before = state(found)
    fit(found, overflow, callback)
    callback.update_centroids()
    assert_close(state(found), before)
    # Nor does a step that loss scaling skips, whose statistics are finite.
    scaled = make_eager_model()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=2.0**127)
    scaled.compile(optimizer, "mse", run_eagerly=True)
    fit(scaled, {**data, "query": 1e3 * data["query"]}, callback)
    assert_close(state(scaled), before)
    # Nor does what a step left that was interrupted.
    found({name: x + 1 for name, x in data.items()}, training=True)
    for model in (found, expected):
        fit(model, data, CentroidEMA(update=update))
    assert_close(state(found), state(expected))


MIRRORED = """
from tests.callbacks.test_centroid_ema import (
    CentroidEMA, batches_of, make_data, make_model, make_step, state
)

assert strategy.num_replicas_in_sync == 2
for update, update_inside in (("mean", True), ("count", False)):
    with strategy.scope():
        model = make_model()
    callback = CentroidEMA(decay=0.8, update=update)
    step = make_step(model, callback, strategy, update_inside=update_inside)
    for batch in strategy.experimental_distribute_dataset(batches_of(make_data(batches=3))):
        step(batch)
    first, second = model.get_layer("routing").centroids.centroids.value.values
    tf.debugging.assert_equal(first, second)
    found[update] = {name: value.tolist() for name, value in state(model).items()}
"""


@pytest.mark.weekly
def test_a_custom_loop_on_replicas_makes_the_update_of_one_device():
    for update, found in found_on_two_replicas(MIRRORED).items():
        callback = CentroidEMA(decay=0.8, update=update)
        expected, _ = follow(state(make_model()), make_data(batches=3), callback)
        assert_close(found, expected)


@pytest.mark.parametrize("update", ["mean", "count"])
def test_centroids_start_from_members_of_the_first_batch(update):
    model, data = make_eager_model(), make_data(batches=2)
    notes = AfterEachBatch()
    callback = CentroidEMA(decay=0.5, update=update, initialize_from_batch=True)
    fit(model, data, callback, notes)
    centroids = notes.states[0]["centroids"]
    for h in range(HEADS):
        members = normalize(data["query"][:BATCH, h][data["mask"][:BATCH] == 1])
        members = unit(members) if update == "mean" else members
        distances = np.abs(members - centroids[h][:, None]).max(-1)
        assert distances.min(axis=1).max() < 1e-5
        assert len(set(distances.argmin(axis=1))) == CLUSTERS
    assert np.abs(notes.states[1]["centroids"] - centroids).max() > 0.01


@pytest.mark.parametrize("update", ["mean", "count"])
def test_an_empty_cluster_restarts_from_a_member(update):
    model, data = make_model_with_an_empty_cluster(), make_data(batches=4)
    callback = CentroidEMA(decay=0.5, update=update, load_bias_step=0, restart_after=3)
    states = [state(model)]
    # Empty batches count across calls of `fit`.
    for batches in (slice(2 * BATCH), slice(2 * BATCH, None)):
        notes = AfterEachBatch()
        fit(model, {name: x[batches] for name, x in data.items()}, callback, notes)
        states += notes.states
    path = [x["centroids"][0, 1] for x in states]
    np.testing.assert_array_equal(path[1:3], [path[0]] * 2)
    third = slice(2 * BATCH, 3 * BATCH)
    members = normalize(data["query"][third, 0][data["mask"][third] == 1])
    members = unit(members) if update == "mean" else members
    assert np.abs(members - path[3]).max(-1).min() < 1e-5
    # The count of empty batches restarts.
    np.testing.assert_array_equal(path[4], path[3])


def test_epoch_logs_tell_the_use_of_clusters():
    model, data = make_model_with_an_empty_cluster(), make_data(batches=2)
    callback, now = CentroidEMA(decay=0.8), state(model)
    history = fit(model, data, callback, epochs=2, validation_split=0.0).history
    for epoch in range(2):
        now, members = follow(now, data, callback)
        fullest, empty, entropy = map(float, cluster_use(tf.constant(members)))
        expected = {"fullest": fullest, "empty": empty, "entropy": entropy}
        expected["load_bias"] = np.abs(now["load_bias"]).max()
        assert empty == 1
        for name, value in expected.items():
            assert history[f"routing_0_{name}"][epoch] == pytest.approx(value, rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_every_routing_layer_is_found_and_logged():
    """Nested layers, one with two groups. Each layer has its own numbers."""
    x = inputs = keras.Input((None, 8))
    given = [RoutingHeads(1, 2, 4), RoutingHeads(2, 3, 4, share_qk=True), RoutingHeads(1, 3, 4)]
    for groups in ([given[0], LocalHeads(1, 4), given[1]], [given[2]]):
        x = MultiHeadAttention(groups, key_dim=4)(x, x)
    inner = keras.Model(inputs, x)
    model = keras.Model(inputs, keras.layers.Dense(8)(inner(inputs)))
    model.compile("sgd", "mse", run_eagerly=True)
    data = np.random.default_rng(0).normal(size=(4, 9, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = model.fit(data, data, verbose=0, callbacks=[CentroidEMA()]).history
    kinds = ("fullest", "empty", "entropy", "load_bias")
    names = {f"routing_{i}_{kind}" for i in range(3) for kind in kinds}
    assert names == {name for name in history if name.startswith("routing")}
    assert centroids_inside(model) == [heads.centroids for heads in given]
    assert all(heads.centroids.updates == 1 for heads in given)


@pytest.mark.parametrize(
    "name, value",
    [("decay", 1.0), ("update", "median"), ("load_bias_step", -0.1), ("restart_after", 0)],
)
def test_bad_arguments(name, value):
    argument = {name: value}
    with pytest.raises(ValueError, match=rf"{name} must be .*Received: {name}={value!r}"):
        CentroidEMA(**argument)


def test_a_model_without_routing_heads_and_a_loop_without_a_model_are_refused():
    with pytest.raises(RuntimeError, match=r"CentroidEMA has no model: call set_model\(model\)"):
        CentroidEMA().update_centroids()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(ValueError, match="CentroidEMA needs a model with RoutingHeads"):
        model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[CentroidEMA()])
