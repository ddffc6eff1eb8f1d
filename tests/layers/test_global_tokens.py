import keras
import numpy as np
import pytest

from rt_keras import layers
from rt_keras.layers.attention_calls import attention_calls
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

LENGTH = 12
GLOBAL = np.zeros((2, LENGTH), bool)
GLOBAL[:, 0] = GLOBAL[1, 7] = True


def attention(groups=None, **options):
    groups = groups or [
        layers.LocalHeads(1, 2, max_relative_distance=2),
        layers.RoutingHeads(1, 2, 3, num_probes=2),
        layers.RoutingHeads(1, 2, 3, share_qk=True),
        layers.LocalRoutingHeads(1, 2, 2, 3),
        layers.FullHeads(1),
    ]
    return layers.MultiHeadAttention(groups, **{"num_global_tokens": 3, "key_dim": 4, **options})


def inputs(seed=0):
    return checks.random(2, LENGTH, 6, seed=seed)


def test_padding_is_no_global_token():
    layer, x = attention(num_global_tokens=1), inputs()
    mask = np.arange(LENGTH) > 0
    masks = {"query_mask": mask[None] & [[True]] * 2, "value_mask": mask[None] & [[True]] * 2}
    expected = layer(x, x, **masks)
    found = layer(x, x, **masks, global_mask=~masks["query_mask"])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_logits_of_global_tokens_are_normalized_as_those_of_other_keys_are():
    # One cluster of all keys.
    layer, x = attention([layers.RoutingHeads(2, 1, 2 * LENGTH)]), inputs()
    expected, found = layer(x, x).numpy(), layer(x, x, global_mask=GLOBAL).numpy()
    np.testing.assert_allclose(found[~GLOBAL], expected[~GLOBAL], atol=1e-5)


def test_in_a_functional_model():
    x, mask = keras.Input([LENGTH, 6]), keras.Input([LENGTH], dtype="bool")
    layer = attention([layers.LocalHeads(2, 2)])
    model = keras.Model([x, mask], layer(x, x, global_mask=mask))
    assert model.output_shape == (None, LENGTH, 6)
    found = model([inputs(), GLOBAL])
    np.testing.assert_allclose(found, layer(inputs(), inputs(), global_mask=GLOBAL), atol=1e-6)
    # Recorded calls have the same attention weights.
    (call,) = attention_calls(model, [inputs(), GLOBAL])
    (weights,) = call.weights()
    options = {"global_mask": GLOBAL, "return_attention_scores": True}
    np.testing.assert_allclose(weights, layer(inputs(), inputs(), **options)[1], atol=1e-6)


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_global_tokens must be a positive integer.*=0"):
        attention(num_global_tokens=0)
    layer, x = attention([layers.FullHeads(1)], num_global_tokens=1), inputs()
    with pytest.raises(ValueError, match="at most 1 global tokens .* a mask of 2"):
        layer(x, x, global_mask=GLOBAL)
    with pytest.raises(ValueError, match="cannot be combined with an attention_mask"):
        layer(x, x, global_mask=GLOBAL, attention_mask=np.tri(LENGTH, dtype=bool))
    with pytest.raises(ValueError, match="of length 12, query of length 12, value of length 5"):
        layer(x, x[:, :5], global_mask=GLOBAL)
    with pytest.raises(ValueError, match="global_mask needs a layer with num_global_tokens"):
        attention([layers.FullHeads(1)], num_global_tokens=None)(x, x, global_mask=GLOBAL)


def test_no_cached_decoding():
    layer, x = attention([layers.FullHeads(1)]), inputs()
    layer(x, x)
    assert not layer.cached_decoding
    for call in (lambda: layer.new_cache(2, 9), lambda: layer.prefill(x, 3, 12)):
        with pytest.raises(ValueError, match="num_global_tokens=3 and cannot be decoded with a c"):
            call()
