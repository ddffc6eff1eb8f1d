import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.convert import convert_t2t_checkpoint, load_t2t_checkpoint, new_t2t_model
from rt_keras.convert.t2t.model import T2TModel
from rt_keras.convert.t2t.variables import placements
from rt_keras.models import RoutingTransformerCausalLM
from rt_keras.models.stateful import head_groups_inside
from tests.convert.t2t import checks

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


# Outputs.


# Clusters select their members by rank. Equal tokens have equal scores until attention mixes in
# their neighbors, and the first one is selected; in "strided", two scores differ by 3e-7. In
# float32, some processors round the products of equal rows differently, so other members are
# selected. In float64 none does.


@pytest.mark.parametrize("name", CASES)
def test_logits(name):
    with checks.computed_in("float64"):
        case = checks.Case(name)
        logits = case.load()(case.inputs, training=False)
    assert logits.dtype == "float64"
    np.testing.assert_allclose(logits, case.expected["logits"], rtol=0, atol=2e-5)


def test_a_training_step():
    case = checks.Case("train_step_ema")
    with checks.computed_in("float64"):
        model = case.load()
    targets = case.inputs["targets"]
    callback = CentroidEMA(decay=case.hparams["decay"], update="count", load_bias_step=0.0)
    callback.set_model(model)
    callback.on_train_begin()
    with tf.GradientTape() as tape:
        logits = model({"targets": targets}, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        loss, extra_loss = tf.reduce_mean(losses), tf.add_n(model.losses)
        total = loss + tf.cast(extra_loss, loss.dtype)
    callback.on_train_batch_end(0)
    variables = model.trainable_variables
    gradients = tape.gradient(total, [variable.value for variable in variables])
    found = {id(x): tf.convert_to_tensor(y).numpy() for x, y in zip(variables, gradients)}
    np.testing.assert_allclose(loss, case.expected["loss/training"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(extra_loss, case.expected["loss/extra_loss"], rtol=1e-5)
    compared = {"grad": 0, "after": 0}
    for variable, names, combine in placements(model.task, {}):
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


def biased_model(name, **options):
    """Returns a model of a golden case that has token biases, with new weights."""
    case = checks.Case(name)
    size = case.options["vocabulary_size"]
    task = new_t2t_model(case.hparams, vocabulary_size=size, token_bias=True, **options)
    return T2TModel(task), case.inputs


def random_bias(targets):
    return np.random.default_rng(0).normal(size=targets.shape[:2]).astype("float32")


@pytest.mark.slow
def test_token_bias():
    model, inputs = biased_model("routing_shared_qk")
    bias = random_bias(inputs["targets"])
    plain = model(inputs)
    np.testing.assert_array_equal(model({**inputs, "token_bias_targets": 0 * bias}), plain)
    found = model({**inputs, "token_bias_targets": bias})
    assert np.abs(found - plain).max() > 1e-3
    np.testing.assert_array_equal(model(inputs), plain)
    for group in head_groups_inside(model.task.backbone):
        group.token_bias_weight.assign(-1.0)
    again = model({**inputs, "token_bias_targets": -bias})
    np.testing.assert_allclose(again, found, rtol=0, atol=1e-6)


def test_token_bias_where_the_gradient_recomputes_blocks():
    model, inputs = biased_model("routing_shared_qk", remat=True)
    bias = random_bias(inputs["targets"])
    with pytest.raises(ValueError, match="cannot be combined with remat=True"):
        model({**inputs, "token_bias_targets": bias})
    assert np.all(np.isfinite(model(inputs)))


def test_targets_behind_the_longest_are_cut_off(case):
    model = case.load(hparams={**case.hparams, "max_target_length": 64})
    assert model(case.inputs).shape == (2, 64, 97)


# As presets.


@pytest.fixture
def vocabulary(tmp_path):
    """Writes a file with as many subwords as the golden models have ids."""
    characters = "\\_u;0123456789abcdefghijklmnopqrstvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ<>.,!?-'"
    subwords = ["<pad>_", "<EOS>_", *characters]
    subwords += [f"{a}{b}_" for a in "abcdef" for b in "abcdef"][: 97 - len(subwords)]
    path = tmp_path / "vocabulary.subwords"
    lines = [f'"{x}"' if x == "'" else f"'{x}'" for x in subwords]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_converted_to_a_preset(case, vocabulary, tmp_path):
    output = tmp_path / "preset"
    convert_t2t_checkpoint(case.checkpoint, case.hparams, output, vocabulary=vocabulary)
    task = RoutingTransformerCausalLM.from_preset(str(output))
    np.testing.assert_array_equal(T2TModel(task)(case.inputs), case.load()(case.inputs))
    assert task.preprocessor.sequence_length == case.hparams["max_target_length"]
    # That code inserts a 0 before the first token.
    assert task.preprocessor.tokenizer.start_token_id == 0
    assert task.preprocessor(["ab"])[0]["token_ids"][0, 0] == 0
    assert isinstance(task.generate("ab", max_length=6), str)


def test_nothing_is_written_where_a_checkpoint_is_refused(case, vocabulary, tmp_path):
    output = tmp_path / "preset"
    wrong = {**case.hparams, "filter_size": 200}
    with pytest.raises(ValueError, match="does not fit the model"):
        convert_t2t_checkpoint(case.checkpoint, wrong, output, vocabulary=vocabulary)
    short = vocabulary.with_name("short.subwords")
    short.write_text("".join(vocabulary.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"embeddings/embedding \(97, 32\), .* \(96, 32\)"):
        convert_t2t_checkpoint(case.checkpoint, case.hparams, output, vocabulary=short)
    assert not output.exists()
    output.mkdir()
    (output / "something").touch()
    with pytest.raises(FileExistsError, match="already exists; name a new"):
        convert_t2t_checkpoint(case.checkpoint, case.hparams, output, vocabulary=vocabulary)


# Extra and missing variables of a checkpoint.


def test_slots_and_other_prefixes(case, tmp_path):
    variables = {}
    for name, value in case.variables().items():
        inner = name.removeprefix("sparse_transformer/body/")
        variables[f"replica/sparse_transformer/body/{inner}"] = value
        variables[f"training/sparse_transformer/body/{inner}/Adafactor"] = value
    variables["global_step"] = np.int64(7)
    checkpoint = checks.write_checkpoint(variables, tmp_path / "model.ckpt")
    model = load_t2t_checkpoint(checkpoint, case.hparams, **case.options)
    np.testing.assert_array_equal(model(case.inputs), case.load()(case.inputs))


@pytest.mark.slow
def test_the_embedding_of_the_encoders_tokens(tmp_path):
    case = checks.Case("encoder_decoder")
    with pytest.warns(UserWarning, match="no embedding of the encoder's tokens"):
        case.load()
    table = np.random.default_rng(0).normal(size=[97, 64]).astype("float32")
    scope = "sparse_transformer/symbol_modality_97_64/shared/weights_"
    shards = {f"{scope}{i}": part for i, part in enumerate(np.array_split(table, 16))}
    path = checks.write_checkpoint({**case.variables(), **shards}, tmp_path / "model.ckpt")
    model = load_t2t_checkpoint(path, case.hparams, **case.options)
    np.testing.assert_array_equal(model.task.backbone.encoder_token_embedding.embeddings, table)


BIAS = "sparse_transformer/body/emb_dense/bias"


@pytest.mark.parametrize(
    "variables, options, message",
    [
        ({BIAS: None}, {}, r"1 not found in the checkpoint: emb_dense/bias, .* of shape \(64,\)$"),
        (
            {"sparse_transformer/body/other": np.zeros([3, 2])},
            {},
            r"1 in the checkpoint but not used: other \(3, 2\)$",
        ),
        ({}, {"filter_size": 200}, r"ffn/weight1/kernel \(64, 128\), .* shape \(64, 400\)"),
    ],
)
def test_variables_that_are_missing_left_over_or_of_other_shapes_are_named(
    case, variables, options, message, tmp_path
):
    variables = {x: y for x, y in (case.variables() | variables).items() if y is not None}
    checkpoint = checks.write_checkpoint(variables, tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match=message):
        load_t2t_checkpoint(checkpoint, {**case.hparams, **options}, **case.options)
    if not options:
        load_t2t_checkpoint(checkpoint, case.hparams, **case.options, strict=False)


def test_truncated(case, tmp_path):
    for path in checks.folder_of("routing_shared_qk").glob("model.ckpt-1.*"):
        shutil.copy(path, tmp_path)
    broken = tmp_path / "model.ckpt-1.data-00000-of-00001"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match="the checkpoint .*cannot be read"):
        load_t2t_checkpoint(tmp_path / "model.ckpt-1", case.hparams, **case.options)
