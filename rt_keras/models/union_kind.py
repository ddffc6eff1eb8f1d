"""Configuration of heads with user-defined sets of keys."""

import dataclasses

from rt_keras import layers
from rt_keras.keys import key, section
from rt_keras.layers import key_sets
from rt_keras.models.head_kind import FromBlock, first_layer, lower_heads, section_of_set

# In the order of a union. Sets that cannot be joined with others have separate kinds.
KEY_SETS = {
    "window": key_sets.Window,
    "cluster": key_sets.Cluster,
    "remembered": key_sets.Remembered,
    "strided": key_sets.Strided,
    "first_tokens": key_sets.FirstTokens,
    "selected_blocks": key_sets.SelectedBlocks,
    "routed_blocks": key_sets.RoutedBlocks,
    "persistent": key_sets.Persistent,
}
# Options of cross-attention, which these heads do not support.
NOT_OF_UNIONS = ("key_block_size",)


@dataclasses.dataclass
class _Union(FromBlock):
    """Heads that attend to a union of sets of keys; see `rt_keras.layers.Heads`.

    Each set is a section. The union consists of the sets with a non-default value.
    """

    share_qk: bool = key(False, "whether queries are also keys in a decoder's self-attention")
    first_layer: int = first_layer()
    lower_heads: str = lower_heads()

    name = "union"
    layer = layers.Heads
    windows = ("window.block_size", "cluster.window_size")
    # Sets are defined within one sequence.
    attends_across = False

    def check(self, model):
        super().check(model)
        if model.kind != "causal_lm" and "remembered" in self._given():
            self.refuse("num_heads", "the set remembered needs a causal_lm")
        for name in ("selected_blocks", "routed_blocks"):
            memory = getattr(self, name).memory_length
            if model.kind != "causal_lm" and memory is not None:
                raise ValueError(
                    f"model.{self.name}.{name}.memory_length is {memory}; outside a causal_lm it "
                    "must be null"
                )

    def arguments(self, place):
        arguments = super().arguments(place)
        arguments = {name: x for name, x in arguments.items() if name not in KEY_SETS}
        arguments["key_sets"] = [
            self._key_set(name, values) for name, values in self._given().items()
        ]
        return arguments

    def _given(self):
        """Returns the keys of each set with a non-default value, by the name of the set."""
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
