"""The typed configuration of an experiment, its YAML files and overrides.

The sections are dataclasses on `official.modeling.hyperparams`. That package rejects keys it does
not know, but takes a string for a number without a word, so every value is held against its
annotation here before it goes in.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Literal

import yaml

from rt_keras import config_files, extras
from rt_keras.training.config_checks import check_together

with extras.needed("train", "Training"):
    from official.modeling import hyperparams


@dataclasses.dataclass(frozen=True)
class _Range:
    """What values of a type are allowed, for the message and for the test."""

    text: str
    holds: Callable[[float], bool]


_Count = Annotated[int, _Range("an integer of at least 1", lambda value: value >= 1)]
_CountOrZero = Annotated[int, _Range("an integer of at least 0", lambda value: value >= 0)]
_Positive = Annotated[float, _Range("a number above 0", lambda value: 0 < value < float("inf"))]
_NotNegative = Annotated[float, _Range("a number of at least 0", lambda v: 0 <= v < float("inf"))]
_Share = Annotated[float, _Range("a number from 0 to 1", lambda value: 0 <= value <= 1)]
_ShareBelowOne = Annotated[float, _Range("at least 0 and below 1", lambda value: 0 <= value < 1)]


@dataclasses.dataclass
class LocalConfig(hyperparams.Config):
    """Local heads: see `rt_keras.layers.LocalHeads`. No heads: the group is absent.

    `cross_block_size` is the `key_block_size` of attention to an encoder; by default `block_size`.
    """

    num_heads: _CountOrZero = 2
    block_size: _Count = 128
    look_back: _CountOrZero = 1
    max_relative_distance: _Count | None = None
    cross_block_size: _Count | None = None


@dataclasses.dataclass
class RoutingConfig(hyperparams.Config):
    """Routing heads: see `rt_keras.layers.RoutingHeads`. No heads: the group is absent.

    The assignments "hashed" and "random" make them `HashedHeads` and `RandomHeads`. Blocks before
    number `first_layer` (from 0) have local heads in the place of routing heads.
    """

    num_heads: _CountOrZero = 2
    num_clusters: _Count = 16
    window_size: _Count = 128
    assignment: Literal["nearest", "balanced", "hashed", "random"] = "nearest"
    share_qk: bool = False
    num_probes: _Count = 1
    max_relative_distance: _Count | None = None
    commitment_weight: _NotNegative = 1e-4
    first_layer: _CountOrZero = 0


@dataclasses.dataclass
class ClusterStridedConfig(hyperparams.Config):
    """Heads with clusters of strides: see `rt_keras.layers.ClusterStridedHeads`."""

    num_heads: _CountOrZero = 0
    num_clusters: _Count = 16
    window_size: _Count = 128
    max_relative_distance: _Count | None = None
    commitment_weight: _NotNegative = 1e-4


@dataclasses.dataclass
class StridedConfig(hyperparams.Config):
    """Heads that see every so-manieth position: see `rt_keras.layers.StridedHeads`."""

    num_heads: _CountOrZero = 0
    stride: _Count = 128
    max_relative_distance: _Count | None = None


@dataclasses.dataclass
class FullConfig(hyperparams.Config):
    """Full attention heads: see `rt_keras.layers.FullHeads`. No heads: the group is absent."""

    num_heads: _CountOrZero = 0
    max_relative_distance: _Count | None = None


@dataclasses.dataclass
class ImageConfig(hyperparams.Config):
    """What images a model of `kind: image_lm` makes.

    Local blocks are of `block_height` rows, and of `local.block_size` values in all; without a
    height, of so many values in a row.
    """

    height: _Count = 32
    width: _Count = 32
    channels: _Count = 3
    block_height: _Count | None = None
    num_classes: _Count | None = None
    position_embedding: bool = True


@dataclasses.dataclass
class ModelConfig(hyperparams.Config):
    """The model: see the backbone of its kind in `rt_keras.models`.

    Without a `vocabulary_size` it is that of the tokenizer, or 256 for images. Without a
    `max_sequence_length` there are no absolute positions but `sinusoidal_positions`, and sequences
    may be of any length. Dense layers start uniform, with `initializer_scale` times the variance of
    Glorot's initializer.

    Less memory: with `remat` the gradient computes each block a second time, not to keep it; with
    `reversible` blocks, which make another model, it needs not even their inputs. With a
    `feed_forward_chunk_size` no more positions go through a feed-forward network at once, and with
    a `loss_chunk_size` there are logits of no more.

    With `reference` the heads compute what the code of the paper's authors does, for their
    checkpoints; see `rt_keras.layers.RoutingHeads`.
    """

    kind: Literal["causal_lm", "seq_2_seq_lm", "image_lm"] = "causal_lm"
    vocabulary_size: _Count | None = None
    num_encoder_layers: _CountOrZero = 0
    num_layers: _Count = 2
    hidden_dim: _Count = 256
    intermediate_dim: _Count = 1024
    embedding_dim: _Count | None = None
    tie_embeddings: bool = True
    key_dim: _Count | None = None
    value_dim: _Count | None = None
    activation: Literal["relu", "gelu", "geglu", "geglu_approximate"] = "geglu"
    normalize_first: bool = True
    dropout: _ShareBelowOne = 0.0
    attention_dropout: _ShareBelowOne | None = None
    activation_dropout: _ShareBelowOne | None = None
    embedding_dropout: _ShareBelowOne = 0.0
    token_dropout: _ShareBelowOne = 0.0
    encoder_input_dropout: _ShareBelowOne = 0.0
    shift_tokens: bool = False
    max_sequence_length: _Count | None = None
    sinusoidal_positions: bool = False
    attention_bias: bool = True
    feed_forward_bias: bool = True
    use_head_dense: bool = False
    layer_norm_epsilon: _Positive = 1e-6
    feed_forward_chunk_size: _Count | None = None
    reversible: bool = False
    remat: bool = False
    loss_chunk_size: _Count | None = None
    initializer_scale: _Positive = 1.0
    reference: bool = False
    local: LocalConfig = dataclasses.field(default_factory=LocalConfig)
    routing: RoutingConfig = dataclasses.field(default_factory=RoutingConfig)
    cluster_strided: ClusterStridedConfig = dataclasses.field(default_factory=ClusterStridedConfig)
    strided: StridedConfig = dataclasses.field(default_factory=StridedConfig)
    full: FullConfig = dataclasses.field(default_factory=FullConfig)
    image: ImageConfig = dataclasses.field(default_factory=ImageConfig)


@dataclasses.dataclass
class TokenizerConfig(hyperparams.Config):
    """The tokenizer, and the vocabulary file that all but `bytes` need."""

    name: Literal["bytes", "sentence_piece", "word_piece", "t2t_subwords", "words"] = "bytes"
    vocabulary: str | None = None


@dataclasses.dataclass
class DataConfig(hyperparams.Config):
    """The data, and how it is cut into batches.

    `name` is a set of the model's kind: of documents, `rt_keras.data.load_documents`; of pairs of
    texts, `load_pairs`; of images, `load_images`. `directory` is the folder of the sets that read
    one; `data_dir` is where prepared data sets are kept. `reverse` has the first text of a pair
    written from the second. An encoder sees `encoder_sequence_length` tokens, by default
    `sequence_length`, which is that of all else.
    """

    name: str = "python_source"
    directory: str | None = None
    data_dir: str | None = None
    reverse: bool = False
    sequence_length: _Count = 2048
    encoder_sequence_length: _Count | None = None
    batch_size: _Count = 2
    shuffle_buffer: _Count = 4096


@dataclasses.dataclass
class OptimizerConfig(hyperparams.Config):
    """The optimizer. `beta_1`, `beta_2` and `epsilon` are those of Adam and AdamW.

    `weight_decay` is the optimizer's own, which scales weights down at each step; `l2_weight` times
    half the sum of the squares of all trainable weights but biases is added to the loss.
    """

    name: Literal["adam", "adamw", "adafactor"] = "adam"
    learning_rate: _Positive = 1e-3
    beta_1: _ShareBelowOne = 0.9
    beta_2: _ShareBelowOne = 0.999
    epsilon: _Positive = 1e-7
    weight_decay: _NotNegative = 0.0
    l2_weight: _NotNegative = 0.0
    global_clipnorm: _Positive | None = 1.0


@dataclasses.dataclass
class ScheduleConfig(hyperparams.Config):
    """The learning rate over the steps: see `rt_keras.training.schedule`."""

    name: Literal["constant", "cosine", "inverse_sqrt", "held_inverse_sqrt"] = "cosine"
    warmup_steps: _CountOrZero = 100
    final_fraction: _Share = 0.05


@dataclasses.dataclass
class CentroidsConfig(hyperparams.Config):
    """How the centroids move: see `rt_keras.callbacks.CentroidEMA`."""

    decay: _ShareBelowOne = 0.999
    update: Literal["mean", "count"] = "mean"
    load_bias_step: _NotNegative = 0.1
    initialize_from_batch: bool = False
    restart_after: _Count | None = None


@dataclasses.dataclass
class TrainerConfig(hyperparams.Config):
    """The run. It validates, and leaves a checkpoint, every `validation_every` steps."""

    seed: _CountOrZero = 1
    steps: _Count = 1500
    validation_every: _Count = 100
    validation_batches: _Count = 20
    strategy: Literal["one_device", "mirrored", "tpu"] = "one_device"
    tpu_address: str | None = None
    mixed_bfloat16: bool = False
    jit_compile: bool = True
    steps_per_execution: _Count = 1


@dataclasses.dataclass
class ExperimentConfig(hyperparams.Config):
    """Everything that makes one run: what `configs/NAME.yaml` holds."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    centroids: CentroidsConfig = dataclasses.field(default_factory=CentroidsConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)


def load_config(name, overrides=()):
    """Reads a configuration.

    Args:
        name: the name of one of `configs/`, without `.yaml`, or the path of a YAML file.
        overrides: strings `section.key=value`, the value as YAML.

    Returns:
        An `ExperimentConfig`; a key that neither names has its default.

    Raises:
        FileNotFoundError: if there is no such configuration.
        ValueError: if a key is unknown, or a value of the wrong type or out of range, or if the
            values do not go together.

    >>> config = load_config("books", ["optimizer.learning_rate=5e-4"])
    >>> config.model.routing.assignment, config.optimizer.learning_rate
    ('nearest', 0.0005)
    """
    given = dict(config_files.flatten(config_files.read_config(name)))
    for override in overrides:
        key, value = _parsed(override)
        given[key] = value
    return make_config(given)


def make_config(values):
    """A checked `ExperimentConfig` from dotted keys and their values.

    >>> make_config({"model.hidden_dim": 64}).model.hidden_dim
    64
    """
    annotations = dict(_annotations(ExperimentConfig))
    nested = {}
    for key, value in values.items():
        if key not in annotations:
            raise ValueError(_unknown(key, list(annotations)))
        *sections, last = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = _checked(key, value, annotations[key])
    config = ExperimentConfig()
    config.override(nested)
    check_together(config)
    return config


def to_yaml(config):
    """The configuration as the YAML text that `load_config` reads."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False)


def _parsed(override):
    """The key and the value of a string `section.key=value`."""
    key, equals, value = override.partition("=")
    if not equals:
        raise ValueError(f"override {override!r} must have the form section.key=value")
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, RecursionError):
        raise ValueError(f"the value of override {override!r} is not valid YAML") from None


def _annotations(section, prefix=""):
    """Dotted keys and annotations of everything that can be set in `section`."""
    hints = typing.get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, hyperparams.Config):
            yield from _annotations(hint, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hint


def _unknown(key, known):
    """What to say of a key that does not exist."""
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        return f"{key} is a section; set its keys: {', '.join(inside)}"
    section = key.rpartition(".")[0] + "."
    prefix = section if any(name.startswith(section) for name in known) else ""
    rests = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    nearest = difflib.get_close_matches(key.removeprefix(prefix), rests, n=1, cutoff=0.0)[0]
    return f"unknown key {key}; the nearest right one is {prefix}{nearest}"


def _checked(key, value, annotation):
    """The value as its annotation has it; a ValueError if it does not fit."""
    optional = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    if optional:
        if value is None:
            return None
        annotation = typing.get_args(annotation)[0]
    allowed = None
    if typing.get_origin(annotation) is Annotated:
        annotation, allowed = typing.get_args(annotation)
    # YAML 1.1 reads 1e-3, without a point, as text.
    if annotation is float and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", str(value)):
        value = float(value)
    if _fits(value, annotation) and (allowed is None or allowed.holds(value)):
        return float(value) if annotation is float else value
    wanted = allowed.text if allowed else _describe(annotation)
    raise ValueError(
        f"{key} is {value!r} ({type(value).__name__}); "
        f"it must be {wanted}{', or null' if optional else ''}"
    )


def _fits(value, annotation):
    """Whether the value is of the annotated type; bool is no number, and int will do for float."""
    if typing.get_origin(annotation) is Literal:
        return value in typing.get_args(annotation)
    if annotation in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if annotation is float else annotation)


def _describe(annotation):
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(typing.get_args(annotation))
    return {bool: "true or false", str: "text"}[annotation]
