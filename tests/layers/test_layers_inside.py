import keras

from rt_keras.layers import LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.layers.layers_inside import layers_inside


def test_layers_of_a_kind_at_any_depth_in_their_order():
    heads = [RoutingHeads(1, 2, 4), LocalHeads(1, 4), RoutingHeads(1, 2, 4)]
    attention = MultiHeadAttention(heads)
    inputs = keras.Input([8, 6])
    inner = keras.Model(inputs, attention(inputs, inputs))
    model = keras.Sequential([inner, keras.layers.Dense(1)])
    assert layers_inside(model, MultiHeadAttention) == [attention]
    assert layers_inside(model, RoutingHeads) == [heads[0], heads[2]]
    assert layers_inside(heads[1], LocalHeads) == [heads[1]]
