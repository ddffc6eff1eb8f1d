"""Heads of one's own sets of keys in a configuration."""

import dataclasses

from rt_keras import layers
from rt_keras.keys import key, section
from rt_keras.layers import key_sets
from rt_keras.models.head_kind import FromBlock, first_layer, section_of_set

# In the order of a union. The sets that cannot be joined with others have kinds of their own.
KEY_SETS = {
    "window": key_sets.Window,
    "cluster": key_sets.Cluster,
    "remembered": key_sets.Remembered,
    "strided": key_sets.Strided,
    "first_tokens": key_sets.FirstTokens,
    "selected_blocks": key_sets.SelectedBlocks,
    "persistent": key_sets.Persistent,
}
# Options of attention to another sequence, where these heads are not.
NOT_OF_UNIONS = ("key_block_size",)


@dataclasses.dataclass
class _Union(FromBlock):
    """Heads that see a union of sets of keys: see `rt_keras.layers.Heads`.

    They have the sets of which a key is given, each a section of its own.
    """

    share_qk: bool = key(False, "whether queries are their own keys in a decoder's self-attention")
    first_layer: int = first_layer()

    name = "union"
    layer = layers.Heads
    windows = ("window.block_size", "cluster.window_size")
    # Sets are of one sequence.
    attends_across = False

    def check(self, model):
        super().check(model)
        if model.kind != "causal_lm" and "remembered" in self._given():
            self.refuse("num_heads", "only a causal_lm can have them with a set remembered")

    def arguments(self, place):
        arguments = super().arguments(place)
        arguments = {name: x for name, x in arguments.items() if name not in KEY_SETS}
        arguments["key_sets"] = [
            self._key_set(name, values) for name, values in self._given().items()
        ]
        return arguments

    def _given(self):
        """The keys of the sets of which one is given, by the names of the sets."""
        sections = {name: getattr(self, name) for name in KEY_SETS}
        return {
            name: {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
            for name, x in sections.items()
            if x != type(x)()
        }

    def _key_set(self, name, values):
        try:
            return KEY_SETS[name](**values)
        except ValueError as error:
            raise ValueError(f"model.{self.name}.{name}: {error}") from error


_SECTIONS = {name: section_of_set(cls, NOT_OF_UNIONS) for name, cls in KEY_SETS.items()}
Union = dataclasses.make_dataclass(
    "Union",
    [(name, cls, section(cls)) for name, cls in _SECTIONS.items()],
    bases=(_Union,),
    namespace={"__doc__": _Union.__doc__, "__module__": __name__},
)
