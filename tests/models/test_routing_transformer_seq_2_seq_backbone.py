import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerSeq2SeqBackbone
from tests.models import checks, reference

SIDES = ("encoder", "decoder")


def make_backbone(**changes):
    """Two blocks on each side; weights are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": checks.VOCABULARY,
        "num_encoder_layers": 2,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "encoder_head_groups": checks.groups(),
        "head_groups": checks.groups(),
        "cross_head_groups": [
            LocalHeads(1, 4, key_block_size=8),
            RoutingHeads(1, 3, 8, assignment="balanced"),
        ],
    }
    backbone = RoutingTransformerSeq2SeqBackbone(**{**settings, **changes})
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return backbone


def full_groups(num_heads=2):
    names = ("encoder_head_groups", "head_groups", "cross_head_groups")
    return {name: [FullHeads(num_heads)] for name in names}


def make_inputs(encoder_length=16, decoder_length=8, padding=0):
    """Random tokens; the last ones of the second row, on both sides, may be padding."""
    inputs = {}
    for seed, (side, length) in enumerate(zip(SIDES, (encoder_length, decoder_length))):
        mask = np.ones([2, length], "int32")
        mask[1, length - padding :] = 0
        inputs[f"{side}_token_ids"] = checks.random_tokens(2, length, seed) * mask
        inputs[f"{side}_padding_mask"] = mask
    return inputs


@pytest.fixture(scope="module")
def backbone():
    return make_backbone()


def difference(outputs, others, side="decoder"):
    name = f"{side}_sequence_output"
    return checks.largest_difference(outputs[name], others[name])


@pytest.mark.parametrize(
    "policy, compute, state",
    [("mixed_bfloat16", "bfloat16", "float32"), ("float64", "float64", "float64")],
)
def test_shapes_and_dtypes_at_any_length(policy, compute, state):
    backbone = make_backbone(dtype=policy, **full_groups())
    assert set(backbone.output) == {f"{side}_sequence_output" for side in SIDES}
    for lengths in ((1, 1), (3, 17), (17, 3)):
        outputs = backbone(make_inputs(*lengths))
        for side, length in zip(SIDES, lengths):
            output = outputs[f"{side}_sequence_output"]
            assert output.shape == (2, length, 8) and output.dtype == compute
            assert np.all(np.isfinite(np.asarray(output, "float64")))
    for weight in backbone.weights:
        assert weight.dtype in (state, "uint32"), weight.path


def test_values_of_full_attention():
    changes = {"activation": "relu", "dtype": "float64", "max_sequence_length": 9}
    backbone, inputs = make_backbone(**full_groups(), **changes), make_inputs(7, 5, padding=2)
    ids = [inputs[f"{side}_token_ids"] for side in SIDES]
    real, decoder_real = (inputs[f"{side}_padding_mask"].astype(bool) for side in SIDES)

    table = np.asarray(backbone.encoder_token_embedding.embeddings)
    encoded = np.sqrt(8) * table[ids[0]] * real[..., None]
    seen = np.broadcast_to(real[:, None], [2, 7, 7])
    for block in backbone.encoder_blocks:
        encoded = reference.pre_norm_block(block, encoded, seen)
    encoded = reference.layer_norm(backbone.encoder_layer_norm, encoded)

    positions = np.asarray(backbone.embedding.position_embedding.position_embeddings)
    x = np.sqrt(8) * np.asarray(backbone.token_embedding.embeddings)[ids[1]] + positions[:5]
    seen = np.tri(5, dtype=bool) & decoder_real[:, None]
    seen_of_encoder = np.broadcast_to(real[:, None], [2, 5, 7])
    for block in backbone.transformer_blocks:
        x = reference.pre_norm_block(block, x, seen, encoded, seen_of_encoder)
    decoded = reference.layer_norm(backbone.layer_norm, x)

    outputs = backbone(inputs)
    # Outputs at padding are arbitrary.
    for expected, side, kept in zip((encoded, decoded), SIDES, (real, decoder_real)):
        found = np.asarray(outputs[f"{side}_sequence_output"])
        np.testing.assert_allclose(found[kept], expected[kept], rtol=0, atol=1e-5)


def test_the_encoder_knows_nothing_of_the_decoder(backbone):
    inputs = make_inputs()
    other = {**inputs, "decoder_token_ids": checks.random_tokens(2, 8, seed=5)}
    first, second = backbone(inputs), backbone(other)
    assert difference(first, second, "encoder") == 0 and difference(first, second) > 0.1


def test_the_encoder_sees_its_whole_sequence_and_the_decoder_its_past():
    backbone, inputs = make_backbone(**full_groups()), make_inputs()
    expected = backbone(inputs)
    last = {**inputs, "encoder_token_ids": inputs["encoder_token_ids"].copy()}
    last["encoder_token_ids"][:, -1] = last["encoder_token_ids"][:, -1] % 19 + 1
    found = backbone(last)
    for side in SIDES:
        name = f"{side}_sequence_output"
        assert (np.abs(np.asarray(found[name] - expected[name])).max(-1) > 1e-4).all()
    changed = {**inputs, "decoder_token_ids": inputs["decoder_token_ids"].copy()}
    changed["decoder_token_ids"][:, 5] = changed["decoder_token_ids"][:, 5] % 19 + 1
    found, expected = (
        np.asarray(outputs["decoder_sequence_output"]) for outputs in (backbone(changed), expected)
    )
    assert checks.largest_difference(found[:, :5], expected[:, :5]) <= 1e-5
    assert (np.abs(found - expected)[:, 5:].max(-1) > 1e-4).all()


def test_padding_of_the_encoder_changes_nothing():
    backbone, inputs = make_backbone(**full_groups()), make_inputs()
    longer = dict(inputs)
    longer["encoder_token_ids"] = np.pad(
        inputs["encoder_token_ids"], [[0, 0], [0, 5]], constant_values=7
    )
    longer["encoder_padding_mask"] = np.pad(inputs["encoder_padding_mask"], [[0, 0], [0, 5]])
    assert difference(backbone(longer), backbone(inputs)) <= 1e-5


def test_encoding_and_decoding_apart_is_the_same(backbone):
    inputs = make_inputs(padding=2)
    outputs, mask = backbone(inputs), inputs["encoder_padding_mask"]
    embedded = backbone.embed_encoder_tokens(inputs["encoder_token_ids"], mask)
    assert not np.asarray(embedded)[1, -2:].any()
    encoded = backbone.encode(embedded, mask)
    decoded = backbone.decode(
        inputs["decoder_token_ids"], inputs["decoder_padding_mask"], encoded, mask
    )
    found = {"encoder_sequence_output": encoded, "decoder_sequence_output": decoded}
    assert difference(found, outputs, "encoder") <= 1e-6
    assert difference(found, outputs) <= 1e-6


def test_order_is_known_from_sines():
    groups = full_groups()
    inputs = make_inputs()
    for side in SIDES:
        inputs[f"{side}_token_ids"][:] = 5
    without = make_backbone(**groups)(inputs)["encoder_sequence_output"].numpy()
    assert checks.largest_difference(without, without[:, :1]) <= 1e-5
    outputs = make_backbone(**groups, sinusoidal_positions=True)(inputs)
    for output in outputs.values():
        assert checks.largest_difference(output[:, 1:], output[:, :-1]) > 1e-2


def test_dropout_in_training_only():
    backbone = make_backbone(**full_groups(), encoder_input_dropout=0.5)
    inputs = make_inputs()
    assert difference(backbone(inputs), backbone(inputs, training=False), "encoder") == 0
    outputs = [backbone(inputs, training=True) for _ in range(2)]
    assert difference(*outputs, "encoder") > 0.1 and difference(*outputs) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            **full_groups(),
            "encoder_head_groups": [[LocalHeads(2, 4)], checks.groups(share_qk=True)],
            "num_layers": 1,
            "encoder_input_dropout": 0.1,
            "embedding_dim": 5,
            "tie_embeddings": False,
            "embedding_dropout": 0.1,
            "token_dropout": 0.2,
            "max_sequence_length": 8,
            "sinusoidal_positions": True,
            "activation": "relu",
            "normalize_first": False,
            "dropout": 0.1,
            "dtype": "mixed_bfloat16",
        },
    ],
)
def test_config_makes_an_equal_model(changes):
    backbone = make_backbone(**changes)
    config = keras.saving.serialize_keras_object(backbone)
    for name, value in changes.items():
        if not name.endswith("head_groups") and name != "dtype":
            assert config["config"][name] == value
    copy = keras.saving.deserialize_keras_object(config)
    assert keras.saving.serialize_keras_object(copy)["config"] == config["config"]
    inputs = make_inputs()
    expected = backbone(inputs)
    assert difference(copy(inputs), expected) > 0.1
    copy.set_weights(backbone.get_weights())
    for side in SIDES:
        assert difference(copy(inputs), expected, side) == 0


@pytest.mark.end_to_end
def test_saved_and_loaded(backbone, tmp_path):
    inputs = make_inputs(padding=3)
    expected = backbone(inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is RoutingTransformerSeq2SeqBackbone
    backbone.save_to_preset(str(tmp_path / "preset"))
    preset = RoutingTransformerSeq2SeqBackbone.from_preset(str(tmp_path / "preset"))
    for model in (loaded, preset):
        assert difference(model(inputs), expected) == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_encoder_layers": 0}, "num_encoder_layers must be a positive integer"),
        ({"num_layers": 1.0}, "num_layers must be a positive integer. Received: num_layers=1.0"),
        ({"encoder_head_groups": []}, "encoder_head_groups must be a list of at least one"),
        (
            {"cross_head_groups": [[FullHeads(1)]]},
            "cross_head_groups must .* the 2 blocks. Received: 1 lists",
        ),
        ({"head_groups": [FullHeads(3)]}, "The 3 heads must divide the 8 features"),
        ({"encoder_input_dropout": 1.0}, r"rate must be in \[0, 1\)"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(**changes)
