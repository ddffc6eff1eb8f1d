import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.convert import load_t2t_checkpoint, t2t_variables
from rt_keras.models import RoutingTransformerCausalLM
from tests.convert import checks

CASES = [
    "encoder_decoder",
    "hashed",
    "image_local2d",
    "image_routing1d",
    "local_geglu",
    "local_no_relative_timing",
    "pg19_shape",
    "prenorm_padding",
    "routing_separate_qk",
    "routing_shared_qk",
    "strided",
    "token_bias",
    "train_step_ema",
]


@pytest.fixture(scope="module")
def case():
    return checks.Case("routing_shared_qk")


# What it computes.


@pytest.mark.parametrize("name", CASES)
def test_logits(name):
    case = checks.Case(name)
    logits = case.load()(case.inputs, training=False)
    np.testing.assert_allclose(logits, case.expected["logits"], rtol=0, atol=2e-5)


def test_a_training_step():
    case = checks.Case("train_step_ema")
    model = case.load()
    targets = case.inputs["targets"]
    callback = CentroidEMA(decay=case.hparams["decay"], update="count", load_bias_step=0.0)
    callback.set_model(model)
    callback.on_train_begin()
    with tf.GradientTape() as tape:
        logits = model({"targets": targets}, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        loss, extra_loss = tf.reduce_mean(losses), tf.add_n(model.losses)
        total = loss + extra_loss
    callback.on_train_batch_end(0)
    variables = model.trainable_variables
    gradients = tape.gradient(total, [variable.value for variable in variables])
    found = {id(x): tf.convert_to_tensor(y).numpy() for x, y in zip(variables, gradients)}
    np.testing.assert_allclose(loss, case.expected["loss/training"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(extra_loss, case.expected["loss/extra_loss"], rtol=1e-5)
    compared = {"grad": 0, "after": 0}
    for variable, names, combine in t2t_variables.placements(model.task, {}):
        if id(variable) in found:
            arrays = [case.expected[f"grad/{case.scope}{name}"] for name in names]
            expected = combine(*arrays)
            error = np.abs(found[id(variable)] - expected).max() / np.abs(expected).max()
            assert error < 1e-4, names
            compared["grad"] += 1
        if f"after/{case.scope}{names[0]}" in case.expected:
            expected = case.expected[f"after/{case.scope}{names[0]}"]
            np.testing.assert_allclose(variable, expected, rtol=1e-6, atol=1e-5)
            compared["after"] += 1
    assert compared == {"grad": len(variables), "after": 6}


def test_fine_tuning_lowers_the_loss(case):
    model = case.load()
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    targets = case.inputs["targets"]
    callback = CentroidEMA(update="count", load_bias_step=0.0)
    history = model.fit(
        {"targets": targets}, targets, epochs=4, verbose=0, callbacks=[callback]
    ).history
    assert history["loss"][-1] < history["loss"][0]


def test_targets_behind_the_longest_are_cut_off(case):
    model = case.load(hparams={**case.hparams, "max_target_length": 64})
    assert model(case.inputs).shape == (2, 64, 97)


# Files.


def test_as_keras_file(case, tmp_path):
    model = case.load()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(case.inputs), model(case.inputs))


@pytest.mark.parametrize("name", ["routing_shared_qk", "encoder_decoder", "image_routing1d"])
def test_as_preset(name, tmp_path):
    case = checks.Case(name)
    model = case.load()
    model.task.save_to_preset(str(tmp_path / "preset"))
    task = type(model.task).from_preset(str(tmp_path / "preset"))
    again = type(model)(task, model.max_target_length)
    np.testing.assert_array_equal(again(case.inputs), model(case.inputs))


def test_as_saved_model(case, tmp_path):
    task = case.load().task
    tokens = tf.constant(case.inputs["targets"])
    inputs = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
    task.export(str(tmp_path / "saved"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(loaded.serve(inputs), task(inputs), rtol=0, atol=1e-5)


# What a checkpoint may hold besides, and lack.


def test_slots_and_other_prefixes(case, tmp_path):
    variables = {}
    for name, value in case.variables().items():
        inner = name.removeprefix("sparse_transformer/body/")
        variables[f"replica/sparse_transformer/body/{inner}"] = value
        variables[f"training/sparse_transformer/body/{inner}/Adafactor"] = value
    variables["global_step"] = np.int64(7)
    checkpoint = checks.write_checkpoint(variables, tmp_path / "model.ckpt")
    model = load_t2t_checkpoint(checkpoint, case.hparams, **case.options)
    np.testing.assert_allclose(model(case.inputs), case.expected["logits"], rtol=0, atol=2e-5)


def test_a_variable_is_missing(case, tmp_path):
    variables = case.variables()
    del variables["sparse_transformer/body/emb_dense/bias"]
    checkpoint = checks.write_checkpoint(variables, tmp_path / "model.ckpt")
    message = r"1 not found in the checkpoint: emb_dense/bias, for a weight of shape \(64,\)$"
    with pytest.raises(ValueError, match=message):
        load_t2t_checkpoint(checkpoint, case.hparams, **case.options)
    model = load_t2t_checkpoint(checkpoint, case.hparams, **case.options, strict=False)
    assert isinstance(model.task, RoutingTransformerCausalLM)


def test_a_variable_is_left(case, tmp_path):
    variables = {**case.variables(), "sparse_transformer/body/other": np.zeros([3, 2])}
    checkpoint = checks.write_checkpoint(variables, tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match=r"1 in the checkpoint and not placed: other \(3, 2\)$"):
        load_t2t_checkpoint(checkpoint, case.hparams, **case.options)


def test_shapes_do_not_fit(case):
    with pytest.raises(ValueError, match=r"ffn/weight1/kernel \(64, 128\), .* shape \(64, 400\)"):
        case.load(hparams={**case.hparams, "filter_size": 200})
    with pytest.raises(ValueError, match="embeddings/embedding .97, 32., for .* .98, 32."):
        case.load(vocabulary_size=98)


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint .*missing"):
        load_t2t_checkpoint(tmp_path / "missing", {}, vocabulary_size=97)


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_truncated(case, suffix, tmp_path):
    for path in checks.folder_of("routing_shared_qk").glob("model.ckpt-1.*"):
        shutil.copy(path, tmp_path)
    broken = tmp_path / f"model.ckpt-1.{suffix}"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match="the checkpoint .*cannot be read"):
        load_t2t_checkpoint(tmp_path / "model.ckpt-1", case.hparams, **case.options)


def test_of_another_model(case):
    other = checks.Case("image_routing1d")
    with pytest.raises(ValueError, match="the checkpoint does not fit the model"):
        load_t2t_checkpoint(other.checkpoint, case.hparams, **case.options)
