"""Sets of keys that a query attends to. `rt_keras.layers.Heads` are unions of them."""

from rt_keras.layers.key_sets.block_and_centroids import BlockAndCentroids
from rt_keras.layers.key_sets.cluster import Cluster
from rt_keras.layers.key_sets.everything import Everything
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.key_sets.persistent import Persistent
from rt_keras.layers.key_sets.remembered import Remembered
from rt_keras.layers.key_sets.routed_blocks import RoutedBlocks
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.key_sets.strided import Strided
from rt_keras.layers.key_sets.window import LastKeys, Window

__all__ = [
    "BlockAndCentroids",
    "Cluster",
    "Everything",
    "FirstTokens",
    "KeySet",
    "LastKeys",
    "Persistent",
    "Remembered",
    "RoutedBlocks",
    "SelectedBlocks",
    "Strided",
    "Window",
]
