import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads
from tests.layers.checks import close
from tests.models import checks


@pytest.fixture(scope="module")
def backbone():
    return checks.make_backbone()


@pytest.mark.parametrize("shift_tokens, reach", [(False, 0), (True, 4)])
def test_each_block_shifts_tokens_twice(shift_tokens, reach):
    groups = [LocalHeads(1, block_size=1, look_back=0)]
    backbone = checks.make_backbone(head_groups=groups, shift_tokens=shift_tokens)
    tokens = checks.random_tokens(1, 12)
    changed = np.where(np.arange(12) == 3, tokens % 19 + 1, tokens)
    difference = np.asarray(backbone(checks.inputs(changed)) - backbone(checks.inputs(tokens)))
    found = np.flatnonzero(np.abs(difference).max(-1)[0] > 1e-4)
    assert found.tolist() == list(range(3, 3 + reach + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"max_sequence_length": 16, "embedding_dim": 5, "tie_embeddings": False, "num_layers": 1},
        {
            "head_groups": [
                [LocalHeads(2, 4), FullHeads(2)],
                checks.groups(share_qk=True, num_probes=2),
            ],
            "activation": "relu",
            "normalize_first": False,
            "dropout": 0.1,
            "shift_tokens": True,
            "conv_kernel_size": [3, None],
            "layer_norm_epsilon": 1e-3,
            "dtype": "mixed_bfloat16",
        },
    ],
    ids=["separate embeddings", "different blocks"],
)
def test_config_and_files_make_an_equal_model(changes, tmp_path):
    backbone = checks.make_backbone(**changes)
    assert backbone.output.shape == (None, None, 8)
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 4])
    output = backbone(inputs)
    assert output.shape == (2, 9, 8) and output.dtype == backbone.compute_dtype
    checks.check_backbone(backbone, inputs, tmp_path, **changes)


@pytest.mark.slow
def test_one_graph_serves_any_length(backbone):
    spec = tf.TensorSpec([None, None], tf.int32)
    signature = [{"token_ids": spec, "padding_mask": spec}]
    function = tf.function(lambda inputs: backbone(inputs), input_signature=signature)
    for length in (1, 6, 17):
        inputs = checks.inputs(checks.random_tokens(2, length), lengths=[length, 1])
        found = function({name: tf.constant(x) for name, x in inputs.items()})
        close(found, backbone(inputs), 1e-5)


def test_each_block_has_separate_head_groups():
    given = checks.groups()
    backbone = checks.make_backbone(head_groups=given)
    first, second = checks.routing_heads(backbone)
    assert checks.largest_difference(first.centroids, second.centroids) > 0.1
    assert not any(group.built for group in given)


@pytest.mark.slow
def test_the_last_block_is_normalized_last_after_it_or_in_it():
    for first in (True, False):
        backbone = checks.make_backbone(normalize_first=first)
        assert (backbone.layer_norm is not None) == first
        last = backbone.layer_norm or backbone.transformer_blocks[-1].feed_forward_norm
        output = np.asarray(backbone(checks.inputs(checks.random_tokens(2, 9))))
        normalised = (output - last.beta.numpy()) / last.gamma.numpy()
        np.testing.assert_allclose(normalised.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(normalised.var(-1), 1, atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_groups": checks.groups(num_probes=2), "shift_tokens": True},
        {"head_groups": checks.groups(assignment="balanced"), "normalize_first": False},
    ],
)
def test_padding_at_the_right_changes_no_output_before_it(changes):
    backbone = checks.make_backbone(**changes)
    tokens = checks.random_tokens(3, 11)
    padded = np.pad(tokens, [[0, 0], [0, 8]], constant_values=7)
    inputs = checks.inputs(padded, lengths=[11] * 3)
    found = np.asarray(backbone(inputs))[:, :11]
    close(found, backbone(checks.inputs(tokens)), 1e-5)
    other = {**inputs, "token_ids": padded}
    close(np.asarray(backbone(other))[:, :11], found, 1e-5)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_groups": [[LocalHeads(1, 4)]] * 3}, "of the 2 blocks. Received: 3 lists"),
        ({"head_groups": [LocalHeads(3, 4)]}, "The 3 heads must divide the 8 features"),
        ({"num_layers": 0}, "num_layers must be a positive integer. Received: num_layers=0"),
        ({"activation": "gegelu"}, "gegelu"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        checks.make_backbone(**changes)
