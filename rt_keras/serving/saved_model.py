"""Export of models as SavedModels that only need TensorFlow or TensorFlow Serving."""

from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from rt_keras import files
from rt_keras.arguments import wrong_value
from rt_keras.keras_internals import traced_for_saving
from rt_keras.models.image.image_lm import RoutingTransformerImageLM
from rt_keras.models.retrieval.contrastive import Contrastive
from rt_keras.models.retrieval.reader import RoutingTransformerReader
from rt_keras.models.seq_2_seq.seq_2_seq_lm import RoutingTransformerSeq2SeqLM
from rt_keras.models.speech.speech_recognizer import RoutingTransformerSpeechRecognizer
from rt_keras.models.stateful import why_not_stateful
from rt_keras.serving import signatures, state_signatures
from rt_keras.serving.foreign_ops import foreign_ops
from rt_keras.serving.image_completion import completing_function
from rt_keras.serving.retrieval import answering_function, embedding_function
from rt_keras.serving.served_tokenizer import served_tokenizer
from rt_keras.serving.transcription import transcribing_functions
from rt_keras.serving.warm_up import warm_up_requests, write_warm_up

FOREIGN_OPS_FILE = "foreign_ops.json"
WITHOUT_LENGTH = RoutingTransformerImageLM, RoutingTransformerReader, Contrastive


def export_saved_model(model, path, max_length=None, index=None):
    """Exports a model as a SavedModel with strings as inputs and outputs.

    An encoder-decoder has the signature `translate` (also the default); see `translating_function`.
    An image model has the signature `complete` (also the default); see `completing_function`.
    A speech recognizer has `transcribe` (also the default) and `transcribe_samples`; see
    `transcribing_functions`. A text embedder has `embed` (also the default); see
    `embedding_function`. A reader has `answer` (also the default), with an index inside; see
    `answering_function`.
    The signatures of a causal language model are `score` (also the default), `score_text` and
    `generate`; see `scoring_function`, `text_scoring_function` and `generating_function`. A model
    that supports a recurrent state also has `new_state`, `score_next` and `generate_next`, for
    requests that continue an earlier one; see `starting_function`, `state_scoring_function` and
    `state_generating_function`. TensorFlow Serving runs the SavedModel without `rt_keras`. After
    `tf.saved_model.load`, the functions are available as attributes and as signatures.

    The folder `assets.extra` holds warm-up requests for TensorFlow Serving and `foreign_ops.json`,
    which lists the operations that TensorFlow itself does not define and why TensorFlow Serving
    supports them.

    Args:
        model: a `RoutingTransformerCausalLM` or `RoutingTransformerSeq2SeqLM` with a preprocessor,
            an adapted causal language model, a `RoutingTransformerImageLM`, or a
            `RoutingTransformerSpeechRecognizer`, a text embedder or a `RoutingTransformerReader`
            with a preprocessor.
        path: path of a folder of versions, the layout that TensorFlow Serving watches, to which the
            next version is added; or, if its name is a number, of the version itself. The version
            is written atomically.
        max_length: int, maximum number of tokens in a sequence, including start and end of text.
            Defaults to the model's number of positions, the trained length of an adapted model, or
            65,536 if neither exists. For a speech recognizer, the number of positions, of 40 ms
            each. Image models have none, nor have text embedders and readers, whose preprocessors
            have their lengths.
        index: a `rt_keras.retrieval.Index`, for a reader. Defaults to None.

    Returns:
        The `Path` of the exported version.

    Raises:
        FileExistsError: if the version exists.
        ModuleNotFoundError: without the extra `serving`.
        ValueError: if the model has no preprocessor, its tokenizer calls Python, `max_length` is
            out of range, or `index` is missing for a reader or given for another model.

    >>> import tempfile
    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> path = export_saved_model(model, tempfile.mkdtemp(), max_length=64)
    >>> path.name
    '1'
    >>> served = tf.saved_model.load(str(path))
    >>> served.score_text(tf.constant(["abc"]))["tokens"].numpy()
    array([4], dtype=int32)
    """
    needs_index = isinstance(model, RoutingTransformerReader)
    if needs_index != (index is not None):
        needs = "is required" if needs_index else "must be None"
        raise ValueError(f"index {needs} for a {type(model).__name__}")
    has_texts = not isinstance(model, RoutingTransformerImageLM)
    if has_texts and getattr(model, "preprocessor", None) is None:
        raise ValueError(
            "model must have a preprocessor, since served models map strings to strings. Received: "
            f"model={model} without one"
        )
    if not isinstance(model, WITHOUT_LENGTH):
        max_length = _text_length(model, max_length)
    elif max_length is not None:
        name = type(model).__name__
        raise ValueError(f"max_length does not apply to a {name}. Received: {max_length}")
    path = version_folder(path)
    files.check_new_folder(path)
    functions = _functions(model, max_length, index)
    functions = {"serving_default": next(iter(functions.values())), **functions}
    _check_tokenizer(model)
    with files.whole_folder(path) as part:
        module = _saved_module(model, functions, index)
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, str(part), functions, options)
        write_warm_up(part, warm_up_requests(path.parent.name, functions, model))
        _remove_gradients(part / "saved_model.pb")
        files.write_json(part / "assets.extra" / FOREIGN_OPS_FILE, foreign_ops(part))
    return path


def _text_length(model, max_length):
    """Checks the maximum number of tokens of a text model and returns it."""
    positions = getattr(model.backbone, "max_sequence_length", None)
    if max_length is None:
        max_length = (
            positions or getattr(model.backbone, "trained_length", None) or signatures.MAX_LENGTH
        )
    limit = positions or tf.int32.max
    if not isinstance(max_length, int) or not 2 <= max_length <= limit:
        raise wrong_value("max_length", f"an integer from 2 to {limit:,}", max_length)
    return max_length


def _functions(model, max_length, index):
    """Returns the functions of a model by name, its default first."""
    if isinstance(model, Contrastive):
        return {"embed": embedding_function(model)}
    if isinstance(model, RoutingTransformerReader):
        return {"answer": answering_function(model, index)}
    if isinstance(model, RoutingTransformerImageLM):
        return {"complete": completing_function(model)}
    if isinstance(model, RoutingTransformerSpeechRecognizer):
        return transcribing_functions(model, max_length)
    if isinstance(model, RoutingTransformerSeq2SeqLM):
        return {"translate": signatures.translating_function(model, max_length)}
    functions = {
        "score": signatures.scoring_function(model, max_length),
        "score_text": signatures.text_scoring_function(model, max_length),
        "generate": signatures.generating_function(model, max_length),
    }
    if why_not_stateful(model.backbone) is None:
        functions |= {
            "new_state": state_signatures.starting_function(model),
            "score_next": state_signatures.state_scoring_function(model, max_length),
            "generate_next": state_signatures.state_generating_function(model, max_length),
        }
    return functions


def _check_tokenizer(model):
    """Raises a ValueError if the tokenizer calls Python, as KerasHub's for `tekken.json` does."""
    if model.preprocessor is None:
        return
    tokenizer = model.preprocessor.tokenizer
    graph = served_tokenizer(tokenizer).tokens.get_concrete_function().graph
    if any("PyFunc" in operation.type for operation in graph.get_operations()):
        raise ValueError(
            "The tokenizer of model must consist of TensorFlow operations, since a SavedModel "
            f"cannot call Python. Received: {type(tokenizer).__name__}, which calls Python"
        )


def version_folder(path):
    """Returns the folder of the next version.

    >>> version_folder("exported/books").as_posix(), version_folder("exported/books/7").as_posix()
    ('exported/books/1', 'exported/books/7')
    """
    path = Path(path)
    if path.name.isdecimal():
        return path
    folders = path.iterdir() if path.is_dir() else ()
    versions = [int(folder.name) for folder in folders if folder.name.isdecimal()]
    return path / str(max(versions, default=0) + 1)


def _remove_gradients(path):
    """Removes the names of custom gradients, which cause warnings when a model is loaded."""
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta in saved.meta_graphs:
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                node.attr.pop("_gradient_op_type", None)
    path.write_bytes(saved.SerializeToString(deterministic=True))


def _saved_module(model, functions, index):
    """Returns a module with variables, tokenizer resources and functions.

    Called from Python, the functions have default values and name an input of a wrong type;
    signatures do neither. The model itself is not saved: Keras would write functions for it that
    are never called.
    """
    module = tf.Module()
    # Those of the models and, with an index, its vectors and passages.
    module.variables_of_functions = [
        list(traced_for_saving(function).variables) for function in functions.values()
    ]
    preprocessors = [model.preprocessor, index.retriever.preprocessor if index else None]
    module.tokenizers = [served_tokenizer(x.tokenizer).resources for x in preprocessors if x]
    for name, function in functions.items():
        setattr(module, name, function)
    return module
