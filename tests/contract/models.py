"""Models of one kind of heads, in which each option alone has a layer and an output of its own."""

import keras
import numpy as np

from rt_keras.layers import MultiHeadAttention
from tests.contract.kinds import (
    BATCH,
    DEPTH,
    GROUPED,
    LENGTH,
    VALUE_DEPTH,
    Heads,
    layers,
    move_weights,
    options,
    required,
)

FEATURES = 8


def forms(name):
    """The options of a kind that are not refused, one by one, for sequences of `LENGTH`.

    Of an option that is a number there is one value.
    """
    found = {"plain": {}}
    for option, values in options(layers()[name]).items():
        for value in values if isinstance(values[0], str) else values[:1]:
            heads = Heads(name, {option: value})
            if heads.refusal is None and heads.length == heads.keys == LENGTH:
                found[f"{option}_{value}"] = {option: value}
    return found


def attention(kind, chosen, dtype, **kwargs):
    """A `MultiHeadAttention` of these heads alone."""
    chosen = dict(chosen)
    key_heads = chosen.pop(GROUPED, None)
    layer = layers()[kind]
    return MultiHeadAttention(
        [layer(**{**required(layer), **chosen}, dtype=dtype)],
        key_dim=DEPTH,
        value_dim=VALUE_DEPTH,
        num_key_value_heads=key_heads,
        dtype=dtype,
        **kwargs,
    )


def inputs(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(BATCH, LENGTH, FEATURES)).astype(dtype)}


def model_of(name, dtype):
    """A functional model: from `inputs` to a dictionary of outputs, one for each form of a kind."""
    wide = "float64" if dtype == "float64" else "float32"
    x = keras.Input([LENGTH, FEATURES], dtype=wide, name="x")
    outputs = {}
    for form, chosen in forms(name).items():
        layer = attention(name, chosen, dtype, name=form)
        causal = layer.head_groups[0].takes_causal_mask
        outputs[form] = layer(x, x, use_causal_mask=causal)
    return move_weights(keras.Model({"x": x}, outputs))
