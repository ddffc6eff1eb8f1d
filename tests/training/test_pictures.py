import keras
import numpy as np

from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention, RoutingHeads
from rt_keras.training import pictures


def test_centroids_are_red_where_they_agree_and_blue_where_they_are_opposite():
    first = [[2.0, 0.0], [-3.0, 0.0], [0.0, 1.0]]
    second = [[1.0, 0.0]] * 3
    picture = pictures.draw_centroids(np.array([first, second], "float32"))
    # 128 pixels or a few more for 3 clusters, twice, and the gap.
    assert picture.shape == (129, 2 * 129 + 4, 3) and picture.dtype == np.uint8
    red, white, blue = [255, 0, 0], [255, 255, 255], [0, 0, 255]
    middles = [21, 64, 107]
    wanted = [[red, blue, white], [blue, red, white], [white, white, red]]
    np.testing.assert_array_equal(picture[np.ix_(middles, middles)], wanted)
    assert (picture[:, 133:] == red).all()


def test_weights_are_darker_the_more_they_are():
    weights = np.zeros([1, 128, 128], "float32")
    weights[0, 3, 0], weights[0, 3, 1] = 0.25, 1.0
    picture = pictures.draw_weights(weights)
    assert picture.shape == (128, 128, 1)
    np.testing.assert_array_equal(picture[3, :3, 0], [128, 0, 255])
    assert (np.delete(picture, 3, axis=0) == 255).all()


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
