"""Pictures of a model in training: how alike its centroids are, and where its heads look."""

import numpy as np

from rt_keras.analysis.attention_map import first_positions
from rt_keras.callbacks.centroid_ema import routing_heads

# Of all pairs of them a picture has one point each.
POSITIONS = 128
# The least width of a head in a picture, and the gap between two, in points.
WIDTH, GAP = 128, 4


def pictures(model, inputs):
    """Draws the centroids of each routing layer and the attention of each attention layer.

    Args:
        model: any model of `rt_keras.models`.
        inputs: a batch that it is called on, of which the first sequence counts.

    Returns:
        A dictionary of pictures, uint8 `[height, width, channels]`, the heads of a layer side by
        side:

        - `centroids_i`, for the i-th routing layer that is trained (as in `CentroidEMA`): see
          `draw_centroids`.
        - `attention_i`, for the i-th attention layer: the weights of the first 128 queries, from
          top to bottom, on the first 128 keys, from left to right; see `draw_weights`.
    """
    trained = [heads for heads in dict.fromkeys(routing_heads(model)) if heads.trainable]
    weights = first_positions(model, inputs, POSITIONS)["weights"]
    return {
        **{f"centroids_{i}": draw_centroids(x.centroids.numpy()) for i, x in enumerate(trained)},
        **{f"attention_{i}": draw_weights(x) for i, x in enumerate(weights)},
    }


def draw_centroids(centroids):
    """Draws how alike each two centroids of a head are: the cosine of the angle between them.

    Args:
        centroids: `[heads, clusters, depth]`.

    Returns:
        uint8 `[height, width, 3]`: red for 1, white for 0, blue for -1. Where clusters collapse, a
        square of one colour takes the place of a red diagonal on white.
    """
    norms = np.linalg.norm(centroids, axis=-1, keepdims=True)
    units = centroids / np.maximum(norms, np.finfo(centroids.dtype).tiny)
    cosines = np.clip(units @ units.swapaxes(1, 2), -1, 1)
    colours = [1 + np.minimum(cosines, 0), 1 - np.abs(cosines), 1 - np.maximum(cosines, 0)]
    return _side_by_side(np.stack(colours, axis=-1))


def draw_weights(weights):
    """Draws attention weights: the darker, the more.

    Args:
        weights: `[heads, queries, keys]`.

    Returns:
        uint8 `[height, width, 1]`.
    """
    # The square root makes small weights visible beside large ones.
    return _side_by_side(1 - np.sqrt(np.clip(weights, 0, 1))[..., None])


def _side_by_side(heads):
    """One picture, uint8, of several `[heads, height, width, channels]` with values of 0 to 1."""
    scale = -(-WIDTH // heads.shape[2])
    heads = heads.repeat(scale, axis=1).repeat(scale, axis=2)
    heads = np.pad(heads, [(0, 0), (0, 0), (0, GAP), (0, 0)], constant_values=0.5)
    return np.round(255 * np.concatenate(heads, axis=1)[:, :-GAP]).astype("uint8")
