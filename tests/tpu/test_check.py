import json
import os
import subprocess
import sys
from importlib import metadata

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import cli
from rt_keras.callbacks import CentroidEMA
from rt_keras.tpu import check
from rt_keras.tpu import step as tpu_step
from rt_keras.training.config import make_config

TINY = {
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "model.intermediate_dim": 16,
    "model.vocabulary_size": 32,
    "model.local.num_heads": 1,
    "model.local.block_size": 8,
    "model.routing.num_heads": 1,
    "model.routing.num_clusters": 2,
    "model.routing.window_size": 8,
    "data.sequence_length": 16,
    "trainer.mixed_bfloat16": True,
}
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
        # The default: images have a length of their own.
        "data.sequence_length": 2048,
    },
}


def installed(packages):
    try:
        return all(metadata.version(name) == version for name, version in packages.items())
    except metadata.PackageNotFoundError:
        return False


needs_compiler = pytest.mark.skipif(
    not installed(check.COMPILER), reason="needs the TPU compiler: pip install .[tpu-check]"
)


def tiny_config(**changes):
    return make_config({**TINY, **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_each_kind_is_one_program(kind):
    step, specs, model = tpu_step.training_step(tiny_config(**KINDS[kind]), batch_size=3)
    assert all(spec.shape[0] == 3 for spec in specs)
    text = step.experimental_get_compiler_ir(*specs)(stage="hlo")
    # Every variable that the step changes takes the place of what it was.
    header = text.splitlines()[0]
    assert header.count("may-alias") >= 3 * len(model.trainable_variables)
    assert f"f32[{','.join(map(str, specs[-1].shape))}]" in text


def test_the_step_is_what_fit_and_the_callback_do():
    from rt_keras.training.run import compiled_model

    settings = {
        "trainer.mixed_bfloat16": False,
        "centroids.decay": 0.5,
        "schedule.name": "constant",
        "schedule.warmup_steps": 0,
        "optimizer.learning_rate": 0.1,
        # So that small gradients with small errors make small updates.
        "optimizer.epsilon": 0.01,
    }
    config = tiny_config(**settings)
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 32, [2, 2, 16]).astype("int32")
    weights = np.ones([2, 16], "float32")
    inputs = {"padding_mask": weights > 0, "token_ids": ids}

    keras.utils.set_random_seed(0)
    fitted = compiled_model(config)
    ema = CentroidEMA(**config.centroids.as_dict())
    fitted.fit(inputs, labels, sample_weight=weights, batch_size=2, callbacks=[ema], verbose=0)

    keras.utils.set_random_seed(0)
    step, specs, model = tpu_step.training_step(config, batch_size=2)
    before = [np.array(weight) for weight in model.weights]
    step(*map(tf.constant, tf.nest.flatten((inputs, labels, weights))))
    compared = set()
    for old, mine, wanted in zip(before, model.weights, fitted.weights, strict=True):
        # But the seed of what is drawn at random.
        if mine.dtype == "float32":
            np.testing.assert_allclose(mine, wanted, atol=1e-4, err_msg=mine.path)
            if np.abs(old - mine).max() > 1e-3:
                compared.add(mine.name)
    assert {"kernel", "centroids", "load_bias"} <= compared


def test_sizes_are_those_of_the_variables():
    config = tiny_config()
    _, specs, model = tpu_step.training_step(config, batch_size=2)
    figures = tpu_step.sizes(model, specs)
    assert figures["tokens"] == 32
    assert figures["parameters"] == sum(np.size(x) for x in model.trainable_variables)
    assert figures["gradient_bytes"] == 4 * figures["parameters"]
    # Weights and both moments of Adam, and the state of the routing heads.
    assert figures["state_bytes"] > 3 * figures["gradient_bytes"]


@needs_compiler
def test_a_step_compiles_for_a_tpu(tmp_path, capsys):
    settings = {**TINY, "model.routing.num_heads": 0, "optimizer.name": "adafactor"}
    command = ["tpu-check", "--config", "quickstart", "--batch", "2"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    assert cli.main([*command, "--json", str(tmp_path / "check.json")]) == 0
    printed = capsys.readouterr().out
    assert "compiles for v5e:2x2 and fits" in printed and "2 x 16 tokens" in printed
    figures = json.loads((tmp_path / "check.json").read_text())
    # What is updated in place is counted once, and all of it.
    assert figures["aliased_bytes"] >= figures["state_bytes"] - figures["gradient_bytes"]
    assert figures["output_bytes"] - figures["aliased_bytes"] < 2**14
    assert 0 < figures["held_bytes"] < figures["chip_bytes"]
    # Six operations for each weight of a matrix and token, and the attention.
    assert figures["operations"] > 6 * 32 * 16 * (4 * 16 + 3 * 16 + 32)
    assert figures["tokens_per_second"] > 0


@needs_compiler
def test_what_does_not_fit_is_told_in_one_line():
    @tf.function(jit_compile=True)
    def large(x):
        return tf.reduce_sum(tf.sort(tf.cumsum(tf.broadcast_to(x, [5, 2**20, 2**10])))[:, ::3])

    compiler_ir = large.experimental_get_compiler_ir(tf.TensorSpec([1, 1, 2**10]))
    program = compiler_ir(stage="hlo_serialized")
    with pytest.raises(ValueError, match="^for v5e:2x2: the step does not fit: [^\n]*15.75G"):
        check.compile_program(program, "v5e:2x2")


@needs_compiler
def test_loops_are_told_as_they_are_counted_once():
    @tf.function(jit_compile=True)
    def looped(x):
        return tf.while_loop(lambda i, x: i < 7, lambda i, x: (i + 1, x @ x), [0, x])[1]

    program = looped.experimental_get_compiler_ir(tf.TensorSpec([256, 256]))("hlo_serialized")
    found = check.compile_program(program, "v5e:2x2")
    assert found["loops"] == 1
    assert 2 * 256**3 <= found["operations"] < 4 * 256**3


@needs_compiler
def test_a_shape_that_does_not_exist_is_told_in_one_line():
    with pytest.raises(ValueError, match="^for v5e:3x7: [^\n]*3x7"):
        check.compile_program(b"", "v5e:3x7")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--topology", "v9:2x2"], "--topology must name a chip among v4, v5e"),
        (["--batch", "0"], "--batch must be at least 1. Received: 0"),
        (["--set", "model.hidden=3"], "unknown key model.hidden"),
    ],
)
def test_wrong_options_are_told_in_one_line(options, message, capsys, monkeypatch):
    monkeypatch.setattr(check, "COMPILER", {})
    assert cli.main(["tpu-check", "--config", "quickstart", *options]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_missing_package_is_named_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(check, "COMPILER", {"no-such-compiler": "1.2"})
    assert cli.main(["tpu-check", "--config", "quickstart"]) == 1
    error = capsys.readouterr().err
    assert "pip install no-such-compiler==1.2" in error and error.count("\n") == 1


def test_the_command_itself_needs_no_compiler():
    # Its help is printed without TensorFlow, too.
    result = subprocess.run(
        [sys.executable, "-m", "rt_keras", "tpu-check", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert result.returncode == 0 and "--topology" in result.stdout
