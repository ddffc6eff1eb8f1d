"""Summary of the attention of an adapted model, layer by layer."""

import dataclasses
import itertools
import math

import tensorflow as tf

from rt_keras.data.tables import table
from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.key_set import KeySet
from rt_keras.layers.key_sets.window import Window

# Options left out of descriptions: those of any layer, and the number of heads, which comes first.
OF_LAYERS = ("name", "dtype", "trainable", "num_heads")
# Lengths at which caches are measured. They exceed all windows.
LENGTHS = 2**16, 2**17

COLUMNS = {
    "layers": "",
    "heads": "",
    "keys in\nthe window": ",",
    "first\ntokens": ",",
    "other\nkeys": ",",
    "cache\n(bytes)": ",",
    "cache a\ntoken (bytes)": ",",
    "": "",
}


@dataclasses.dataclass(frozen=True)
class AdaptedHeads:
    """A head group of an attention layer.

    Attributes:
        heads: string, number and kind of the heads, with their options.
        window: int, maximum number of keys that a query reads in its window; None if unbounded.
        first_tokens: int, number of first tokens that it also reads.
        others: int, maximum number of other keys; None if it grows with the text or depends on it.
    """

    heads: str
    window: int | None
    first_tokens: int
    others: int | None


@dataclasses.dataclass(frozen=True)
class AdaptedLayer:
    """An attention layer of an adapted model.

    Attributes:
        name: string, path of the layer.
        head_groups: tuple of `AdaptedHeads`.
        cache_bytes: int, bytes of a text's cache that do not depend on its length; None if the
            layer cannot decode with a cache.
        cache_bytes_per_token: int, additional bytes for each token; None if there is no cache.
        left_alone: string, reason why the layer keeps its original heads; "" if they were replaced.
    """

    name: str
    head_groups: tuple
    cache_bytes: int | None
    cache_bytes_per_token: int | None
    left_alone: str


@dataclasses.dataclass(frozen=True, repr=False)
class Adaptation:
    """The keys that the attention of an adapted model reads, and its cache; `print` shows a table.

    Attributes:
        layers: tuple of `AdaptedLayer`, one for each attention layer.

    >>> import keras_hub, rt_keras
    >>> from rt_keras.layers import LocalHeads
    >>> sizes = {"hidden_dim": 8, "intermediate_dim": 8, "max_sequence_length": 64}
    >>> model = keras_hub.models.GPT2Backbone(20, 2, 2, **sizes)
    >>> adaptation = rt_keras.adapt(model, [LocalHeads(2, block_size=4)], layers=[1]).adaptation
    >>> adaptation.layers[1].head_groups[0].window
    8
    >>> adaptation.layers[0].left_alone
    'not among the chosen layers'
    """

    layers: tuple

    def __repr__(self):
        rows = []
        for numbers, layer in _runs(self.layers):
            others = layer.cache_bytes, layer.cache_bytes_per_token, layer.left_alone
            for group in layer.head_groups:
                rows.append((numbers, *vars(group).values(), *others))
                numbers, others = "", (None, None, "")
        return table(COLUMNS, rows)


def adaptation_of(attention, chosen):
    """Summarizes attention layers.

    Args:
        attention: list of `AdaptedAttention`.
        chosen: set of int, numbers of the layers whose heads were replaced.

    Returns:
        An `Adaptation`.
    """
    layers, caches = [], {}
    for number, layer in enumerate(attention):
        groups = tuple(_read_by(group, layer.causal) for group in layer.head_groups)
        # Most layers are equal, and measuring a cache takes a while.
        sizes = groups, layer.query_dense.units, layer.value_dense.units
        if sizes not in caches:
            caches[sizes] = _cache_of(layer)
        left_alone = "" if number in chosen else _reason(layer)
        layers.append(AdaptedLayer(layer.path, groups, *caches[sizes], left_alone))
    return Adaptation(tuple(layers))


def described(group):
    """Describes a head group by its number of heads, its class and its non-default options.

    Args:
        group: `HeadGroup`.

    Returns:
        A string.

    >>> from rt_keras.layers import Heads, LocalHeads
    >>> described(LocalHeads(9, block_size=256))
    '9 heads of Window(block_size=256)'
    >>> from rt_keras.layers.key_sets import Persistent, Window
    >>> described(Heads(9, [Window(256), Persistent(4)]))
    '9 heads of Window(block_size=256) + Persistent(num_persistent_keys=4)'
    """
    if isinstance(group, Heads):
        sets = " + ".join(map(repr, group.key_sets))
        shared = " with share_qk=True" if group.share_qk else ""
        return f"{group.num_heads} heads of {sets}{shared}"
    config = group.get_config().items()
    options = [f"{x}={value}" for x, value in config if x not in OF_LAYERS and value is not None]
    return f"{group.num_heads} {group.kind}({', '.join(options)})"


def _read_by(group, causal):
    """Returns the `AdaptedHeads` of a head group."""
    # The keys read by the sets of each class, other classes last.
    counts = {Window: [], FirstTokens: [], KeySet: []}
    for key_set in getattr(group, "key_sets", ()):
        kind = next(cls for cls in counts if isinstance(key_set, cls))
        counts[kind].append(key_set.keys_read(causal))
    if not hasattr(group, "key_sets"):
        counts[KeySet].append(None)
    sums = (None if None in numbers else sum(numbers) for numbers in counts.values())
    return AdaptedHeads(described(group), *sums)


def _cache_of(layer):
    """Returns the fixed bytes of a layer's cache and the bytes per token, or None for both."""
    if not (layer.causal and layer.cached_decoding):
        return None, None
    short = _bytes_of_cache(layer, LENGTHS[0])
    if all(group.abilities.bounded for group in layer.head_groups):
        return short, 0
    long = _bytes_of_cache(layer, LENGTHS[1])
    per_token = (long - short) // (LENGTHS[1] - LENGTHS[0])
    return short - LENGTHS[0] * per_token, per_token


def _bytes_of_cache(layer, length):
    traced = tf.function(
        lambda: layer.new_cache(1, length), autograph=False
    ).get_concrete_function()
    shapes = tf.nest.flatten(traced.structured_outputs)
    return sum(math.prod(x.shape) * x.dtype.size for x in shapes)


def _reason(layer):
    """Returns the reason why the heads of a layer were not replaced."""
    window = layer.head_groups[0].key_sets[0].keys_read(layer.causal)
    return "not among the chosen layers" if window is None else "has its own window"


def _runs(layers):
    """Groups consecutive layers that differ only in their names.

    Yields:
        Tuples of a string, such as "0 to 3", and the first of the layers.
    """
    alike = itertools.groupby(
        enumerate(layers), key=lambda pair: dataclasses.replace(pair[1], name="")
    )
    for _, run in alike:
        (first, layer), *rest = run
        yield (f"{first} to {rest[-1][0]}" if rest else str(first)), layer
