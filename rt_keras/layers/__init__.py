"""Keras layers: head groups, attention that combines them, and Transformer blocks.

From the top down, with the file for each kind of extension:

- `transformer_block.py`: attention and a feed-forward network, each with a residual.
  `block_layers.py` makes the layers that a user gives in place of the package's.
- `multi_head_attention.py`: projects inputs to heads, lets each group attend and merges, also with
  a cache. `split_heads.py` gives each head group its heads.
- `heads.py`: head groups that attend to a union of sets of keys. A kind of heads is a file
  `..._heads.py` that declares its sets, or a `HeadGroup` that calls a separate op.
- `key_sets/`: the sets of keys, one per file. Most new ways to select the keys of a query are a new
set.
- `cached_heads.py`: decoding of heads with a cache.
"""

import keras

from rt_keras.layers.causal_clustered_heads import CausalClusteredHeads
from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.clustered_heads import ClusteredHeads
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.feed_forward import FeedForward
from rt_keras.layers.full_heads import FullHeads
from rt_keras.layers.gated_delta_heads import GatedDeltaHeads
from rt_keras.layers.head_group import HeadGroup
from rt_keras.layers.heads import Heads
from rt_keras.layers.local_heads import LocalHeads
from rt_keras.layers.local_routing_heads import LocalRoutingHeads
from rt_keras.layers.lsh_heads import LSHHeads
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.layers.random_heads import RandomHeads
from rt_keras.layers.routing_heads import RoutingHeads
from rt_keras.layers.routing_memory_heads import RoutingMemoryHeads
from rt_keras.layers.sinusoidal_positions import SinusoidalPositions
from rt_keras.layers.spec_augment import SpecAugment
from rt_keras.layers.strided_heads import StridedHeads
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
