import keras
import numpy as np

from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.training import pictures


def test_every_layer_has_its_picture():
    inputs = keras.Input([16, 8])
    x = inputs
    for groups in ([RoutingHeads(2, 4, 4), LocalHeads(1, 4)], [FullHeads(1)]):
        x += MultiHeadAttention(groups, key_dim=4)(x, x, use_causal_mask=True)
    model = keras.Model(inputs, x)
    found = pictures.pictures(model, keras.random.normal([2, 16, 8], seed=0))
    assert {name: picture.shape for name, picture in found.items()} == {
        "centroids_0": (128, 2 * 128 + 4, 3),
        "attention_0": (128, 3 * 128 + 2 * 4, 1),
        "attention_1": (128, 128, 1),
    }
    # The first query sees only itself, and no query sees a later key.
    full = found["attention_1"][::8, ::8, 0]
    assert full[0, 0] == 0 and (full[np.triu_indices(16, 1)] == 255).all()
