import pytest

from rt_keras.benchmarks.images.kinds import CODECS, MEANINGS, block_size, head_keys
from rt_keras.layers import MultiHeadAttention
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment

SHAPE = {"model.image.height": 8, "model.image.width": 8, "model.image.channels": 1}
HEADS = [name for name in MEANINGS if name not in (*CODECS, "pixel_cnn")]


def model_of(name, layers=2, heads=4):
    keys = head_keys(name, heads, layers, keys=12, length=64)
    sizes = {"model.kind": "image_lm", "model.num_layers": layers, "model.hidden_dim": 16}
    images = {"data.name": "mnist", "model.intermediate_dim": 16}
    return Experiment(make_config({**keys, **sizes, **SHAPE, **images})).make_model()


def groups_of(model):
    return [
        [(type(group).__name__, group.num_heads) for group in layer.head_groups]
        for layer in layers_inside(model, MultiHeadAttention)
    ]


@pytest.mark.parametrize("name", HEADS)
def test_layers_have_four_heads(name):
    model = model_of(name)
    assert [sum(count for _, count in layer) for layer in groups_of(model)] == [4, 4]


def test_routing_heads_and_layers_can_be_chosen():
    local = [("LocalHeads", 4)]
    found = groups_of(model_of("nearest:routing_heads=1:routing_layers=1", layers=3))
    assert found == [local, local, [("RoutingHeads", 1), ("LocalHeads", 3)]]
    assert groups_of(model_of("nearest:routing_heads=4:routing_layers=1")) == [
        local,
        [("RoutingHeads", 4)],
    ]


def test_keys_set_windows_and_clusters():
    found = head_keys("nearest:keys=28", 4, 2, keys=84, length=784)
    assert found["model.routing.window_size"] == 56
    assert found["model.routing.num_clusters"] == 14
    assert found["model.local.block_size"] == block_size(28, 784) == 16
    assert head_keys("local", 4, 2, 84, 784)["model.local.block_size"] == 56


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nearby", "--kinds must be among full, local, nearest.*Received: nearby"),
        ("local:routing_heads=2", "local has the options keys. Received: local:routing_heads=2"),
        ("full:keys=2", "full has the options none"),
        ("nearest:routing_heads=0", "routing_heads must be an integer above 0"),
        ("nearest:routing_heads=5", "routing_heads must be at most 4"),
        ("nearest:routing_layers=3", "routing_layers must be at most 2"),
    ],
)
def test_wrong_kinds_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        head_keys(name, 4, 2, 84, 784)
