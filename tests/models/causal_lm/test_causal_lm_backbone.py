import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.layers.centroids import centroids_inside
from tests.models import checks


@pytest.mark.slow
def test_config_and_files_make_an_equal_model(tmp_path):
    blocks = [[LocalHeads(2, 4), FullHeads(2)], checks.groups(share_qk=True, num_probes=2)]
    changes = {
        "head_groups": blocks,
        "max_sequence_length": 16,
        "embedding_dim": 5,
        "tie_embeddings": False,
        **checks.BLOCKS,
        "shift_tokens": True,
        "conv_kernel_size": [3, None],
        "layer_norm_epsilon": 1e-3,
    }
    backbone = checks.make_backbone(**changes)
    assert backbone.output.shape == (None, None, 8)
    inputs = checks.inputs(checks.random_tokens(2, 9), lengths=[9, 4])
    checks.check_backbone(backbone, inputs, tmp_path, **changes)


def test_each_block_has_separate_head_groups():
    given = checks.groups()
    backbone = checks.make_backbone(head_groups=given)
    first, second = centroids_inside(backbone)
    assert checks.largest_difference(first.centroids, second.centroids) > 0.1
    assert not any(group.built for group in given)


@pytest.mark.slow
def test_the_last_block_is_normalized_last_after_it_or_in_it():
    for first in (True, False):
        backbone = checks.make_backbone(normalize_first=first)
        assert (backbone.layer_norm is not None) == first
        last = backbone.layer_norm or backbone.transformer_blocks[-1].feed_forward_norm
        output = np.asarray(backbone(checks.inputs(checks.random_tokens(2, 9))))
        normalized = (output - last.beta.numpy()) / last.gamma.numpy()
        np.testing.assert_allclose(normalized.mean(-1), 0, atol=1e-5)
        np.testing.assert_allclose(normalized.var(-1), 1, atol=1e-3)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_groups": [[LocalHeads(1, 4)]] * 3}, "of the 2 blocks. Received: 3 lists"),
        ({"head_groups": [LocalHeads(3, 4)]}, "The 3 heads must divide the 8 features"),
        ({"num_layers": 0}, "num_layers must be a positive integer. Received: num_layers=0"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        checks.make_backbone(**changes)


def test_caches_of_other_models_are_refused():
    backbone = checks.make_backbone()
    cache = backbone.new_cache(1, 9)
    assert len(cache) == backbone.num_layers
    other = checks.make_backbone(head_groups=[FullHeads(2)])
    for wrong in (cache[:1], (), None, other.new_cache(1, 9)):
        with pytest.raises(ValueError, match="cache must come from prefill or new_cache of rout"):
            backbone.call_with_cache(np.array([[1]]), wrong, 0)


def test_output_layers_have_separate_initializers():
    initializer = keras.initializers.RandomNormal(seed=1)
    backbone = checks.make_backbone(kernel_initializer=initializer, dtype="mixed_bfloat16")
    dense = backbone.make_dense(5, "output")
    assert (dense.units, dense.name, dense.compute_dtype) == (5, "output", "bfloat16")
    assert dense.kernel_initializer is not initializer
    assert dense.kernel_initializer.get_config() == initializer.get_config()
    assert backbone.make_dense(5, "output", "float32").compute_dtype == "float32"
