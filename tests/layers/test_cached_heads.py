import numpy as np
import pytest

from rt_keras.layers import (
    CentroidHeads,
    ClusterStridedHeads,
    FullHeads,
    HashedHeads,
    LocalHeads,
    LocalRoutingHeads,
    RandomHeads,
    RoutingHeads,
    StridedHeads,
)
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing moves its centroids")


@pytest.mark.parametrize("token_bias", [None, "trainable"])
@pytest.mark.parametrize("max_relative_distance", [None, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda **kwargs: LocalHeads(2, 4, **kwargs),
        lambda **kwargs: LocalHeads(2, 3, (0, 1), grid=(2, 2), **kwargs),
        lambda **kwargs: FullHeads(2, **kwargs),
        lambda **kwargs: RoutingHeads(2, 3, 4, **kwargs),
        lambda **kwargs: RoutingHeads(2, 3, 4, share_qk=True, num_probes=2, **kwargs),
        lambda **kwargs: StridedHeads(2, 3, **kwargs),
        lambda **kwargs: LocalRoutingHeads(2, 2, 3, 4, num_probes=2, kernel_size=3, **kwargs),
        lambda **kwargs: LocalRoutingHeads(2, 3, 3, 4, share_qk=True, **kwargs),
        lambda **kwargs: LocalRoutingHeads(2, 3, 3, 4, look_back=0, routed_key="key", **kwargs),
    ],
)
@pytest.mark.parametrize("count", [0, 7])
def test_one_position_at_a_time_as_all_at_once(make, max_relative_distance, token_bias, count):
    group = make(
        max_relative_distance=max_relative_distance, token_bias=token_bias, dtype="float64"
    )
    query, key = (checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in range(2))
    value, bias = checks.random(2, 2, 12, 5, dtype="float64"), checks.random(2, 12, seed=3)
    key = None if group.share_qk else key
    expected = group(query, value, key, token_bias=bias, use_causal_mask=True)
    if token_bias:
        group.token_bias_weight.assign(0.7)
        expected = group(query, value, key, token_bias=bias, use_causal_mask=True)
    if isinstance(group, CentroidHeads):
        group.load_bias.assign(checks.random(2, 3))
        expected = group(query, value, key, token_bias=bias, use_causal_mask=True)
    checks.decodes_to(expected, group, query, value, key, bias, count)


def test_token_bias_is_0_where_none_is_given():
    group = LocalHeads(1, 4, token_bias="fixed")
    x = checks.random(1, 1, 5, 6)
    expected = group(x, x, x, use_causal_mask=True)
    cache = group.make_cache(x[:, :, :4], x[:, :, :4], x[:, :, :4], 4, 5)
    last = x[:, :, 4:]
    output, _ = group.call_with_cache(last, last, last, cache, 4)
    np.testing.assert_allclose(output, expected[:, :, 4:], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "group",
    [
        RoutingHeads(2, 3, 4, assignment="balanced"),
        ClusterStridedHeads(2, 3, 4),
        HashedHeads(2, 4, 4),
        RandomHeads(2, 3, 4),
    ],
    ids=lambda group: type(group).__name__,
)
def test_heads_that_need_the_whole_sequence_say_so(group):
    assert not group.cached_decoding
    assert not group.cached_cross_attention
    x = checks.random(1, 2, 5, 6)
    with pytest.raises(ValueError, match=f"{type(group).__name__}.* depends on the whole sequence"):
        group.new_cache(1, 5, 6, 6)
    with pytest.raises(ValueError, match="cannot be decoded with a cache"):
        group.call_with_cache(x, x, x, {}, 0)
    with pytest.raises(ValueError, match="cannot attend to a sequence one query at a time"):
        group.cross_attention_step(x, x, x, 0)
