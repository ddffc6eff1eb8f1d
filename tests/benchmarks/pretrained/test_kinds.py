import pytest

from rt_keras.benchmarks.pretrained.kinds import ENCODER_MEANINGS, MEANINGS, head_groups
from rt_keras.models.adapted.default_heads import default_head_groups, few_look_far
from tests.models.adapted.checks import make_backbone


def test_every_kind_has_heads():
    for kind in MEANINGS:
        groups = head_groups(kind, 4)
        assert groups is None or sum(group.num_heads for group in groups) == 4
    for kind in ENCODER_MEANINGS:
        assert sum(group.num_heads for group in head_groups(kind, 4, causal=False)) == 4


@pytest.mark.parametrize("family, few", [("Llama3", False), ("Gemma3", True)])
def test_content_blocks_are_the_default_of_adapt(family, few):
    backbone = make_backbone(family)
    (default,), _ = default_head_groups(backbone)
    assert few_look_far(backbone) == few
    (group,) = head_groups("content_blocks", default.num_heads, few=few)
    assert group.key_sets == default.key_sets
