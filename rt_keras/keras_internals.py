"""The private names of Keras, KerasHub and TensorFlow that this package uses.

Private names may change in any version. All of them are here, one in each function or class. Where
a public name exists, the package uses it.
"""

import contextlib
import threading

from rt_keras.arguments import defaults_of

# Names in KerasHub's blocks: the self-attention of most blocks, and the methods that compute the
# mask of all pairs, in most blocks and in Gemma's.
SELF_ATTENTION = "_self_attention_layer"
PAIR_MASK = "_compute_self_attention_mask"
PAIR_MASK_OF_GEMMA = "_compute_attention_mask"


# Layers.


def layers_of(layer):
    """Returns the direct sublayers of a layer, in the order of their assignment.

    Args:
        layer: a `keras.layers.Layer`, such as a model.

    Returns:
        A list. A layer that is assigned twice appears twice.

    >>> import keras
    >>> model = keras.Sequential([keras.layers.ReLU(name="a"), keras.layers.ReLU(name="b")])
    >>> [layer.name for layer in layers_of(model)]
    ['a', 'b']
    """
    return list(layer._layers)


def all_layers_of(layer):
    """Returns all sublayers of a layer, recursively.

    Args:
        layer: a `keras.layers.Layer`, such as a model.

    Returns:
        A list without duplicates.
    """
    return list(layer._flatten_layers(include_self=False))


def replace_layer(holder, name, new):
    """Replaces a sublayer, even in a built layer, which accepts no new ones.

    Args:
        holder: the layer that holds the sublayer.
        name: string, the attribute of the sublayer.
        new: the new layer.
    """
    holder._tracker.replace_tracked_value("layers", getattr(holder, name), new)
    setattr(holder, name, new)


def part_of(layer, name, *default):
    """Returns an attribute that is public in some of KerasHub's layers and private in others.

    Args:
        layer: the layer.
        name: string, the public name.
        *default: the value to return if the layer has neither; without it, an AttributeError is
            raised.

    >>> import keras
    >>> part_of(keras.layers.MultiHeadAttention(2, 4), "kernel_initializer").__class__.__name__
    'GlorotUniform'
    """
    return getattr(layer, name if hasattr(layer, name) else f"_{name}", *default)


# Masks and variables.


def takes_mask(layer):
    """Returns whether calls of a layer take a `mask`.

    Args:
        layer: a `keras.layers.Layer`.
    """
    return layer._call_has_mask_arg


def mask_of(tensor):
    """Returns the mask that Keras attaches to a tensor, or None.

    Args:
        tensor: a tensor.
    """
    return getattr(tensor, "_keras_mask", None)


def attach_mask(tensor, mask):
    """Attaches a mask to a tensor, as Keras does.

    Args:
        tensor: a tensor.
        mask: a bool tensor.
    """
    tensor._keras_mask = mask


def begin_with(variable, value):
    """Initializes a variable with another value when its `keras.StatelessScope` ends.

    Keras has no public way to change a variable's initial value after its creation.

    Args:
        variable: a `keras.Variable` that was created in the scope.
        value: function that returns the value, of the variable's shape.
    """
    import tensorflow as tf

    variable._initializer = lambda shape, dtype=None: tf.ensure_shape(
        tf.cast(value(), dtype), shape
    )


def leave_empty(variables):
    """Makes unused variables take no memory when their `keras.StatelessScope` ends.

    Args:
        variables: `keras.Variable`s. Those that are initialized already stay as they are.
    """
    import keras

    for variable in variables:
        if variable._initializer is not None:
            variable._initializer = lambda shape, dtype=None: keras.ops.zeros([], dtype)


def in_stateless_scope():
    """Returns whether variables have the values of a `keras.StatelessScope`."""
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    return in_stateless_scope()


def without_autocast():
    """Returns a context in which variables keep their dtype under a mixed policy."""
    from keras.src.backend.common.variables import AutocastScope

    return AutocastScope(None)


@contextlib.contextmanager
def policy_inside(layer, saved):
    """Gives a layer, for what KerasHub saves of it, a serialized dtype policy in this context."""
    from keras import dtype_policies

    before, layer._dtype_policy = layer._dtype_policy, dtype_policies.deserialize(saved)
    try:
        yield
    finally:
        layer._dtype_policy = before


def global_seed_state():
    """Returns a list of the state of `keras.random` without a seed, empty before its first use."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


# Saving.


def before_first_lookup(package, import_classes):
    """Calls a function before Keras first looks for a class of a package that is not registered.

    Args:
        package: string, the package that the classes are registered with.
        import_classes: function without arguments that imports the classes.
    """
    from keras.src.saving import object_registration

    # Other threads wait until all classes are imported.
    lock = threading.RLock()

    class Registry(dict):
        is_complete = False

        def __contains__(self, name):
            if str(name).startswith(f"{package}>") and not super().__contains__(name):
                with lock:
                    if not self.is_complete:
                        # Before the import, which may look for classes too.
                        self.is_complete = True
                        import_classes()
            return super().__contains__(name)

    object_registration.GLOBAL_CUSTOM_OBJECTS = Registry(object_registration.GLOBAL_CUSTOM_OBJECTS)


# Training.


def is_training():
    """Returns the `training` that layers take from the call of the layer around them, or None."""
    from keras.src.backend.common import global_state

    return getattr(global_state.get_global_attribute("current_call_ctx"), "training", None)


def keep_gradients(optimizer):
    """Disables an optimizer's sum of gradients over replicas.

    Args:
        optimizer: a `keras.optimizers.Optimizer` that does not wrap another one.
    """
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


def clear_losses(layer):
    """Removes the losses that a layer and the layers inside it have added.

    Args:
        layer: a `keras.layers.Layer`, such as a model.
    """
    layer._clear_losses()


class FirstBatch:
    """A mixin of models, before Keras's class, that hooks into the first batch of `fit`.

    From this batch, `fit` builds everything that is not built yet. A subclass defines
    `look_at_batch(look, iterator, data_batch)`, where `look(iterator, data_batch)` is Keras's own
    method.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        self.look_at_batch(super()._maybe_symbolic_build, iterator, data_batch)


def train_writer(board):
    """Returns the writer of training metrics. TensorBoard follows one file per folder at a time.

    Args:
        board: a `keras.callbacks.TensorBoard`, in training.
    """
    return board._train_writer


def open_writers(board):
    """Returns a list of the writers that have been created.

    Args:
        board: a `keras.callbacks.TensorBoard`, in training.
    """
    return list(board._writers.values())


# Tokenizers and presets of KerasHub.


def add_special_token(tokenizer, token, name):
    """Adds a special token to a tokenizer, which sets its id when it has a vocabulary.

    Args:
        tokenizer: a `keras_hub.tokenizers.Tokenizer`.
        token: string.
        name: string, the attribute of the token, such as "pad_token". The attribute of the id is
            then "pad_token_id".
    """
    tokenizer._add_special_token(token, name)


def find_special_tokens(tokenizer):
    """Updates the ids of a tokenizer's special tokens from its vocabulary.

    Args:
        tokenizer: a `keras_hub.tokenizers.Tokenizer`.
    """
    tokenizer._update_special_token_ids()


class SpecialTokens:
    """A mixin of tokenizers, before KerasHub's class, that checks special tokens.

    A subclass defines `check_special_tokens`, which runs before KerasHub sets the ids of the
    tokens, whenever the vocabulary changes.
    """

    def _update_special_token_ids(self):
        self.check_special_tokens()
        super()._update_special_token_ids()


def use_python_tokenizer(tokenizer, made):
    """Replaces what KerasHub's byte-pair tokenizer calls outside of graphs.

    Args:
        tokenizer: a `keras_hub.tokenizers.BytePairTokenizer`.
        made: a `tokenizers.Tokenizer`.
    """
    tokenizer._tokenizer = made


def merge_byte_pairs(tokenizer, words):
    """Adds the byte pairs of words to the cache of a tokenizer, in a graph."""
    tokenizer._bpe_merge_and_update_cache_tf(words)


def preset_loader(preset):
    """Returns KerasHub's loader of a preset, for its format and class.

    Args:
        preset: string, a folder or the name of a preset.
    """
    from keras_hub.src.utils.preset_utils import get_preset_loader

    return get_preset_loader(preset)


def preset_file(preset, name):
    """Returns the path of a file of a preset. Downloads the file if needed.

    Args:
        preset: string, a folder or the name of a preset.
        name: string, the name of the file.

    Raises:
        FileNotFoundError: if the preset has no such file.
    """
    from keras_hub.src.utils.preset_utils import get_file

    return get_file(preset, name)


def saved_class(config):
    """Returns the class of an object that KerasHub saved.

    Args:
        config: dictionary, the content of its JSON file.
    """
    from keras_hub.src.utils.preset_utils import check_config_class

    return check_config_class(config)


def weight_loader():
    """Returns KerasHub's class that loads weights from Hugging Face's files into variables."""
    from keras_hub.src.utils.transformers.safetensor_utils import SafetensorLoader

    return SafetensorLoader


def build_cache(model, token_ids):
    """Runs the prefill of KerasHub's `generate`.

    Args:
        model: a `keras_hub.models.CausalLM` of text.
        token_ids: int `[batch, length]`.

    Returns:
        The last hidden states, `[batch, length, hidden_dim]`, and the cache for `call_with_cache`.
    """
    # The method has more parameters in models that accept images.
    others = list(defaults_of(model._build_cache))[1:]
    return model._build_cache(token_ids, **dict.fromkeys(others))


# TensorFlow.


def traced_for_saving(function):
    """Traces a function as `tf.saved_model.save` does, which would otherwise trace it again.

    Args:
        function: a `tf.function` with an `input_signature`.

    Returns:
        The concrete function.
    """
    import tensorflow as tf
    from tensorflow.python.saved_model import save_context

    with save_context.save_context(tf.saved_model.SaveOptions()):
        return function.get_concrete_function()


def compiled_by_xla():
    """Returns whether operations that are created now are parts of a program of XLA."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(ops.get_default_graph())
