"""Pretrained models from folders and presets, loaded with one copy of their weights."""

import contextlib
import functools
import json
import os
from pathlib import Path

import h5py
import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.extras import needed
from rt_keras.keras_internals import (
    begin_with,
    leave_empty,
    preset_file,
    preset_loader,
    saved_class,
    weight_loader,
)
from rt_keras.models.adapted.architectures import ARCHITECTURES, check_class_known, check_known
from rt_keras.models.adapted.backbones import AdaptedBackbone
from rt_keras.models.adapted.folder_config import FolderConfig
from rt_keras.models.adapted.tensor_files import TensorFiles, as_tensor, check_all_read
from rt_keras.models.adapted.tokenizers import adapted_preprocessor

# Hugging Face's names of the supported model types.
MODEL_TYPES = (
    "bart, bert, distilbert, gemma3_text, gpt2, llama, mistral, qwen3, roberta, smollm3, "
    "xlm-roberta"
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
KERAS_WEIGHTS, KERAS_SHARDS = "model.weights.h5", "model.weights.json"
# Tasks and their preprocessors by the suffix of Hugging Face's class names. Other models are
# encoders; those in the layout of sentence-transformers are text embedders.
_CAUSAL = keras_hub.models.CausalLM, keras_hub.models.CausalLMPreprocessor
_SEQ_2_SEQ = keras_hub.models.Seq2SeqLM, keras_hub.models.Seq2SeqLMPreprocessor
_EMBEDDER = keras_hub.models.TextEmbedder, keras_hub.models.TextEmbedderPreprocessor
TASKS_BY_NAME = {
    "ForCausalLM": _CAUSAL,
    "LMHeadModel": _CAUSAL,
    "BartForConditionalGeneration": _SEQ_2_SEQ,
}
POOLING_MODES = [[f"pooling_mode_{name}"] for name in ("mean_tokens", "cls_token", "max_tokens")]


def load_model(preset, dtype=None, check=check_known):
    """Loads a pretrained model without a second copy of its weights.

    The configuration is checked before any weights are read. Weights are read one by one, and
    variables that are overwritten are not initialized.

    Args:
        preset: string or path, a folder in Hugging Face's layout or a KerasHub preset; or string,
            the name of a preset.
        dtype: dtype policy. Defaults to None, for Keras's global policy.
        check: function that is called with the backbone before its weights are read, and raises an
            error if the backbone is unsuitable. By default, it raises an error if the attention
            cannot be replaced.

    Returns:
        Tuple of a model and the sequence length that it was trained on, or None if unknown. The
        model is a task if the files specify one, and a backbone otherwise.

    Raises:
        ValueError: if the folder or preset does not exist, weights or the tokenizer of a task are
            missing, files are damaged, or the attention cannot be replaced.

    >>> load_model("no_such_folder")
    Traceback (most recent call last):
    ...
    ValueError: model must be an existing folder, the name of a preset or a model. Received:
    model='no_such_folder'
    """
    preset = os.fspath(preset)
    try:
        dtype = keras.config.dtype_policy() if dtype is None else keras.dtype_policies.get(dtype)
    except (ValueError, TypeError):
        raise wrong_value("dtype", "a dtype policy, such as 'bfloat16'", dtype) from None
    loader = _loader(preset)
    if "registered_name" in loader.config:
        return _load_keras(preset, loader, dtype, check), None
    config = {**loader.config, **loader.config.get("text_config", {})}
    model = _load_hugging_face(preset, loader, dtype, check)
    if isinstance(model, keras_hub.models.TextEmbedder):
        # Usually shorter than what the positions allow.
        return model, model.preprocessor.sequence_length
    return model, config.get("max_position_embeddings")


def attentions_of(preset):
    """Returns the self-attention stacks of a pretrained model, read from its config.json alone.

    Args:
        preset: see `load_model`.

    Returns:
        Tuple of "encoder", "decoder" or both.

    Raises:
        ValueError: if the folder or preset does not exist, or the attention cannot be replaced.
    """
    stacks = ARCHITECTURES[_backbone_class(preset, _loader(os.fspath(preset)))].stacks.values()
    return tuple(
        name for name, causal in (("encoder", False), ("decoder", True)) if causal in stacks
    )


def _load_keras(preset, loader, dtype, check):
    """Loads what KerasHub has saved."""
    _backbone_class(preset, loader)
    weights = _file(preset, KERAS_WEIGHTS)
    if weights is None and _file(preset, KERAS_SHARDS) is None:
        raise ValueError(f"{preset} has no weights: {KERAS_WEIGHTS} or {KERAS_SHARDS}")
    if weights is not None:
        try:
            h5py.File(weights).close()
        except OSError as error:
            raise ValueError(f"{weights} is truncated or damaged ({error})") from None
    with _LoadingScope() as scope, _complete(preset):
        load = keras_hub.models.Backbone.from_preset
        empty = load(preset, load_weights=False, dtype=dtype)
        leave_empty(empty.weights)
        check(empty)
        backbone = load(preset, dtype=dtype)
        _keep_values(backbone, scope)
    config = _file(preset, "task.json")
    if config is None:
        return backbone
    with _complete(preset):
        cls = saved_class(_json(config))
        task = cls.from_preset(preset, load_weights=False, backbone=backbone)
    weights = _file(preset, "task.weights.h5")
    if weights is not None:
        task.load_task_weights(weights)
    return task


class _LoadingScope(keras.StatelessScope):
    """Scope that releases the arrays that variables are assigned from."""

    def add_update(self, update):
        super().add_update(update)
        # TensorFlow keeps copied arrays until it runs an operation.
        tf.identity(0)


def _load_hugging_face(preset, loader, dtype, check):
    """Loads a folder in Hugging Face's layout."""
    cls, files = _backbone_class(preset, loader), TensorFiles(_weight_files(preset))
    task, preprocessor_cls = _task_of(preset, loader.config)
    with keras.StatelessScope() as scope:
        with _complete(preset):
            loader.config = config = FolderConfig(loader.config)
            backbone = loader.load_backbone(cls, False, dtype=dtype, **config.backbone_options)
        try:
            check(backbone)
            backbone.adapted_options = config.adapted_options
            config.check_known()
            preprocessor = preprocessor_cls and _preprocessor(preset, preprocessor_cls)
            with _reader(preset, files) as reader:
                loader.converter.convert_weights(backbone, reader, config)
                if cls is keras_hub.models.RobertaBackbone:
                    _add_token_type(backbone, reader)
            check_all_read(files, has_head=task in (_CAUSAL[0], _SEQ_2_SEQ[0]))
        except BaseException:
            # The end of the scope would initialize them.
            leave_empty(backbone.weights)
            raise
        _keep_values(backbone, scope)
    if task is None:
        return backbone
    return task.from_preset(preset, backbone=backbone, preprocessor=preprocessor)


def _keep_values(model, scope):
    """Initializes variables with the values that were assigned to them in a scope."""
    for weight in model.weights:
        value = scope.get_current_value(weight)
        if value is not None:
            begin_with(weight, functools.partial(tf.identity, value))


# What files say of a model: its class, its task, its tokenizer.


def _loader(preset):
    """Returns KerasHub's loader for a preset, chosen by its config.json."""
    folder, kind = Path(preset), None
    if folder.is_dir():
        kind = _config_of(folder).get("model_type")
    elif "://" not in preset and preset not in keras_hub.models.Backbone.presets:
        raise wrong_value("model", "an existing folder, the name of a preset or a model", preset)
    try:
        with needed("pretrained", "Reading models from Hugging Face's files"):
            return preset_loader(preset)
    except ImportError:
        raise
    except Exception as error:  # Each hub raises different errors.
        if kind is not None:
            raise ValueError(
                f"Models of type {kind!r} are not supported. Supported: {MODEL_TYPES}"
            ) from None
        raise ValueError(
            f"The preset {preset!r} cannot be downloaded, perhaps for lack of a connection. Pass a "
            f"folder with its files instead ({type(error).__name__})"
        ) from None


def _config_of(folder):
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not the folder of a model: it has no config.json")
    config = _json(path)
    if "registered_name" not in config and "model_type" not in config:
        raise ValueError(f"{path} does not describe a model: it has no model_type")
    return config


def _backbone_class(preset, loader):
    cls = loader.check_backbone_class()
    if issubclass(cls, AdaptedBackbone):
        raise ValueError(
            f"{preset} is already adapted. Load it with from_preset() and restore() it first"
        )
    check_class_known(cls)
    return cls


def _task_of(preset, config):
    """Returns the class of a task and of its preprocessor, or None for both for an encoder."""
    modules = _file(preset, "modules.json")
    if modules is not None:
        _check_modules(preset, json.loads(Path(modules).read_text(encoding="utf-8")))
        return _EMBEDDER
    name = (config.get("architectures") or [""])[0]
    tasks = (classes for end, classes in TASKS_BY_NAME.items() if name.endswith(end))
    return next(tasks, (None, None))


def _check_modules(preset, modules):
    """Raises a ValueError if a text embedder has modules or a pooling that KerasHub drops."""
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    path = _file(preset, "1_Pooling/config.json")
    pooling = {} if path is None else _json(path)
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on]
    if {*kinds} - {"Transformer", "Pooling", "Normalize"} or modes not in POOLING_MODES:
        raise ValueError(
            f"{preset}: a text embedder must have the modules Transformer, Pooling and perhaps "
            f"Normalize, and one of {POOLING_MODES}. Received: {kinds} and {modes}"
        )


def _preprocessor(preset, cls):
    path = _file(preset, "tokenizer.json")
    try:
        definition = {} if path is None else _json(path)
        return adapted_preprocessor(cls.from_preset(preset), definition)
    except Exception as error:  # Each tokenizer format raises different errors.
        reason = str(error).splitlines()[:1]
        raise ValueError(
            f"{preset} has no readable tokenizer, which a task needs ({''.join(reason)})"
        ) from None


# Files.


def _file(preset, name):
    """Returns the path of a file of a preset, downloaded if needed, or None if it is missing."""
    try:
        return preset_file(preset, name)
    except FileNotFoundError:
        return None


def _json(path):
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return content


@contextlib.contextmanager
def _complete(preset):
    """Converts errors about missing parts of a preset into one-line ValueErrors."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{preset} is incomplete: {error}") from None
    except KeyError as error:
        raise ValueError(f"{preset} is incomplete: its JSON files lack {error}") from None


def _weight_files(preset):
    index = _file(preset, INDEX)
    with _complete(preset):
        names = [WEIGHTS] if index is None else sorted({*_json(index)["weight_map"].values()})
    paths = [_file(preset, name) for name in names]
    missing = [name for name, path in zip(names, paths) if path is None]
    if missing:
        raise ValueError(f"{preset} has no weights: {', '.join(missing)} is missing")
    return paths


def _reader(preset, files):
    class Reader(weight_loader()):
        """Reads weights for KerasHub, whose own reader maps whole files and copies twice."""

        def get_tensor(self, hf_weight_key):
            value = files.read(self.get_prefixed_key(hf_weight_key, files.tensors))
            return value.view(_Unrounded)

        def port_weight(self, keras_variable, hf_weight_key, hook_fn=None):
            tensor, shape = self.get_tensor(hf_weight_key), list(keras_variable.shape)
            value = tensor
            with contextlib.suppress(ValueError):  # NumPy's, if it cannot be reshaped.
                value = tensor if hook_fn is None else hook_fn(tensor, shape)
            if list(value.shape) != shape:
                raise ValueError(
                    f"{hf_weight_key} has shape {tensor.shape}, which does not match config.json"
                )
            keras_variable.assign(as_tensor(value, keras_variable.dtype))

    return Reader(preset)


class _Unrounded(np.ndarray):
    """Array that KerasHub's converter of Mistral cannot round to float16."""

    def astype(self, dtype, **options):
        return self


def _add_token_type(backbone, reader):
    """Adds the embedding of all tokens' type to the positions, as KerasHub does for XLM-RoBERTa."""
    positions = backbone.embeddings.position_embedding.position_embeddings
    added = reader.get_tensor("embeddings.token_type_embeddings.weight")[0]
    positions.assign(positions + as_tensor(added, positions.dtype))
