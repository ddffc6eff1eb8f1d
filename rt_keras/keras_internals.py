"""The private names of Keras, KerasHub and TensorFlow that this package uses.

Private names may change in any version. All of them are here, one in each function or class. Where
a public name exists, the package uses it.
"""

import inspect
import os
import re

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


def initialize_by(variable, initializer):
    """Replaces the initializer of a variable that was created in a `keras.StatelessScope`.

    The variable is initialized when the scope ends.

    Args:
        variable: a `keras.Variable`.
        initializer: function of a shape and a `dtype`.
    """
    variable._initializer = initializer


def is_initialized(variable):
    """Returns whether no initialization is pending at the end of a `keras.StatelessScope`.

    Args:
        variable: a `keras.Variable`.
    """
    return variable._initializer is None


def in_stateless_scope():
    """Returns whether variables have the values of a `keras.StatelessScope`."""
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    return in_stateless_scope()


def without_autocast():
    """Returns a context in which variables keep their dtype under a mixed policy."""
    from keras.src.backend.common.variables import AutocastScope

    return AutocastScope(None)


def global_seed_state():
    """Returns a list of the state of `keras.random` without a seed, empty before its first use."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


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


def tokenizes_byte_pairs(tokenizer):
    """Returns whether `byte_pair_tokens` and `with_tables_in_files` support a tokenizer."""
    import keras_hub

    method = keras_hub.tokenizers.BytePairTokenizer._tokenize_tf
    same = getattr(type(tokenizer), "_tokenize_tf", None) is method
    separators = set("\t\r\n")
    return same and not (
        tokenizer.sequence_length or any(map(separators.intersection, tokenizer.vocabulary))
    )


def byte_pair_tokens(tokenizer, texts):
    """Tokenizes texts inside a graph as `keras_hub.tokenizers.BytePairTokenizer` does.

    KerasHub splits texts at one special token after the other. Each adds a level of lists, and the
    checks of all levels, to the graph. Here, borders are added to the texts, which are then split.

    Args:
        tokenizer: the tokenizer.
        texts: string `[batch]`, UTF-8.

    Returns:
        Ragged int32 `[batch, (length)]`.
    """
    import tensorflow as tf
    from keras_hub.src.tokenizers import byte_pair_tokenizer as own

    # No pattern matches this byte, which is not UTF-8.
    border = b"\xff"
    special = tokenizer.unsplittable_tokens or []
    others = own.create_alts_for_unsplittable_tokens(special)
    replaced, white = tf.strings.regex_replace, own.SPECIAL_WHITESPACES

    def apart(texts, pattern):
        return replaced(texts, f"({pattern})", border + rb"\1" + border)

    def split(texts, separator):
        found = tf.raw_ops.StringSplitV2(input=texts, sep=separator)
        return found.values, found.indices[:, 0]

    if tokenizer.add_prefix_space:
        texts = tf.strings.join([" ", texts])
    marked = replaced(texts, rf"( )([^\s{white}])", r"६\1\2")
    marked = replaced(marked, rf"(\s{white})$", r"\1६")
    for token, other in zip(special, others):
        marked = replaced(marked, re.escape(token), border + other.encode() + border)
    parts, rows = split(apart(marked, own.SPLIT_PATTERN_1), border)
    words, places = split(apart(parts, own.SPLIT_PATTERN_2), border)
    # The last ones first, because the second one is the beginning of the eleventh.
    for token, other in zip(special[::-1], others[::-1]):
        words = replaced(words, re.escape(other), token)
    kept = tf.where((words != "") & (words != "६"))[:, 0]
    words, rows = tf.gather(words, kept), tf.gather(rows, tf.gather(places, kept))
    known = tokenizer.cache.lookup(words)

    def with_new():
        tokenizer._bpe_merge_and_update_cache_tf(tf.boolean_mask(words, known == ""))
        return tokenizer.cache.lookup(words)

    pairs = tf.cond(tf.reduce_any(known == ""), with_new, lambda: known)
    pairs, places = split(pairs, " ")
    ids, count = tokenizer.token_to_id_map.lookup(pairs), tf.shape(texts, tf.int64)[0]
    return tf.RaggedTensor.from_value_rowids(ids, tf.gather(rows, places), count, validate=False)


def with_tables_in_files(tokenizer, folder):
    """Returns a copy of a byte-pair tokenizer whose tables are not constants of its graph.

    Args:
        tokenizer: the tokenizer.
        folder: string, the folder of the files, which are needed until the graph is saved.
    """
    import tensorflow as tf

    def table(name, numbers, default, by_number=False):
        path = os.path.join(folder, name)
        lines = [f"{text}\t{number}\n" for text, number in numbers]
        tf.io.write_file(path, "".join(lines))
        columns = [(tf.string, 0), (tf.int32, 1)]
        columns = columns[::-1] if by_number else columns
        (key, key_at), (value, value_at) = columns
        read = tf.lookup.TextFileInitializer(path, key, key_at, value, value_at)
        return tf.lookup.StaticHashTable(read, default)

    tokenizer._maybe_initialized_tf()
    # Keras would copy a layer by saving it.
    copy = object.__new__(type(tokenizer))
    vocabulary = tokenizer.vocabulary.items()
    merges = [(merge, rank) for rank, merge in enumerate(tokenizer.merges)]
    vars(copy).update(
        vars(tokenizer),
        token_to_id_map=table("vocabulary.txt", vocabulary, -1),
        id_to_token_map=table("vocabulary.txt", vocabulary, "", by_number=True),
        merge_ranks=table("merges.txt", merges, tokenizer.merge_ranks_lookup_default),
    )
    return copy


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
    others = list(inspect.signature(model._build_cache).parameters)[1:]
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
