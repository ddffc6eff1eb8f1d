"""Keras layers: head groups, attention that combines them, and Transformer blocks.

From the top down, with the file for each kind of extension:

- `transformer_block.py`: attention and a feed-forward network, each with a residual.
  `block_layers.py` makes the layers that a user gives in place of the package's.
- `multi_head_attention.py`: projects inputs to heads, lets each group attend and merges, also with
  a cache. `split_heads.py` gives each head group its heads.
- `heads.py`: head groups that attend to a union of sets of keys. `kinds.py` lists the kinds that
  are such unions; other kinds are a `HeadGroup` in a file `..._heads.py` that calls an op.
- `key_sets/`: the sets of keys, one per file. Most new ways to select the keys of a query are a new
set.
"""

import keras

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.clustered_heads import ClusteredHeads
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.gated_delta_heads import GatedDeltaHeads
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.heads import Heads
from rt_keras.layers.kinds import (
    CausalClusteredHeads,
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    RoutingHeads,
    RoutingMemoryHeads,
    StridedHeads,
)
from rt_keras.layers.lsh_heads import LSHHeads
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.random_heads import RandomHeads
from rt_keras.layers.sinusoidal_positions import SinusoidalPositions
from rt_keras.layers.spec_augment import SpecAugment
from rt_keras.layers.token_dropout import TokenDropout
from rt_keras.layers.token_shift import TokenShift
from rt_keras.layers.transformer_block import TransformerBlock

if keras.config.backend() != "tensorflow":
    raise ImportError(
        "rt_keras needs the TensorFlow backend of Keras. Received: "
        f"{keras.config.backend()!r}. Set the environment variable KERAS_BACKEND=tensorflow."
    )

__all__ = [
    "CausalClusteredHeads",
    "CentroidHeads",
    "ClusteredHeads",
    "Dropout",
    "FeedForward",
    "FullHeads",
    "GatedDeltaHeads",
    "HeadGroup",
    "Heads",
    "LSHHeads",
    "LocalHeads",
    "LocalRoutingHeads",
    "MultiHeadAttention",
    "RandomHeads",
    "RoutingHeads",
    "RoutingMemoryHeads",
    "SinusoidalPositions",
    "SpecAugment",
    "StridedHeads",
    "TokenDropout",
    "TokenShift",
    "TransformerBlock",
]
