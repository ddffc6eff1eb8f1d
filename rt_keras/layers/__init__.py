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

from rt_keras.first_use import import_saved_classes, names_on_first_use
from rt_keras.keras_internals import before_first_lookup

if keras.config.backend() != "tensorflow":
    raise ImportError(
        "rt_keras needs the TensorFlow backend of Keras. Received: "
        f"{keras.config.backend()!r}. Set the environment variable KERAS_BACKEND=tensorflow."
    )

# The public names, with the modules that define them.
_MODULES = {
    "CausalClusteredHeads": "kinds",
    "CentroidHeads": "centroid_heads",
    "ClusteredHeads": "clustered_heads",
    "Dropout": "dropout",
    "FeedForward": "feed_forward",
    "FullHeads": "kinds",
    "GatedDeltaHeads": "gated_delta_heads",
    "HeadGroup": "head_group",
    "Heads": "heads",
    "LSHHeads": "lsh_heads",
    "LocalHeads": "kinds",
    "LocalRoutingHeads": "kinds",
    "MultiHeadAttention": "multi_head_attention",
    "RandomHeads": "random_heads",
    "RoutingHeads": "kinds",
    "RoutingMemoryHeads": "kinds",
    "SinusoidalPositions": "sinusoidal_positions",
    "SpecAugment": "spec_augment",
    "StridedHeads": "kinds",
    "TokenDropout": "token_dropout",
    "TokenShift": "token_shift",
    "TransformerBlock": "transformer_block",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)

before_first_lookup("rt_keras", import_saved_classes)
