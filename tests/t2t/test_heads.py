"""What all head groups of the dialect share; `tests/contract` has their equations and masks."""

import pytest

from rt_keras.t2t import (
    T2TClusterStridedHeads,
    T2THashedHeads,
    T2TLocalHeads,
    T2TRoutingHeads,
    T2TStridedHeads,
)

GROUPS = {
    "local": lambda **kwargs: T2TLocalHeads(2, 4, **kwargs),
    "strided": lambda **kwargs: T2TStridedHeads(2, 3, **kwargs),
    "routing": lambda **kwargs: T2TRoutingHeads(2, 3, 4, 5, **kwargs),
    "cluster_strided": lambda **kwargs: T2TClusterStridedHeads(2, 3, 4, 5, **kwargs),
    "hashed": lambda **kwargs: T2THashedHeads(2, 4, 4, 5, **kwargs),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_tables_are_shared_by_the_heads(kind):
    group = GROUPS[kind](max_relative_distance=2)
    group.build((None, 2, 12, 6), (None, 2, 12, 5))
    assert group.relative_embeddings.shape == (1, 5, 6)
    assert group.relative_values.shape == (1, 5, 5)
    assert GROUPS[kind]().relative_values is None
