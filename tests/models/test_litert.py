import pytest

from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM


def make_backbone(heads):
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 16}
    return RoutingTransformerBackbone(vocabulary_size=258, head_groups=heads, **sizes)


def test_other_heads_are_refused_by_name_where_litert_would_abort(tmp_path):
    heads = [LocalHeads(1, 8), RoutingHeads(1, num_clusters=2, window_size=8)]
    model = RoutingTransformerCausalLM(make_backbone(heads))
    with pytest.raises(ValueError, match="'litert'.*Received: a model with RoutingHeads$"):
        model.export(tmp_path / "model.tflite", format="litert")
