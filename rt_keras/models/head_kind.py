"""What the kinds of heads share: the base class of their sections of a configuration."""

import contextlib
import dataclasses
import operator
import random

import tensorflow as tf

from rt_keras.keys import AT_LEAST_0, AT_LEAST_1, key
from rt_keras.layers.declared_options import options_of_class, options_of_kind

# The kind, and the number of heads, of a model that says nothing of heads.
DEFAULT_HEADS = "local_routing", 4

# The values of options that are of the places in one sequence, in attention to another.
BETWEEN_SEQUENCES = {
    "max_relative_distance": None,
    "relative_positions": "learned",
    "num_persistent_keys": None,
    "share_qk": False,
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a model heads are.

    Args:
        block: int, number of the block, from 0.
        attention: "decoder" or "encoder" for self-attention, "cross" for a decoder's attention to
            an encoder.
        grid: tuple of ints, the number of local blocks along each dimension of an image; None for
            sequences.
    """

    block: int
    attention: str = "decoder"
    grid: tuple | None = None


@dataclasses.dataclass
class HeadKind:
    """What all kinds of heads share. Keys that a kind adds are arguments of its `layer`."""

    num_heads: int | None = key(
        None,
        "heads of this kind in each block; null for none, but where all are null, "
        f"{DEFAULT_HEADS[1]} of {DEFAULT_HEADS[0]}",
        AT_LEAST_0,
    )

    # Name of the section, and the head group.
    name = None
    layer = None
    # The keys of which a sequence must be at least as long.
    windows = ()
    # The keys that are for a causal_lm alone, and whether a decoder's heads can see an encoder.
    of_causal_lm = ()
    attends_across = True

    def refuse(self, key, reason):
        """Raises the ValueError that a key has a wrong value."""
        raise ValueError(f"model.{self.name}.{key} is {getattr(self, key)}; {reason}")

    def refuse_all(self, keys, reason):
        """Raises a ValueError if one of some keys has another value than its default."""
        for field in dataclasses.fields(self):
            if field.name in keys and getattr(self, field.name) != field.default:
                default = {None: "null", False: "false"}.get(field.default, field.default)
                self.refuse(field.name, f"{reason} it must be {default}")

    def check(self, model):
        """Raises a ValueError where values do not go together; for kinds that have heads.

        What the layer refuses is refused in its words. A kind adds what depends on the model.

        Args:
            model: the `ModelSection` that the section is in.
        """
        arguments = {**self.arguments(Place(0)), "num_heads": self.num_heads or 1}
        try:
            with _without_trace():
                # With a name, as Keras would count one without.
                self.layer(**arguments, name=self.name)
        except ValueError as error:
            reason = str(error).removeprefix(f"{self.layer.__name__}: ")
            raise ValueError(f"model.{self.name}: {reason}") from error
        if model.kind == "image_lm" or model.dialect is not None:
            # Such models have learnt relative positions alone.
            self.refuse_all(("relative_positions",), "with an image_lm or a model.dialect")
        if model.kind != "causal_lm":
            self.refuse_all(self.of_causal_lm, "outside a causal_lm")

    def check_attentions(self, attentions):
        """Raises a ValueError where a model would ignore values; for kinds that have heads.

        Args:
            attentions: tuple of those that the model has, see `Place`.
        """

    def has_values(self):
        """Whether any value but the number of heads differs from its default."""
        return self != type(self)(num_heads=self.num_heads)

    def check_length(self, name, length):
        """Raises a ValueError where sequences are too short; for kinds that have heads.

        Args:
            name: string, what sets their length.
            length: int.
        """
        for window in self.windows:
            size = operator.attrgetter(window)(self)
            if size is not None and size > length:
                raise ValueError(
                    f"model.{self.name}.{window} is {size} and {name} only {length}; a sequence "
                    "must be at least as long as one window"
                )

    def check_cross_lengths(self, length, encoder_length):
        """Raises a ValueError where a decoder cannot attend to an encoder; for kinds with heads.

        Args:
            length: int, positions of the decoder.
            encoder_length: int, positions of the encoder.
        """

    def replacement(self, place):
        """The name of the kind that has these heads where this one cannot; None where it can."""
        return "full" if place.attention == "cross" and not self.attends_across else None

    def arguments(self, place):
        """The arguments of the layer in a place, as a dictionary."""
        arguments = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if place.attention == "cross":
            arguments |= {k: v for k, v in BETWEEN_SEQUENCES.items() if k in arguments}
        return arguments


@contextlib.contextmanager
def _without_trace():
    """Layers made in this context change nothing outside it.

    Their states of random numbers would start TensorFlow, which the strategy of several workers
    must do, and draw their seeds from Python's random numbers.
    """
    state = random.getstate()
    try:
        with tf.Graph().as_default():
            yield
    finally:
        random.setstate(state)


@dataclasses.dataclass
class WithReach(HeadKind):
    """Kinds with relative positions, or whose layer says that they have none."""

    max_relative_distance: int | None = key(
        None, "reach of the relative positions, null for none", AT_LEAST_1
    )


class FromBlock(HeadKind):
    """Kinds that the first blocks of a model may lack; they have a key `first_layer`."""

    def check(self, model):
        super().check(model)
        if self.first_layer > model.num_layers:
            self.refuse("first_layer", f"it must be at most model.num_layers, {model.num_layers}")

    def replacement(self, place):
        return "local" if place.block < self.first_layer else super().replacement(place)

    def arguments(self, place):
        arguments = super().arguments(place)
        del arguments["first_layer"]
        if "share_qk" in arguments:
            arguments["share_qk"] &= place.attention == "decoder"
        return arguments


def first_layer():
    """The key of `FromBlock`."""
    return key(
        0, "first block with these heads; blocks before it have local ones instead", AT_LEAST_0
    )


def with_keys_of(layer, keys, **defaults):
    """A decorator of the section of a kind of heads: its keys are options of the layer's sets.

    Args:
        layer: the head group, a kind that declares its sets of keys.
        keys: string, the names of the options, in the order of the section.
        **defaults: the defaults that a configuration has instead of the layer's own.
    """

    def decorated(cls):
        options = options_of_kind(layer)
        annotations = {}
        for name in keys.split():
            annotations[name], field = _key(options[name], defaults.get(name))
            setattr(cls, name, field)
        cls.__annotations__ = annotations | cls.__annotations__
        cls.layer = layer
        return dataclasses.dataclass(cls)

    return decorated


def section_of_set(key_set, without):
    """The section of a set of keys in a union: its options, null for one that must be given.

    Args:
        key_set: subclass of `KeySet`.
        without: names of options that are no keys.

    Returns:
        A dataclass.
    """
    fields = []
    for name, option in options_of_class(key_set).items():
        if option.field.metadata and name not in without:
            if option.field.default is dataclasses.MISSING:
                option = option._replace(type=option.type | None)
            fields.append((name, *_key(option)))
    doc = f"The set of keys of `rt_keras.layers.key_sets.{key_set.__name__}`."
    return dataclasses.make_dataclass(key_set.__name__, fields, namespace={"__doc__": doc})


def _key(option, default=None):
    """The type and the field of a key that is an option of heads."""
    if default is None and option.field.default is not dataclasses.MISSING:
        default = option.field.default
    return option.type, key(default, **option.field.metadata)
