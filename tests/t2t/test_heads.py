"""Properties of all head groups of the dialect; `reference` has their equations."""

import keras
import numpy as np
import pytest

from rt_keras.layers import MultiHeadAttention
from rt_keras.t2t import (
    T2TClusterStridedHeads,
    T2THashedHeads,
    T2TLocalHeads,
    T2TRoutingHeads,
    T2TStridedHeads,
)
from rt_keras.t2t.token_bias import token_bias_of
from tests.layers import checks
from tests.t2t import reference

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

GROUPS = {
    "local": lambda **kwargs: T2TLocalHeads(2, 4, **kwargs),
    "grid": lambda **kwargs: T2TLocalHeads(2, 3, (0, 1), grid=(2, 2), **kwargs),
    "strided": lambda **kwargs: T2TStridedHeads(2, 3, **kwargs),
    "routing": lambda **kwargs: T2TRoutingHeads(2, 3, 4, 5, **kwargs),
    "shared": lambda **kwargs: T2TRoutingHeads(2, 3, 4, 5, share_qk=True, **kwargs),
    "cluster_strided": lambda **kwargs: T2TClusterStridedHeads(2, 3, 4, 5, **kwargs),
    "hashed": lambda **kwargs: T2THashedHeads(2, 4, 4, 5, **kwargs),
}
# Strided heads have none.
TOKEN_BIAS = {"strided": {}}
EQUATIONS = {
    "local": lambda group, **x: reference.local(block_size=4, **x),
    "grid": lambda group, **x: reference.local(block_size=3, look_back=(0, 1), grid=(2, 2), **x),
    "strided": lambda group, **x: reference.strided(stride=3, **x),
    "routing": lambda group, **x: reference.balanced(
        centroids=group.centroids.numpy(), window_size=4, block_size=5, **x
    ),
    "cluster_strided": lambda group, **x: reference.cluster_strided(
        centroids=group.centroids.numpy(), window_size=4, block_size=5, **x
    ),
    "hashed": lambda group, **x: reference.hashed(
        projections=group.projections.numpy(), num_buckets=4, window_size=4, block_size=5, **x
    ),
}
EQUATIONS["shared"] = EQUATIONS["routing"]


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("causal", [False, True])
def test_equation(kind, causal):
    query, key, value = (
        checks.random(2, 2, 12, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    biased = TOKEN_BIAS.get(kind, {"token_bias": "trainable"})
    group = GROUPS[kind](max_relative_distance=2, dtype="float64", **biased)
    key = None if group.share_qk else key
    # With shared queries and keys, that code has no mask.
    mask = None if group.share_qk else checks.padding(2, 12)
    token_bias = checks.random(2, 12, dtype="float64")
    with token_bias_of(**{"decoder" if causal else "encoder": token_bias}):
        found = group(query, value, key, query_mask=mask, key_mask=mask, use_causal_mask=causal)
    expected = EQUATIONS[kind](
        group,
        query=query,
        key=key,
        value=value,
        causal=causal,
        key_mask=mask,
        token_bias=token_bias,
        relative_embeddings=group.relative_embeddings.numpy(),
        relative_values=group.relative_values.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", GROUPS)
def test_tables_are_shared_by_the_heads(kind):
    group = GROUPS[kind](max_relative_distance=2)
    group.build((None, 2, 12, 6), (None, 2, 12, 5))
    assert group.relative_embeddings.shape == (1, 5, 6)
    assert group.relative_values.shape == (1, 5, 5)
    assert GROUPS[kind]().relative_values is None


@pytest.mark.parametrize("kind", GROUPS)
def test_config(kind):
    x = checks.random(1, 2, 12, 6)
    group = GROUPS[kind](max_relative_distance=2, name="heads")
    checks.config_makes_an_equal_layer(group, x, x, None if group.share_qk else x)


def test_saving(tmp_path):
    groups = [
        make(max_relative_distance=2, **TOKEN_BIAS.get(kind, {"token_bias": "fixed"}))
        for kind, make in GROUPS.items()
    ]
    inputs = keras.Input((12, 6))
    layer = MultiHeadAttention(groups, 2)
    model = keras.Model(inputs, layer(inputs, inputs))
    x, bias = checks.random(2, 12, 6), checks.random(2, 12)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with token_bias_of(encoder=bias):
        expected = model(x)
        assert checks.largest_difference(loaded(x), expected) < 1e-6
    assert checks.largest_difference(model(x), expected) > 1e-3
    copies = next(x for x in loaded.layers if isinstance(x, MultiHeadAttention)).head_groups
    assert [copy.get_config() for copy in copies] == [group.get_config() for group in groups]


@pytest.mark.parametrize("kind", ["routing", "cluster_strided", "hashed"])
def test_bad_block_size(kind):
    make = {"routing": T2TRoutingHeads, "cluster_strided": T2TClusterStridedHeads}
    with pytest.raises(ValueError, match="block_size must be a positive integer. Received: .*=0"):
        make.get(kind, T2THashedHeads)(2, 4, 4, block_size=0)


@pytest.mark.parametrize(
    "option",
    [
        {"sliding_window": 2},
        {"adaptive_span": True},
        {"attention_activation": "entmax15"},
        {"relative_positions": "bucketed", "max_relative_distance": 3},
    ],
)
def test_options_that_the_authors_local_heads_lack(option):
    with pytest.raises(ValueError, match=f"T2TLocalHeads: {next(iter(option))} must be"):
        T2TLocalHeads(2, 4, **option)
