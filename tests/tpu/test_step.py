import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.tpu import step as tpu_step
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment
from tests.tpu.checks import TINY

KINDS = {
    "causal_lm": {},
    "seq_2_seq_lm": {
        "model.kind": "seq_2_seq_lm",
        "model.num_encoder_layers": 1,
        "data.name": "wmt14_translate/de-en",
        "data.encoder_sequence_length": 16,
    },
    "image_lm": {
        "model.kind": "image_lm",
        "model.image.height": 4,
        "model.image.width": 4,
        "model.image.channels": 1,
        "model.image.num_classes": 3,
        "data.name": "mnist",
        # The default length; the length of images is fixed.
        "data.sequence_length": 2048,
    },
}


def tiny_experiment(**changes):
    return Experiment(make_config({**TINY, **changes}))


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_each_kind_is_one_program(kind):
    step, specs, model = tpu_step.training_step(tiny_experiment(**KINDS[kind]), batch_size=3)
    assert all(spec.shape[0] == 3 for spec in specs)
    text = step.experimental_get_compiler_ir(*specs)(stage="hlo")
    # Every variable that the step changes reuses the memory of its old value.
    header = text.splitlines()[0]
    assert header.count("may-alias") >= 3 * len(model.trainable_variables)
    assert f"f32[{','.join(map(str, specs[-1].shape))}]" in text


@pytest.mark.end_to_end
def test_the_step_is_what_fit_and_the_callback_do():
    from rt_keras.training.run import compiled_model

    settings = {
        "trainer.mixed_bfloat16": False,
        "centroids.decay": 0.5,
        "schedule.name": "constant",
        "schedule.warmup_steps": 0,
        "optimizer.learning_rate": 0.1,
        # With this, small gradients with small errors give small updates.
        "optimizer.epsilon": 0.01,
    }
    experiment = tiny_experiment(**settings)
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 32, [2, 2, 16]).astype("int32")
    weights = np.ones([2, 16], "float32")
    inputs = {"padding_mask": weights > 0, "token_ids": ids}

    keras.utils.set_random_seed(0)
    fitted = compiled_model(experiment)
    ema = CentroidEMA(**vars(experiment.config.centroids))
    fitted.fit(inputs, labels, sample_weight=weights, batch_size=2, callbacks=[ema], verbose=0)

    keras.utils.set_random_seed(0)
    step, specs, model = tpu_step.training_step(experiment, batch_size=2)
    before = [np.array(weight) for weight in model.weights]
    step(*map(tf.constant, tf.nest.flatten((inputs, labels, weights))))
    compared = set()
    for old, mine, wanted in zip(before, model.weights, fitted.weights, strict=True):
        # Except the seeds of random numbers.
        if mine.dtype == "float32":
            np.testing.assert_allclose(mine, wanted, atol=1e-4, err_msg=mine.path)
            if np.abs(old - mine).max() > 1e-3:
                compared.add(mine.name)
    assert {"kernel", "centroids", "load_bias"} <= compared


def test_sums_over_cores_are_operations_of_the_program():
    @tf.function(jit_compile=True)
    def total(x, rows):
        sparse = tf.IndexedSlices(x[None], tf.constant([2]), tf.constant([5, 3]))
        with tpu_step.OneOfSeveralCores(4):
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce("SUM", {"dense": rows, "sparse": sparse})

    specs = tf.TensorSpec([3]), tf.TensorSpec([7], tf.bfloat16)
    text = total.experimental_get_compiler_ir(*specs)(stage="hlo")
    sums = [line for line in text.splitlines() if " all-reduce(" in line]
    assert ["bf16[7]" in sums[0], "f32[5,3]" in sums[1]] == [True, True] and len(sums) == 2
    assert all("replica_groups={{0,1,2,3}}" in line for line in sums)
    # Each sum has its own channel.
    assert len({re.search(r"channel_id=(\d+)", line)[1] for line in sums}) == 2


@pytest.mark.parametrize("operation", ["MEAN", tf.distribute.ReduceOp.MEAN])
def test_a_mean_over_cores_is_their_sum_over_their_number(operation):
    @tf.function(jit_compile=True)
    def mean(x):
        with tpu_step.OneOfSeveralCores(4) as core:
            return core.all_reduce(operation, x)

    text = mean.experimental_get_compiler_ir(tf.TensorSpec([3]))(stage="hlo")
    assert " all-reduce(" in text and " divide(" in text and "constant(4)" in text


def test_sizes_are_those_of_the_variables():
    experiment = tiny_experiment()
    _, specs, model = tpu_step.training_step(experiment, batch_size=2)
    figures = tpu_step.sizes(model, specs)
    assert figures["tokens"] == 32
    assert figures["parameters"] == sum(np.size(x) for x in model.trainable_variables)
    assert figures["gradient_bytes"] == 4 * figures["parameters"]
    # Weights and both moments of Adam, and the state of the routing heads.
    assert figures["state_bytes"] > 3 * figures["gradient_bytes"]
