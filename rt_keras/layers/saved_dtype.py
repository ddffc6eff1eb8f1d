"""The dtype that the config of a layer has when layers inside it are quantized."""

import keras

from rt_keras.keras_internals import all_layers_of


def saved_dtype(layer):
    """The `dtype` for `get_config` of a layer that makes layers of its own.

    `quantize` gives each dense layer inside a dtype policy of its own. The config keeps them by
    the paths of those layers, so that the layer that is loaded is quantized in the same places.

    Args:
        layer: a `keras.layers.Layer` that passes its `dtype_policy` on to the layers that it makes.

    Returns:
        A serialized dtype policy: the layer's, or a `DTypePolicyMap` if it is quantized.

    >>> from rt_keras.layers import FullHeads, MultiHeadAttention
    >>> layer = MultiHeadAttention([FullHeads(1)], key_dim=2, name="attention")
    >>> layer.build([1, 4, 2], [1, 4, 2])
    >>> saved_dtype(layer)["class_name"]
    'DTypePolicy'
    >>> layer.query_dense.quantize("int8")
    >>> list(saved_dtype(layer)["config"]["policy_map"])
    ['attention/query']
    """
    policy = layer.dtype_policy
    if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        inside = all_layers_of(layer)
        quantized = {x.path: x.dtype_policy for x in inside if x.quantization_mode is not None}
        if quantized:
            policy = keras.dtype_policies.DTypePolicyMap(policy, quantized)
    return keras.dtype_policies.serialize(policy)
