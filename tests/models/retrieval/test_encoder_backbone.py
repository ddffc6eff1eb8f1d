import keras
import numpy as np
import pytest

from rt_keras.models import RoutingTransformerEncoderBackbone
from tests.layers.checks import close
from tests.models import checks


@pytest.fixture(scope="module")
def backbone():
    return checks.make_backbone(cls=RoutingTransformerEncoderBackbone)


def test_every_output_depends_on_later_tokens_but_not_on_padding(backbone):
    tokens = checks.random_tokens(1, 8)
    before = backbone(checks.inputs(tokens, [6]))
    tokens[:, 5] = tokens[:, 5] % (checks.VOCABULARY - 1) + 1
    after = backbone(checks.inputs(tokens, [6]))
    assert np.all(np.max(np.abs(np.asarray(after - before)[0, :6]), axis=-1) > 1e-4)
    alone = backbone(checks.inputs(tokens[:, :6]))
    close(after[:, :6], alone, 1e-5)


def test_an_encoder_does_not_decode(backbone):
    assert not backbone.cached_decoding
    for decode in (backbone.new_cache, backbone.prefill, backbone.call_with_cache):
        with pytest.raises(ValueError, match="EncoderBackbone has bidirectional attention"):
            decode(keras.ops.ones([1, 4], "int32"), count=4, max_length=8)


@pytest.mark.slow
def test_config_and_files_make_an_equal_model_with_the_weights_of_a_decoder(backbone, tmp_path):
    checks.check_backbone(backbone, checks.inputs(checks.random_tokens(2, 9), [9, 5]), tmp_path)
    shapes = [[x.shape for x in model.weights] for model in (backbone, checks.make_backbone())]
    assert shapes[0] == shapes[1]
