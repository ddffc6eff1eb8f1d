"""Configurations of layers that hold other layers."""

import keras

from rt_keras.keras_internals import all_layers_of


def with_layers(config, *names):
    """Deserializes the given entries of a configuration for `from_config`.

    Args:
        config: dictionary.
        *names: strings, arguments that are layers, lists of layers, or None.

    Returns:
        A dictionary.

    >>> from rt_keras.layers import FullHeads, MultiHeadAttention
    >>> config = MultiHeadAttention([FullHeads(3)]).get_config()
    >>> with_layers(config, "head_groups")["head_groups"][0].num_heads
    3
    """
    deserialize = keras.saving.deserialize_keras_object
    return {**config, **{name: deserialize(config.get(name)) for name in names}}


def saved_dtype(layer):
    """Returns the `dtype` for `get_config` of a layer that creates other layers.

    `quantize` gives each inner dense layer a separate dtype policy. The config stores these
    policies by the paths of the layers, so a loaded layer is quantized in the same places.

    Args:
        layer: a `keras.layers.Layer` that passes its `dtype_policy` to the layers that it creates.

    Returns:
        A serialized dtype policy: that of the layer, or a `DTypePolicyMap` if it is quantized.

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
