"""Sets of keys that a query attends to. `rt_keras.layers.Heads` are unions of them."""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "BlockAndCentroids": "block_and_centroids",
    "Cluster": "cluster",
    "Everything": "everything",
    "FirstTokens": "first_tokens",
    "KeySet": "key_set",
    "LastKeys": "window",
    "Persistent": "persistent",
    "Remembered": "remembered",
    "RoutedBlocks": "routed_blocks",
    "SelectedBlocks": "selected_blocks",
    "Strided": "strided",
    "Window": "window",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
