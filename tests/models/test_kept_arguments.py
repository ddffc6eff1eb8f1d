import keras

from rt_keras.models.kept_arguments import KeptArguments


class Layer(KeptArguments, keras.layers.Layer):
    def __init__(self, sizes, rate=0.5, own=None, **kwargs):
        super().__init__(**kwargs)
        sizes = tuple(sizes)
        self.keep_arguments(locals(), leave=["own"])
        self.own = own


def test_kept_arguments_are_attributes_and_entries_of_the_config():
    layer = Layer([1, 2], own="not kept", name="layer")
    assert (layer.sizes, layer.rate) == ((1, 2), 0.5)
    config = layer.get_config()
    assert config["name"] == "layer" and config["dtype"]
    assert (config["sizes"], config["rate"]) == ((1, 2), 0.5) and "own" not in config


def test_a_layer_is_made_again_from_its_config():
    again = Layer.from_config(Layer([3], rate=0.1).get_config())
    assert (again.sizes, again.rate) == ((3,), 0.1)


class Larger(Layer):
    def __init__(self, *args, more=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.keep_arguments(locals(), leave=["args"])


def test_a_subclass_keeps_arguments_beside_those_of_its_base():
    layer = Larger([1, 2], more=3)
    config = layer.get_config()
    assert (config["sizes"], config["rate"], config["more"]) == ((1, 2), 0.5, 3)
    assert "args" not in config and "kwargs" not in config
