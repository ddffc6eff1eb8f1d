"""The kinds of heads and their options, read off the signatures of the package.

A new kind of `rt_keras.layers` is in the suite without a line here. An option whose values cannot
be told from its default needs a line in `VALUES`.
"""

import functools
import inspect
import itertools
import random

import numpy as np
import pytest

from rt_keras import layers as exported
from rt_keras.layers import Heads as Union
from rt_keras.layers import key_sets

HEADS, DEPTH, VALUE_DEPTH, BATCH, LENGTH = 2, 6, 5, 2, 21
# What an argument without a default gets.
SIZE = 4
# An option of the attention that the heads are in: heads that share keys and values.
GROUPED = "num_key_value_heads"

# Values of options whose defaults do not tell them.
VALUES = {
    "assignment": ["balanced"],
    "eviction": ["random", "least_attended", "merged"],
    "relative_positions": ["sinusoidal"],
    "routed_key": ["key"],
    "block_size": [1, 2, 3],
    GROUPED: [1],
    "grid": [(2, 2)],
    "key_block_size": [3, SIZE],
    "look_back": [0, 2],
    "max_relative_distance": [3],
    "seed": [1],
    "num_buckets": [2, 6],
    "num_persistent_keys": [2],
    "num_first_tokens": [1, 9],
    "segment_size": [1, 2, 8],
    "num_nodes": [1, 2],
    "deviation_weight": [0.0, 2.0],
}


def ComposedHeads(
    num_heads,
    block_size,
    stride,
    num_first_tokens,
    look_back=1,
    sliding_window=None,
    max_relative_distance=None,
    relative_positions="learned",
    share_qk=False,
    **kwargs,
):
    """A union of sets of keys that is no kind of the package."""
    window = key_sets.Window(
        block_size,
        look_back,
        sliding_window,
        max_relative_distance=max_relative_distance,
        relative_positions=relative_positions,
    )
    strided, first = key_sets.Strided(stride), key_sets.FirstTokens(num_first_tokens)
    return Union(num_heads, [window, strided, first], share_qk, **kwargs)


def ContentBlocksHeads(
    num_heads,
    block_size,
    num_blocks,
    num_first_tokens,
    look_back=1,
    segment_size=8,
    deviation_weight=1.0,
    num_nodes=None,
    max_relative_distance=None,
    by_content=True,
    memory_length=None,
    **kwargs,
):
    """A window, the first tokens, and some of the blocks of similar or neighboring keys."""
    window = key_sets.Window(8, look_back, max_relative_distance=max_relative_distance)
    blocks = key_sets.SelectedBlocks(
        block_size,
        num_blocks,
        segment_size,
        by_content,
        deviation_weight,
        num_nodes,
        memory_length,
    )
    sets = [window, key_sets.FirstTokens(num_first_tokens), blocks]
    return Union(num_heads, sets, **kwargs)


def RecentBlocksHeads(num_heads, block_size, num_first_tokens, look_back=1, **kwargs):
    """A window, the first tokens, and some of the blocks of the 8 positions before the window."""
    options = {"look_back": look_back, "segment_size": SIZE, "memory_length": 8, **kwargs}
    return ContentBlocksHeads(num_heads, block_size, 2, num_first_tokens, **options)


def RoutedBlocksHeads(
    num_heads, block_size, num_blocks, look_back=1, by_content=True, kernel_size=4, **kwargs
):
    """A window, and the previous queries in it and in some blocks."""
    blocks = key_sets.RoutedBlocks(
        block_size, num_blocks, 8, by_content=by_content, kernel_size=kernel_size
    )
    return Union(num_heads, [key_sets.Window(8, look_back), blocks], **kwargs)


def PersistentKeysHeads(
    num_heads,
    num_clusters,
    window_size,
    num_persistent_keys,
    use_query_key_norm=True,
    share_qk=False,
    **kwargs,
):
    """The keys of a cluster and learned keys, to which the queries attend as to those."""
    cluster = key_sets.Cluster(
        num_clusters,
        window_size,
        "key",
        use_query_key_norm=use_query_key_norm,
        scaled=False,
    )
    sets = [cluster, key_sets.Persistent(num_persistent_keys)]
    return Union(num_heads, sets, share_qk, **kwargs)


# The unions that are no kind of the package.
UNIONS = (
    ComposedHeads,
    PersistentKeysHeads,
    ContentBlocksHeads,
    RecentBlocksHeads,
    RoutedBlocksHeads,
)
# Sizes of a kind's own: of what its window has left there is more than a query reads.
SIZES = {
    "ContentBlocksHeads": {"block_size": 1, "look_back": 0},
    "RecentBlocksHeads": {"block_size": 2, "look_back": 0},
    "RoutedBlocksHeads": {"block_size": 1, "look_back": 0},
}


@functools.cache
def layers():
    """The kinds of heads of the package and the unions that are none, by name."""
    bases = ("CentroidHeads", "Heads")
    names = [x for x in exported.__all__ if x.endswith("Heads") and x not in bases]
    kinds = [getattr(exported, name) for name in names]
    return {kind.__name__: kind for kind in (*kinds, *UNIONS)}


# The names of all kinds, as parameters of tests; those that take seconds are slow.
SLOW = (
    "ContentBlocksHeads",
    "RecentBlocksHeads",
    "RoutedBlocksHeads",
    "RoutingMemoryHeads",
)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in layers()]


def parameters(layer):
    """The options of a kind of heads, but the number of heads, by name."""
    named = inspect.signature(layer).parameters.values()
    return {x.name: x for x in named if x.kind is not x.VAR_KEYWORD and x.name != "num_heads"}


def required(layer):
    """What the suite gives every head group of a kind: what it must have, and small sizes."""
    arguments = {"num_heads": HEADS}
    for name, parameter in parameters(layer).items():
        is_large = type(parameter.default) is int and parameter.default > LENGTH
        if is_large or parameter.default is parameter.empty:
            arguments[name] = SIZE
    return {**arguments, **SIZES.get(layer.__name__, {})}


def options(layer):
    """All options of a head group, with a few values each that are not their defaults."""
    values = {name: values_of(parameter) for name, parameter in parameters(layer).items()}
    return {**values, GROUPED: VALUES[GROUPED]}


def values_of(parameter):
    """Values of an option other than its default."""
    default = parameter.default
    if parameter.name in VALUES:
        return [x for x in VALUES[parameter.name] if x != default]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, float):
        return [0.5]
    return [x for x in (1, 3) if x != default]


SINGLES = [
    (name, {option: value})
    for name, layer in layers().items()
    for option, values in options(layer).items()
    for value in values
]


def pairs():
    """All pairs of two options of all kinds, with values that each option takes in turn."""
    for name, layer in layers().items():
        turns = {
            option: itertools.cycle(values) for option, values in options(layer).items() if values
        }
        for a, b in itertools.combinations(turns, 2):
            yield name, {a: next(turns[a]), b: next(turns[b])}


def sets_of_values(name, size=3):
    """Sets of options of a kind that together have all values, those that are refused alone."""
    left = []
    for chosen in (chosen for kind, chosen in SINGLES if kind == name):
        if is_refused(name, *chosen.items()):
            yield chosen
        else:
            left.append(chosen)
    # Windows and clusters of one key hide what other options do, so values of 1 are joined last.
    left.sort(key=lambda chosen: str(*chosen.values()) == "1")
    yield from joined(name, left, size)


def joined(name, cases, size):
    """Joins options to few sets, none of which is refused.

    Args:
        name: name of the kind's layer.
        cases: list of dictionaries of options.
        size: int, maximum number of options in a set.

    Yields:
        Dictionaries of options.
    """
    while cases:
        found = cases[0]
        for chosen in cases[1:]:
            both = {**chosen, **found}
            if len(both) <= size and not is_refused(name, *both.items()):
                found = both
        cases = [chosen for chosen in cases if not chosen.items() <= found.items()]
        yield found


@functools.cache
def is_refused(name, *chosen):
    """Whether heads with pairs of an option and a value are refused when they are built."""
    return Heads(name, dict(chosen)).refusal is not None


def label(case):
    name, chosen = case
    return "-".join([name, *(f"{option}={value}" for option, value in chosen.items())])


class Heads:
    """A built head group of a kind with options, in float64, with weights that are not initial.

    Args:
        name: name of the kind's layer.
        chosen: dictionary of the options.
        dtype: defaults to float64.

    Attributes:
        group: the head group; None if it was refused.
        refusal: the ValueError; None if it was not.
        length, keys: positions of queries and of keys.
    """

    def __init__(self, name, chosen, dtype="float64"):
        self.layer, self.chosen = layers()[name], dict(chosen)
        self.key_heads = self.chosen.pop(GROUPED, HEADS)
        self.group = self.refusal = self.causal_outputs = None
        # Weights that are drawn and never trained, such as the rotations of hashes, get their seeds
        # from Python. Setting TensorFlow's would make it forget which kernels it has found.
        random.seed(0)
        arguments = {**required(self.layer), **self.chosen}
        self.length = self.keys = LENGTH
        if "grid" in chosen:
            self.length = self.keys = int(np.prod(chosen["grid"])) * arguments["block_size"]
        block_size, of_keys = arguments.get("block_size"), chosen.get("key_block_size")
        if of_keys not in (None, block_size):
            self.keys = -(-self.length // block_size) * of_keys
        try:
            group = self.layer(**arguments, dtype=dtype)
            group.build((None, HEADS, None, DEPTH), (None, self.key_heads, None, VALUE_DEPTH))
        except ValueError as error:
            self.refusal = error
            return
        self.group = move_weights(group)

    def is_named_in_refusal(self):
        """Whether the refusal names one of the options."""
        text = str(self.refusal)
        names = [*self.chosen, *(["key/value heads"] if self.key_heads != HEADS else [])]
        return any(name in text for name in names)

    def inputs(self, seed=0, length=None):
        """Random queries, values and keys, by their names in a call."""
        rng = np.random.default_rng(seed)
        length = length or self.length
        keys = length if self.keys == self.length else self.keys
        found = {
            "query": rng.normal(size=(BATCH, HEADS, length, DEPTH)),
            "value": rng.normal(size=(BATCH, self.key_heads, keys, VALUE_DEPTH)),
            "key": rng.normal(size=(BATCH, self.key_heads, keys, DEPTH)),
        }
        gates = self.group.num_gates(VALUE_DEPTH)
        if gates:
            found["gates"] = rng.normal(size=(BATCH, HEADS, length, gates))
        if self.group.share_qk:
            found["key"] = None
        return found


def move_weights(layer):
    """Gives a layer weights of which none is zero or special, and returns it.

    Weights of one name and shape get the same in every layer.
    """
    for weight in layer.weights:
        rng = np.random.default_rng([ord(letter) for letter in weight.name])
        if weight.trainable or weight.name == "load_bias":
            weight.assign(rng.normal(size=weight.shape))
    return layer


def without_effect(name):
    """The options of a kind that change nothing, alone or with one other option.

    Args:
        name: name of the kind's layer.

    Returns:
        A list of names.
    """
    all_options = options(layers()[name])
    silent = []
    for option, values in all_options.items():
        others = [{}, *({x: y} for x, of in all_options.items() if x != option for y in of)]
        if not any(_changes(name, option, value, other) for other in others for value in values):
            silent.append(option)
    return silent


def _changes(name, option, value, other):
    """Whether an option is refused, or gives another output or loss than there is without it."""
    without, heads = Heads(name, other), Heads(name, {**other, option: value})
    if without.refusal is not None or heads.refusal is not None:
        return heads.refusal is not None and without.refusal is None
    if without.length != heads.length or without.keys != heads.keys:
        return True
    return any(not np.array_equal(a, b) for a, b in zip(_found(without), _found(heads)))


def _found(heads):
    """The outputs and the loss of a training call."""
    group, inputs = heads.group, heads.inputs()
    causal = group.abilities.causal
    output = group(**inputs, use_causal_mask=causal, training=True)
    return np.asarray(output), float(sum(map(float, group.losses)))
