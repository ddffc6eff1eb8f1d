"""Models of one kind of heads, in which each of some sets of options has a layer and an output."""

import functools

import keras
import numpy as np

from rt_keras.layers import MultiHeadAttention
from tests.contract import kinds

FEATURES = 8


@functools.cache
def forms(name):
    """Sets of the options of a kind that together have all that are not refused, by name.

    Sequences have `LENGTH` positions. Of an option that is a number there is one value.
    """
    singles = []
    for option, values in kinds.options(kinds.layers()[name]).items():
        for value in values if isinstance(values[0], str) else values[:1]:
            heads = kinds.Heads(name, {option: value})
            if heads.refusal is None and heads.length == heads.keys == kinds.LENGTH:
                singles.append({option: value})
    # Keras's own attention shares no keys, and cannot be compared with a set that does.
    alone = [chosen for chosen in singles if kinds.GROUPED in chosen]
    others = [chosen for chosen in singles if kinds.GROUPED not in chosen]
    sets = [{}, *kinds.joined(name, others, size=12), *alone]
    return {_named(chosen) or "plain": chosen for chosen in sets}


def _named(chosen):
    return "-".join(f"{option}_{value}" for option, value in chosen.items())


def attention(kind, chosen, dtype, **kwargs):
    """A `MultiHeadAttention` of these heads alone."""
    chosen = dict(chosen)
    key_heads = chosen.pop(kinds.GROUPED, None)
    layer = kinds.layers()[kind]
    return MultiHeadAttention(
        [layer(**{**kinds.required(layer), **chosen}, dtype=dtype)],
        key_dim=kinds.DEPTH,
        value_dim=kinds.VALUE_DEPTH,
        num_key_value_heads=key_heads,
        dtype=dtype,
        **kwargs,
    )


def inputs(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(kinds.BATCH, kinds.LENGTH, FEATURES)).astype(dtype)}


def model_of(name, dtype):
    """A functional model: from `inputs` to a dictionary of outputs, one for each form of a kind."""
    return _model({form: (name, chosen) for form, chosen in forms(name).items()}, dtype)


def model_of_all(dtype):
    """A functional model with an output for each kind, without options."""
    return _model({name: (name, {}) for name in kinds.layers()}, dtype)


def _model(cases, dtype):
    """A functional model of a layer and an output for each of the cases: (kind, options)."""
    wide = "float64" if dtype == "float64" else "float32"
    x = keras.Input([kinds.LENGTH, FEATURES], dtype=wide, name="x")
    outputs = {}
    for form, (name, chosen) in cases.items():
        layer = attention(name, chosen, dtype, name=form)
        causal = layer.head_groups[0].abilities.causal
        outputs[form] = layer(x, x, use_causal_mask=causal)
    return kinds.move_weights(keras.Model({"x": x}, outputs))
