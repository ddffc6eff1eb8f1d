"""The kinds of heads to compare, as keys of a configuration.

A kind is a name, with options after colons: `nearest:routing_heads=2:routing_layers=1:keys=56`. The
heads of a kind see about as many keys per query as those of the others: a window of the query's
block and the previous one, or the members of a cluster before the query, half of its window.
"""

import math

from rt_keras import config_files

MEANINGS = {
    "full": "every value before the query",
    "local": "the query's block and the previous one",
    "nearest": "local heads, and heads that see the last members of the query's nearest cluster",
    "balanced": "local heads, and heads whose clusters choose their members from the whole image, "
    "which reveals the future",
    "random": "local heads, and heads that see random members",
    "local_routing": "half of the keys in a window and half in a cluster, under one softmax",
    "pixel_cnn": "a gated PixelCNN of as many weights",
    "png": "PNG, as a codec",
    "webp": "lossless WebP, as a codec",
}
CODECS = ("png", "webp")
# Number of heads in a layer.
HEADS = 4
# Kinds whose heads are divided, and the section of the configuration for the heads that route.
_DIVIDED = {"nearest": "routing", "balanced": "routing", "random": "random"}
OPTIONS = ("routing_heads", "routing_layers", "keys")


def parse(name):
    """Returns the kind in a name, and the dictionary of its options.

    Raises:
        ValueError: if there is no such kind or option.

    >>> parse("nearest:routing_heads=2")
    ('nearest', {'routing_heads': 2})
    """
    kind, *assignments = name.split(":")
    if kind not in MEANINGS:
        raise ValueError(f"--kinds must be among {', '.join(MEANINGS)}. Received: {name}")
    options = dict(map(config_files.parse_assignment, assignments))
    allowed = {"local": ("keys",), "local_routing": OPTIONS}.get(kind, ())
    allowed = OPTIONS if kind in _DIVIDED else allowed
    for option, value in options.items():
        if option not in allowed:
            raise ValueError(
                f"{kind} has the options {', '.join(allowed) or 'none'}. Received: {name}"
            )
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{option} must be an integer above 0. Received: {name}")
    return kind, options


def head_keys(name, heads, layers, keys, length):
    """Returns the keys of a configuration for the heads of a kind.

    Args:
        name: string, a kind and its options.
        heads: int, number of heads in a layer.
        layers: int, number of layers.
        keys: int, average number of keys that a query sees, unless the options set it.
        length: int, number of values in an image.

    Returns:
        A dictionary.

    Raises:
        ValueError: if the options do not fit.

    >>> head_keys("local", 4, 2, 84, length=784)
    {'model.local.num_heads': 4, 'model.local.block_size': 56}
    """
    kind, options = parse(name)
    keys = options.get("keys", keys)
    routing_heads = options.get("routing_heads", max(1, heads // 2) if kind in _DIVIDED else heads)
    routing_layers = options.get("routing_layers", layers)
    for option, value, most in (
        ("routing_heads", routing_heads, heads),
        ("routing_layers", routing_layers, layers),
    ):
        if value > most:
            raise ValueError(f"{option} must be at most {most}. Received: {name}")
    size = block_size(keys, length)
    local = {"model.local.num_heads": heads - routing_heads, "model.local.block_size": size}
    first_layer = layers - routing_layers
    if kind in _DIVIDED:
        return local | _divided(kind, routing_heads, first_layer, keys, length)
    if kind == "local_routing":
        return local | _joined(routing_heads, first_layer, keys, length)
    if kind == "full":
        return {"model.full.num_heads": heads, **local, "model.local.num_heads": 0}
    return {**local, "model.local.num_heads": heads}


def _divided(kind, num_heads, first_layer, keys, length):
    section = f"model.{_DIVIDED[kind]}"
    found = {
        f"{section}.num_heads": num_heads,
        f"{section}.num_clusters": max(1, round(length / (2 * keys))),
        f"{section}.window_size": 2 * keys,
        f"{section}.first_layer": first_layer,
    }
    if kind != "random":
        found[f"{section}.assignment"] = kind
    return found


def _joined(num_heads, first_layer, keys, length):
    return {
        "model.local_routing.num_heads": num_heads,
        "model.local_routing.block_size": block_size(keys / 2, length),
        "model.local_routing.num_clusters": max(1, round(length / keys)),
        "model.local_routing.window_size": keys,
        "model.local_routing.first_layer": first_layer,
    }


def block_size(keys, length):
    """Returns the block size with which a query sees about so many keys in two blocks.

    >>> block_size(84, 784)
    56
    """
    sizes = [size for size in range(1, length + 1) if length % size == 0]
    return min(sizes, key=lambda size: abs(math.log(1.5 * size / keys)))
