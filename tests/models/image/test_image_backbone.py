import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerImageBackbone
from tests.models import checks

SHAPE = (4, 2, 3)
VALUES, CLASSES = 7, 5


def make_backbone(**changes):
    """Two blocks; weights are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": VALUES,
        "image_shape": SHAPE,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": [LocalHeads(1, 6, grid=(2, 2)), RoutingHeads(1, 3, 6)],
        "block_shape": (2, 3),
    }
    return checks.as_if_trained(RoutingTransformerImageBackbone(**{**settings, **changes}))


def random_inputs(batch=2, classes=None, seed=1):
    rng = np.random.default_rng(seed)
    inputs = {"images": rng.integers(0, VALUES, [batch, *SHAPE], dtype="int32")}
    if classes is not None:
        inputs["labels"] = rng.integers(0, classes, [batch], dtype="int32")
    return inputs


@pytest.mark.slow
def test_config_and_files_make_an_equal_model(tmp_path):
    changes = {
        "head_groups": [[LocalHeads(2, 6)], [LocalHeads(1, 6), RoutingHeads(1, 3, 6)]],
        "block_shape": (6,),
        "num_classes": CLASSES,
        "position_embedding": False,
        **checks.BLOCKS,
        "use_head_dense": True,
    }
    backbone = make_backbone(**changes)
    assert backbone.output.shape == (None, 24, 8)
    inputs = random_inputs(3, classes=CLASSES)
    assert {name: x.shape[1:] for name, x in backbone.input.items()} == {
        name: x.shape[1:] for name, x in inputs.items()
    }
    checks.check_backbone(backbone, inputs, tmp_path, **changes)
