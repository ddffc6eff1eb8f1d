"""What Keras, KerasHub and TensorFlow keep to themselves, and this package needs all the same.

Private names may change with any version. All are here, one in each function or class, and
`tests/test_keras_internals.py` says of each what it has to do. Where there is a public name, the
package uses that.
"""

import inspect

# In KerasHub's blocks: the self-attention of most, and the methods that make the mask of all pairs,
# of most and of Gemma's.
SELF_ATTENTION = "_self_attention_layer"
PAIR_MASK = "_compute_self_attention_mask"
PAIR_MASK_OF_GEMMA = "_compute_attention_mask"


# Layers.


def layers_of(layer):
    """The layers that a layer holds itself, in the order in which it got them.

    Args:
        layer: a `keras.layers.Layer`, such as a model.

    Returns:
        A list, in which one that is held twice is twice.

    >>> import keras
    >>> model = keras.Sequential([keras.layers.ReLU(name="a"), keras.layers.ReLU(name="b")])
    >>> [layer.name for layer in layers_of(model)]
    ['a', 'b']
    """
    return list(layer._layers)


def all_layers_of(layer):
    """The layers that a layer holds, and those that these hold, and so on.

    Args:
        layer: a `keras.layers.Layer`, such as a model.

    Returns:
        A list without doubles.
    """
    return list(layer._flatten_layers(include_self=False))


def replace_layer(holder, name, new):
    """Puts a layer in the place of another, also in a layer that is built and takes no further one.

    Args:
        holder: the layer that holds the other.
        name: string, its attribute.
        new: the layer that takes the place.
    """
    holder._tracker.replace_tracked_value("layers", getattr(holder, name), new)
    setattr(holder, name, new)


def part_of(layer, name, *default):
    """An attribute that some of KerasHub's layers keep in public, and some in private.

    Args:
        layer: the layer.
        name: string, the public name.
        *default: what is returned if the layer has neither; without it, that is an AttributeError.

    >>> import keras
    >>> part_of(keras.layers.MultiHeadAttention(2, 4), "kernel_initializer").__class__.__name__
    'GlorotUniform'
    """
    return getattr(layer, name if hasattr(layer, name) else f"_{name}", *default)


# Masks and variables.


def mask_of(tensor):
    """The mask that Keras carries along with a tensor, or None.

    Args:
        tensor: a tensor.
    """
    return getattr(tensor, "_keras_mask", None)


def carry_mask(tensor, mask):
    """Has Keras carry a mask along with a tensor.

    Args:
        tensor: a tensor.
        mask: a bool tensor.
    """
    tensor._keras_mask = mask


def initialize_by(variable, initializer):
    """Changes what a variable begins with that was made in a `keras.StatelessScope`.

    It is initialized once the scope ends.

    Args:
        variable: a `keras.Variable`.
        initializer: function of a shape and a `dtype`.
    """
    variable._initializer = initializer


def is_initialized(variable):
    """Whether nothing is to be initialized when a `keras.StatelessScope` ends.

    Args:
        variable: a `keras.Variable`.
    """
    return variable._initializer is None


# Training.


def keep_gradients(optimizer):
    """Has an optimizer take gradients as they are, and not sum them over replicas.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, not one that wraps another.
    """
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


class FirstBatch:
    """Mixin of models, before Keras's: a method that says how `fit` looks at a batch before it.

    There it builds what is not built yet. A subclass defines `look_at_batch(look, iterator,
    data_batch)`, where `look(iterator, data_batch)` is what Keras does.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        self.look_at_batch(super()._maybe_symbolic_build, iterator, data_batch)


def train_writer(board):
    """The writer of training's figures. TensorBoard follows one file of a folder at a time.

    Args:
        board: a `keras.callbacks.TensorBoard`, in training.
    """
    return board._train_writer


def validation_writer(board):
    """The writer of validation's figures, likewise.

    Args:
        board: a `keras.callbacks.TensorBoard`, in training.
    """
    return board._val_writer


def open_writers(board):
    """The writers of training's figures and of validation's that have been asked for, as a list.

    Args:
        board: a `keras.callbacks.TensorBoard`, in training.
    """
    return list(board._writers.values())


# Tokenizers and presets of KerasHub.


def add_special_token(tokenizer, token, name):
    """Gives a tokenizer a special token, and its id once there is a vocabulary.

    Args:
        tokenizer: a `keras_hub.tokenizers.Tokenizer`.
        token: string.
        name: string, the attribute, such as "pad_token"; that of the id is "pad_token_id" then.
    """
    tokenizer._add_special_token(token, name)


def find_special_tokens(tokenizer):
    """Looks for the ids of a tokenizer's special tokens in its vocabulary.

    Args:
        tokenizer: a `keras_hub.tokenizers.Tokenizer`.
    """
    tokenizer._update_special_token_ids()


class SpecialTokens:
    """Mixin of tokenizers, before KerasHub's, that check special tokens before they get ids.

    A subclass defines `check_special_tokens`. KerasHub's own tokenizers look for the ids whenever
    they get a vocabulary.
    """

    def _update_special_token_ids(self):
        self.check_special_tokens()
        super()._update_special_token_ids()


def preset_loader(preset):
    """KerasHub's loader of a preset, which knows its format, its class and how to convert it.

    Args:
        preset: string, a folder or a preset's name.
    """
    from keras_hub.src.utils.preset_utils import get_preset_loader

    return get_preset_loader(preset)


def preset_file(preset, name):
    """The path of a file of a preset, which may have to be fetched.

    Args:
        preset: string, a folder or a preset's name.
        name: string, the name of the file.

    Raises:
        FileNotFoundError: if there is none.
    """
    from keras_hub.src.utils.preset_utils import get_file

    return get_file(preset, name)


def saved_class(config):
    """The class of which KerasHub saved an object.

    Args:
        config: dictionary, the JSON of its file.
    """
    from keras_hub.src.utils.preset_utils import check_config_class

    return check_config_class(config)


def weight_loader():
    """KerasHub's class that reads weights in Hugging Face's files, and gives them to variables."""
    from keras_hub.src.utils.transformers.safetensor_utils import SafetensorLoader

    return SafetensorLoader


def build_cache(model, token_ids):
    """Reads prompts as KerasHub's `generate` does.

    Args:
        model: a `keras_hub.models.CausalLM` of text.
        token_ids: int `[batch, length]`.

    Returns:
        The last hidden states, `[batch, length, hidden_dim]`, and the cache for `call_with_cache`.
    """
    # Those of models that may see pictures take these, too.
    others = list(inspect.signature(model._build_cache).parameters)[1:]
    return model._build_cache(token_ids, **dict.fromkeys(others))


# TensorFlow.


def function_in(graph, name):
    """A function that a graph calls.

    Args:
        graph: a `tf.Graph`.
        name: string, the name of the function.

    Returns:
        An object whose `graph` is that of the function.
    """
    return graph._get_function(name)


def await_workers(counts, leader, seconds):
    """Says how long a worker waits for the others; call it before anything else is computed.

    Args:
        counts: dictionary from types of tasks, such as "worker", to their numbers.
        leader: string, the type of the first task, for which the others wait.
        seconds: int. TensorFlow waits for an hour.
    """
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * seconds,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=kind, num_tasks=count)
            for kind, count in counts.items()
        ],
    )
    # Else the timeout holds for those that wait for the chief, but not for the chief.
    context.context().coordination_service.cluster_register_with_barrier = True
