import numpy as np
import pytest

from rt_keras.ops import local_routing_attention
from rt_keras.ops.local_routing_decode import local_routing_cache
from rt_keras.ops.local_routing_piece import local_routing_piece
from tests.ops import checks, piece_checks


@pytest.mark.parametrize("kernel_size", [None, 1, 4])
@pytest.mark.parametrize("ends", [[25], [1, 2, 12, 25], [8, 16, 25]], ids=str)
@pytest.mark.parametrize("look_back", [0, 2])
def test_pieces_are_one_pass(kernel_size, ends, look_back):
    inputs = checks.arrays(25, clusters=3, far=4, load_bias=True, token_bias=True)
    learnt = {"routed_scale": np.array([0.5, 2.0]), "routed_bias": np.array([1.0, -1.0])}
    if kernel_size is not None:
        rng = np.random.default_rng(1)
        learnt["routed_kernel"] = rng.normal(size=[2, kernel_size, inputs["query"].shape[3]])
    given, blocks = checks.tensors(inputs), {"block_size": 4, "look_back": look_back}
    names = ("query", "key", "value", "centroids", "token_bias", "load_bias")
    cache = local_routing_cache(
        **{name: given[name] for name in names},
        count=0,
        window_size=5,
        shift_keys=True,
        routed_kernel=learnt.get("routed_kernel"),
        **blocks,
    )
    options = {**learnt, **blocks, "num_probes": 2}
    found, _ = piece_checks.in_pieces(cache, local_routing_piece, inputs, ends, **options)
    expected = local_routing_attention(
        **given, causal=True, window_size=5, shift_keys=True, **options
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
