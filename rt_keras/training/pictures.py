"""Pictures of a model in training: the similarity of its centroids, and its attention weights."""

import numpy as np

from rt_keras.analysis.attention_map import first_positions
from rt_keras.callbacks.centroid_ema import routing_heads

# A picture has one pixel or more for each pair of positions.
POSITIONS = 128
# The minimum width of a head in a picture, and the gap between two heads, in pixels.
WIDTH, GAP = 128, 4


def pictures(model, inputs):
    """Draws the centroids of each routing layer and the attention of each attention layer.

    Args:
        model: any model of `rt_keras.models`.
        inputs: a batch of inputs of the model. Only its first sequence is used.

    Returns:
        A dictionary of pictures, uint8 `[height, width, channels]`, with the heads of a layer side
        by side:

        - `centroids_i`, for the i-th trainable routing layer (as in `CentroidEMA`): see
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
    """Draws the cosine similarity of each pair of centroids of a head.

    Args:
        centroids: `[heads, clusters, depth]`.

    Returns:
        uint8 `[height, width, 3]`: red for 1, white for 0, blue for -1. Distinct clusters show a
        red diagonal on white; collapsed clusters show a square of one color.
    """
    norms = np.linalg.norm(centroids, axis=-1, keepdims=True)
    units = centroids / np.maximum(norms, np.finfo(centroids.dtype).tiny)
    cosines = np.clip(units @ units.swapaxes(1, 2), -1, 1)
    colours = [1 + np.minimum(cosines, 0), 1 - np.abs(cosines), 1 - np.maximum(cosines, 0)]
    return _side_by_side(np.stack(colours, axis=-1))


def draw_weights(weights):
    """Draws attention weights. Larger weights are darker.

    Args:
        weights: `[heads, queries, keys]`.

    Returns:
        uint8 `[height, width, 1]`.
    """
    # The square root makes small weights visible next to large ones.
    return _side_by_side(1 - np.sqrt(np.clip(weights, 0, 1))[..., None])


def _side_by_side(heads):
    """Joins pictures `[heads, height, width, channels]`, with values from 0 to 1, as uint8."""
    scale = -(-WIDTH // heads.shape[2])
    heads = heads.repeat(scale, axis=1).repeat(scale, axis=2)
    heads = np.pad(heads, [(0, 0), (0, 0), (0, GAP), (0, 0)], constant_values=0.5)
    return np.round(255 * np.concatenate(heads, axis=1)[:, :-GAP]).astype("uint8")
