"""Tiny models and checks that every model must pass."""

import keras
import numpy as np

from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerBackbone

VOCABULARY = 20


def groups(max_relative_distance=3, **routing):
    """One local head and one routing head."""
    return [
        LocalHeads(1, 4, max_relative_distance=max_relative_distance),
        RoutingHeads(1, 3, 4, max_relative_distance=max_relative_distance, **routing),
    ]


def make_backbone(cls=RoutingTransformerBackbone, **changes):
    """Two blocks; weights and load biases are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    settings = {
        "vocabulary_size": VOCABULARY,
        "num_layers": 2,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": groups(),
    }
    backbone = cls(**{**settings, **changes})
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    for heads in routing_heads(backbone):
        heads.load_bias.assign(0.3 * rng.normal(size=heads.load_bias.shape))
    return backbone


def routing_heads(backbone):
    return [
        group
        for block in backbone.transformer_blocks
        for group in block.attention.head_groups
        if isinstance(group, RoutingHeads)
    ]


def random_tokens(batch, length, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, [batch, length], dtype="int32")


def inputs(tokens, lengths=None):
    """The inputs of models; rows of other `lengths` are padded at the right."""
    tokens = np.asarray(tokens, "int32")
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else np.asarray(lengths)
    mask = np.arange(tokens.shape[1]) < lengths[:, None]
    return {"token_ids": tokens * mask, "padding_mask": mask.astype("int32")}


def largest_difference(a, b):
    return float(np.max(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64"))))


def leak(model, length=24):
    """The largest change of outputs up to i when the tokens after i change."""
    tokens = random_tokens(3, length)
    expected = np.asarray(model(inputs(tokens)))
    leaks = []
    for i in (0, 5, 12, length - 2):
        changed = tokens.copy()
        changed[:, i + 1 :] = random_tokens(3, length, seed=i + 1)[:, i + 1 :]
        found = np.asarray(model(inputs(changed)))
        assert largest_difference(found[:, i + 1 :], expected[:, i + 1 :]) > 1e-2
        leaks.append(largest_difference(found[:, : i + 1], expected[:, : i + 1]))
    return max(leaks)
