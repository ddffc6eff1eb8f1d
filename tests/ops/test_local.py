import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from rt_keras.ops.local.cached import local_cache, local_chunk
from rt_keras.ops.local.neighborhood import Neighborhood
from tests.ops import checks, chunk_checks


@pytest.mark.parametrize(
    "length, keys, options, message",
    [
        (8, 8, {"sliding_window": 6}, "from 1 to look_back · block_size . 1, 5. Received: 6"),
        (8, 8, {"sliding_window": 3, "grid": (2, 1)}, "cannot be combined with grid or key_bl"),
        (8, 8, {"sliding_window": 3, "key_block_size": 4}, "with grid or key_block_size"),
        (5, 7, {}, "query of length 5, value of length 7"),
        (8, 12, {"key_block_size": 4}, "length 8 in blocks of 4, key of length 12 in blocks of 4"),
        (8, 8, {"grid": (3, 1)}, "A grid of 3x1 blocks of 4 positions has 12.*query of length 8"),
        (8, 4, {"key_block_size": 2, "causal": True}, "queries and keys of one sequence"),
        (9, 9, {"keys_before": 2}, "Received: keys_before=2, block_size=4"),
    ],
)
def test_bad_windows(length, keys, options, message):
    inputs = checks.tensors(checks.arrays(length, keys=keys))
    with pytest.raises(ValueError, match=message):
        local_attention(**inputs, block_size=4, **options)


@pytest.mark.parametrize("relative, shared", [(False, False), (True, False), (False, True)])
def test_key_heads_serve_several_heads_in_parts_of_a_long_block(relative, shared):
    rng = np.random.default_rng(0)
    query, keys = rng.normal(size=(2, 6, 300, 4)), rng.normal(size=(2, 2, 300, 4))
    options = {"block_size": 256, "causal": True, "sliding_window": 99, "return_logsumexp": True}
    options["query_mask"] = options["key_mask"] = checks.mask("scattered", 300)
    if relative:
        options["relative_embeddings"] = rng.normal(size=(6, 7, 4))
    repeated = np.repeat(keys, 3, axis=1)
    found, expected = (
        local_attention(query, None if shared else x, x[..., ::-1], **options)
        for x in (keys, repeated)
    )
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected
    )


def test_gradients_stay_in_the_chunk():
    inputs = checks.arrays(30, far=5)
    given = checks.tensors(inputs)
    blocks = Neighborhood(4)
    cache = local_cache(given["key"], given["value"], 0, blocks)
    chunk = functools.partial(local_chunk, neighborhood=blocks)
    whole = functools.partial(local_attention, block_size=4, causal=True)
    chunk_checks.gradients_stay_in_the_chunk(cache, chunk, whole, inputs, 17)
