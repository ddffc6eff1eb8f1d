import pytest

from rt_keras.models.head_keys import read_head_groups
from rt_keras.models.head_kinds import HEAD_KINDS

# Kinds that a causal model does not support, and keys that a kind requires.
NOT_CAUSAL = ("clustered",)
NEEDED = {"union": {"union.window.block_size": 8}}


def test_every_kind_can_be_configured():
    for name in HEAD_KINDS.keys() - set(NOT_CAUSAL):
        (group,) = read_head_groups({f"{name}.num_heads": 4, **NEEDED.get(name, {})})
        assert type(group) is HEAD_KINDS[name].layer and group.num_heads == 4


def test_groups_of_several_kinds_and_their_values():
    values = {"full.num_heads": 2, "local.num_heads": 4, "local": {"block_size": 32}}
    local, full = read_head_groups(values)
    assert (local.num_heads, local.block_size, full.num_heads) == (4, 32, 2)


@pytest.mark.parametrize(
    ("values", "attentions", "message"),
    [
        ({}, ("decoder",), "there are no heads; one of model.routing.num_heads"),
        ({"local.block_size": 4}, ("decoder",), "num_heads is None; model.local has other values"),
        ({"clustered.num_heads": 2}, ("decoder",), "in the decoder, use model.causal_clustered"),
        ({"gated_delta.num_heads": 2}, ("encoder",), "outside a causal_lm it must be null"),
        ({"local.num_heads": 2, "local.cross_block_size": 8}, ("decoder",), "it must be null"),
    ],
)
def test_incompatible_values_are_refused(values, attentions, message):
    with pytest.raises(ValueError, match=message):
        read_head_groups(values, attentions)
