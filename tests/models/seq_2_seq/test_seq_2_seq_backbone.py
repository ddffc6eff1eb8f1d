import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, SinusoidalPositions
from rt_keras.models import RoutingTransformerSeq2SeqBackbone
from tests.models import checks

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
    return checks.as_if_trained(RoutingTransformerSeq2SeqBackbone(**{**settings, **changes}))


def make_inputs(encoder_length=16, decoder_length=8, padding=0, padded=SIDES):
    """Random tokens; the last ones of the second row, on both sides, may be padding."""
    inputs = {}
    for seed, (side, length) in enumerate(zip(SIDES, (encoder_length, decoder_length))):
        mask = np.ones([2, length], "int32")
        mask[1, length - padding * (side in padded) :] = 0
        inputs[f"{side}_token_ids"] = checks.random_tokens(2, length, seed) * mask
        inputs[f"{side}_padding_mask"] = mask
    return inputs


def test_values_are_those_of_the_layers_in_turn():
    changes = {"dtype": "float64", "max_sequence_length": 9, "sinusoidal_positions": True}
    changes["cross_head_groups"] = [FullHeads(2)]
    backbone, inputs = make_backbone(**changes), make_inputs(7, 5, padding=2)
    ids = [inputs[f"{side}_token_ids"] for side in SIDES]
    real, decoder_real = (inputs[f"{side}_padding_mask"].astype(bool) for side in SIDES)

    sines = SinusoidalPositions(dtype="float64")
    table = np.asarray(backbone.encoder_token_embedding.embeddings)
    encoded = sines(np.sqrt(8) * table[ids[0]]) * real[..., None]
    for block in backbone.encoder_blocks:
        encoded = block(encoded, padding_mask=real)
    encoded = backbone.encoder_layer_norm(encoded)

    positions = np.asarray(backbone.embedding.position_embedding.position_embeddings)
    x = np.sqrt(8) * np.asarray(backbone.token_embedding.embeddings)[ids[1]]
    x = sines(x + positions[:5])
    encoder = {"encoder_outputs": encoded, "encoder_padding_mask": real}
    for block in backbone.transformer_blocks:
        x = block(x, padding_mask=decoder_real, use_causal_mask=True, **encoder)
    decoded = backbone.layer_norm(x)

    outputs = backbone(inputs)
    # Outputs at padding are arbitrary.
    for expected, side, kept in zip((encoded, decoded), SIDES, (real, decoder_real)):
        found, expected = np.asarray(outputs[f"{side}_sequence_output"]), np.asarray(expected)
        # Angles of sines are of float32.
        np.testing.assert_allclose(found[kept], expected[kept], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_config_and_files_make_an_equal_model(tmp_path):
    changes = {
        "encoder_head_groups": [[LocalHeads(2, 4)], checks.groups(share_qk=True)],
        "num_layers": 1,
        "encoder_input_dropout": 0.1,
        "embedding_dim": 5,
        "tie_embeddings": False,
        "embedding_dropout": 0.1,
        "token_dropout": 0.2,
        "max_sequence_length": 8,
        "sinusoidal_positions": True,
        **checks.BLOCKS,
    }
    backbone, inputs = make_backbone(**changes), make_inputs(padding=3)
    checks.check_backbone(backbone, inputs, tmp_path, **changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"encoder_head_groups": []}, "encoder_head_groups must be a list of at least one"),
        ({"cross_head_groups": [[FullHeads(1)]]}, "cross_head_groups must .* Received: 1 lists"),
        ({"encoder_input_dropout": 1.0}, r"rate must be in \[0, 1\)"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(**changes)
