import numpy as np
import pytest

from rt_keras.layers import CompressiveHeads, MultiHeadAttention
from rt_keras.ops import compressive_attention
from rt_keras.ops.compressive import COMPRESSIONS
from tests.layers import checks


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_decoding_and_configuration(compression):
    group = CompressiveHeads(
        2, 4, 4, compression_rate=2, compression=compression, max_relative_distance=3
    )
    layer, x = MultiHeadAttention([group]), checks.random(2, 23, 8)
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 11), expected, rtol=0, atol=1e-5)
    heads = checks.random(1, 2, 23, 4)
    checks.config_makes_an_equal_layer(group, heads, heads, heads, use_causal_mask=True)


def test_equation_and_padding():
    x = checks.random(2, 2, 20, 4)
    group, mask = CompressiveHeads(2, 4, 2, compression="max"), checks.padding(2, 20)
    found = group(x, x, x, query_mask=mask, key_mask=mask, use_causal_mask=True)
    expected = compressive_attention(
        x,
        x,
        x,
        block_size=4,
        compressed_length=2,
        compression_rate=4,
        compression="max",
        key_mask=mask,
    )
    expected = np.where(mask[:, None, :, None], expected, 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_empty_batches_and_sequences(compression, static):
    group = CompressiveHeads(2, 4, 2, compression=compression, max_relative_distance=3)
    checks.takes_empty_batches_and_sequences(group, static)


@pytest.mark.end_to_end
def test_every_weight_trains():
    group = CompressiveHeads(2, 4, 2, compression_rate=2, max_relative_distance=3)
    query, key, value = (checks.random(1, 2, 20, 4, seed=seed) for seed in range(3))
    checks.trains_every_weight(group, query, value, key, use_causal_mask=True, training=True)
    assert len(group.losses) == 1
    group = CompressiveHeads(2, 4, 2, compression="mean")
    group(query, value, key, use_causal_mask=True, training=True)
    assert not group.losses


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"block_size": 5}, "block_size must be a multiple of compression_rate, 2"),
        ({"compressed_length": 3}, "must be a multiple of block_size / compression_rate, 2"),
        ({"compression": "median"}, "must be one of .*'median'"),
        ({"reconstruction_weight": -1.0}, "reconstruction_weight must be a number of at least 0"),
        ({"look_back": 0}, "look_back must be an integer of at least 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        CompressiveHeads(
            **{
                "num_heads": 1,
                "block_size": 4,
                "compressed_length": 4,
                "compression_rate": 2,
                **arguments,
            }
        )


def test_causal_mask_is_required():
    x = checks.random(1, 1, 8, 2)
    with pytest.raises(ValueError, match="need use_causal_mask=True"):
        CompressiveHeads(1, 4, 2)(x, x, x)
