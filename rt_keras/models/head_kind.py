"""Base classes of the head kinds, each of which is a section of a configuration."""

import contextlib
import dataclasses
import operator
import random

import tensorflow as tf

from rt_keras.keys import AT_LEAST_0, AT_LEAST_1, key, one_of
from rt_keras.layers.declared_options import options_of_class, options_of_kind

# Kind and number of heads of a model whose configuration gives no heads.
DEFAULT_HEADS = "local_routing", 4

# Values in cross-attention of options that depend on positions within one sequence.
BETWEEN_SEQUENCES = {
    "max_relative_distance": None,
    "relative_positions": "learned",
    "share_qk": False,
}


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of an attention layer in a model.

    Args:
        block: int, index of the block.
        attention: string, `"decoder"` or `"encoder"` for self-attention, `"cross"` for
            cross-attention. Defaults to `"decoder"`.
        grid: tuple of ints, number of local blocks along each dimension of an image. Defaults to
            None, for sequences.
    """

    block: int
    attention: str = "decoder"
    grid: tuple | None = None


@dataclasses.dataclass
class HeadKind:
    """Base class of head kinds. Keys that a kind adds are arguments of its `layer`."""

    num_heads: int | None = key(
        None,
        "heads of this kind in each block; null for none, or if all kinds are null, for "
        f"{DEFAULT_HEADS[1]} {DEFAULT_HEADS[0]} heads",
        AT_LEAST_0,
    )

    # Name of the section, and class of the head group.
    name = None
    layer = None
    # Keys whose values are lower bounds of the sequence length.
    windows = ()
    # Keys that only a causal_lm supports, and support for cross-attention.
    of_causal_lm = ()
    attends_across = True

    def refuse(self, key, reason):
        """Raises a ValueError about the value of a key."""
        raise ValueError(f"model.{self.name}.{key} is {getattr(self, key)}; {reason}")

    def refuse_all(self, keys, reason):
        """Raises a ValueError if the value of one of `keys` is not its default."""
        for field in dataclasses.fields(self):
            if field.name in keys and getattr(self, field.name) != field.default:
                default = {None: "null", False: "false"}.get(field.default, field.default)
                self.refuse(field.name, f"{reason} it must be {default}")

    def check(self, model):
        """Raises a ValueError if values of a kind with heads are incompatible.

        The layer checks its arguments. Subclasses add the checks that depend on the model.

        Args:
            model: the `ModelSection` that contains this section.
        """
        arguments = {**self.arguments(Place(0)), "num_heads": self.num_heads or 1}
        try:
            with _without_trace():
                # Named, since Keras counts unnamed layers.
                self.layer(**arguments, name=self.name)
        except ValueError as error:
            reason = str(error).removeprefix(f"{self.layer.__name__}: ")
            raise ValueError(f"model.{self.name}: {reason}") from error
        if model.kind == "image_lm":
            # These models support only learned relative positions.
            self.refuse_all(("relative_positions",), "with an image_lm")
        if model.kind != "causal_lm":
            self.refuse_all(self.of_causal_lm, "outside a causal_lm")

    def check_attentions(self, attentions):
        """Raises a ValueError if the model would ignore values of a kind with heads.

        Args:
            attentions: tuple of strings, the attentions of the model; see `Place`.
        """

    def has_values(self):
        """Returns True if a value other than the number of heads differs from its default."""
        return self != type(self)(num_heads=self.num_heads)

    def check_length(self, name, length):
        """Raises a ValueError if sequences are too short for a kind with heads.

        Args:
            name: string, name of the length in the error message.
            length: int, length of the sequences.
        """
        for window in self.windows:
            size = operator.attrgetter(window)(self)
            if size is not None and size > length:
                raise ValueError(
                    f"model.{self.name}.{window} is {size} but {name} is only {length}; a "
                    "sequence must be at least as long as one window"
                )

    def check_cross_lengths(self, length, encoder_length):
        """Raises a ValueError if a kind with heads does not support these cross-attention lengths.

        Args:
            length: int, number of positions of the decoder.
            encoder_length: int, number of positions of the encoder.
        """

    def replacement(self, place):
        """Returns the kind that replaces this one in a place, or None if it is supported there."""
        return "full" if place.attention == "cross" and not self.attends_across else None

    def arguments(self, place):
        """Returns the arguments of the layer in a place, as a dictionary."""
        arguments = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if place.attention == "cross":
            arguments |= {k: v for k, v in BETWEEN_SEQUENCES.items() if k in arguments}
        return arguments


@contextlib.contextmanager
def _without_trace():
    """Context in which creating layers has no side effects.

    Their random number generators would initialize TensorFlow, which a multi-worker strategy must
    do itself, and would draw their seeds from Python's random numbers.
    """
    state = random.getstate()
    try:
        with tf.Graph().as_default():
            yield
    finally:
        random.setstate(state)


@dataclasses.dataclass
class WithReach(HeadKind):
    """Base class of kinds with relative positions, or whose layer rejects them."""

    max_relative_distance: int | None = key(
        None, "largest distance of the relative positions, null for none", AT_LEAST_1
    )


class FromBlock(HeadKind):
    """Base class of kinds that the first blocks may lack.

    They have the keys `first_layer` and `lower_heads`.
    """

    def check(self, model):
        super().check(model)
        if self.first_layer > model.num_layers:
            self.refuse("first_layer", f"it must be at most model.num_layers, {model.num_layers}")
        if self.lower_heads == "local":
            return
        if self.first_layer == 0:
            self.refuse("lower_heads", "with first_layer 0, which has no lower blocks, use local")
        if model.kind != "causal_lm":
            self.refuse("lower_heads", "outside a causal_lm, use local")

    def replacement(self, place):
        if place.block < self.first_layer:
            return self.lower_heads
        return super().replacement(place)

    def arguments(self, place):
        arguments = super().arguments(place)
        del arguments["first_layer"], arguments["lower_heads"]
        if "share_qk" in arguments:
            arguments["share_qk"] &= place.attention == "decoder"
        return arguments


def first_layer():
    """Returns the key `first_layer` of `FromBlock`."""
    return key(
        0, "first block with these heads, from 0; earlier blocks use the lower_heads", AT_LEAST_0
    )


def lower_heads():
    """Returns the key `lower_heads` of `FromBlock`."""
    return key(
        "local", "kind of heads in the blocks before first_layer", one_of("local", "gated_delta")
    )


def with_keys_of(layer, keys, **defaults):
    """Decorates a head kind with keys for the options of its layer's sets of keys.

    Args:
        layer: class of the head group, which must declare its sets of keys.
        keys: string, names of the options separated by spaces, in the order of the section.
        **defaults: defaults of the configuration that differ from those of the layer.
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
    """Creates the section of a set of keys in a union. Required options default to null.

    Args:
        key_set: subclass of `KeySet`.
        without: names of options to leave out.

    Returns:
        A dataclass.
    """
    fields = []
    for name, option in options_of_class(key_set).items():
        if option.field.metadata and name not in without:
            if option.field.default is dataclasses.MISSING:
                option = option._replace(type=option.type | None)
            fields.append((name, *_key(option)))
    doc = f"Options of the set of keys `rt_keras.layers.key_sets.{key_set.__name__}`."
    return dataclasses.make_dataclass(key_set.__name__, fields, namespace={"__doc__": doc})


def _key(option, default=None):
    """Returns the type and the field of the key of an option."""
    if default is None and option.field.default is not dataclasses.MISSING:
        default = option.field.default
    return option.type, key(default, **option.field.metadata)
