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
from pathlib import Path
from typing import Annotated, Literal

import yaml
from official.modeling import hyperparams

from rt_keras import files


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
    """Local heads: see `rt_keras.layers.LocalHeads`. No heads: the group is absent."""

    num_heads: _CountOrZero = 2
    block_size: _Count = 128
    look_back: _CountOrZero = 1
    max_relative_distance: _Count | None = None


@dataclasses.dataclass
class RoutingConfig(hyperparams.Config):
    """Routing heads: see `rt_keras.layers.RoutingHeads`. No heads: the group is absent.

    Blocks before number `first_layer` (from 0) have local heads in the place of routing heads.
    """

    num_heads: _CountOrZero = 2
    num_clusters: _Count = 16
    window_size: _Count = 128
    assignment: Literal["nearest", "balanced"] = "nearest"
    share_qk: bool = False
    num_probes: _Count = 1
    max_relative_distance: _Count | None = None
    commitment_weight: _NotNegative = 1e-4
    first_layer: _CountOrZero = 0


@dataclasses.dataclass
class FullConfig(hyperparams.Config):
    """Full attention heads: see `rt_keras.layers.FullHeads`. No heads: the group is absent."""

    num_heads: _CountOrZero = 0
    max_relative_distance: _Count | None = None


@dataclasses.dataclass
class ModelConfig(hyperparams.Config):
    """The model: see `rt_keras.models.RoutingTransformerBackbone`.

    Without a `max_sequence_length` there are no absolute positions, and sequences may be of any
    length.
    """

    num_layers: _Count = 2
    hidden_dim: _Count = 256
    intermediate_dim: _Count = 1024
    activation: Literal["relu", "gelu", "geglu"] = "geglu"
    normalize_first: bool = True
    dropout: _ShareBelowOne = 0.0
    shift_tokens: bool = False
    max_sequence_length: _Count | None = None
    local: LocalConfig = dataclasses.field(default_factory=LocalConfig)
    routing: RoutingConfig = dataclasses.field(default_factory=RoutingConfig)
    full: FullConfig = dataclasses.field(default_factory=FullConfig)


@dataclasses.dataclass
class TokenizerConfig(hyperparams.Config):
    """The tokenizer, and the vocabulary file that all but `bytes` need."""

    name: Literal["bytes", "sentence_piece", "word_piece", "t2t_subwords"] = "bytes"
    vocabulary: str | None = None


@dataclasses.dataclass
class DataConfig(hyperparams.Config):
    """The text, and how it is cut into batches.

    `directory` is the folder of `text_folder`, `enwik8` and `wikitext103`; `data_dir` is where
    prepared data sets are kept.
    """

    name: Literal["python_source", "text_folder", "pg19", "enwik8", "wikitext103"] = "python_source"
    directory: str | None = None
    data_dir: str | None = None
    sequence_length: _Count = 2048
    batch_size: _Count = 2
    shuffle_buffer: _Count = 4096


@dataclasses.dataclass
class OptimizerConfig(hyperparams.Config):
    """The optimizer. `beta_1`, `beta_2` and `epsilon` are those of Adam and AdamW."""

    name: Literal["adam", "adamw", "adafactor"] = "adam"
    learning_rate: _Positive = 1e-3
    beta_1: _ShareBelowOne = 0.9
    beta_2: _ShareBelowOne = 0.999
    epsilon: _Positive = 1e-7
    weight_decay: _NotNegative = 0.0
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
    text = _find(name).read_text(encoding="utf-8")
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name} must hold sections with keys, not {type(values).__name__}")
    given = dict(_flatten(values))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ValueError(f"override {override!r} must have the form section.key=value")
        given[key.strip()] = yaml.safe_load(value)
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
    _check_together(config)
    return config


def to_yaml(config):
    """The configuration as the YAML text that `load_config` reads."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False)


def _find(name):
    """The file of a configuration given by name or path."""
    published = files.config_folder() / f"{name}.yaml"
    if published.is_file():
        return published
    if Path(name).is_file():
        return Path(name)
    names = sorted(path.stem for path in files.config_folder().glob("*.yaml"))
    raise FileNotFoundError(
        f"there is no configuration {str(name)!r}; name a YAML file or one of {', '.join(names)}"
    )


def _flatten(values, prefix=""):
    """Dotted keys and values of nested sections."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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


def _check_together(config):
    """Raises a ValueError where values do not go together."""
    _check_heads(config.model)
    _check_lengths(config)
    _check_sources(config)
    _check_steps(config)


def _check_heads(model):
    heads = {name: model.get(name).num_heads for name in ("local", "routing", "full")}
    total = sum(heads.values())
    if total == 0:
        raise ValueError("model.local, model.routing and model.full all have num_heads 0")
    if model.hidden_dim % total:
        listed = ", ".join(f"{name} {count}" for name, count in heads.items())
        below = model.hidden_dim - model.hidden_dim % total
        raise ValueError(
            f"model.hidden_dim is {model.hidden_dim}, which its {total} heads ({listed}) do not "
            f"divide; it must be a multiple of {total}, such as {below or total}"
        )
    routing = model.routing
    if routing.num_heads and routing.num_probes > routing.num_clusters:
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be at most "
            f"model.routing.num_clusters, {routing.num_clusters}"
        )
    if routing.num_heads and routing.num_probes > 1 and routing.assignment == "balanced":
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be 1 with assignment "
            "balanced"
        )
    if routing.first_layer > model.num_layers:
        raise ValueError(
            f"model.routing.first_layer is {routing.first_layer}; it must be at most "
            f"model.num_layers, {model.num_layers}"
        )


def _check_lengths(config):
    length = config.data.sequence_length
    local, routing = config.model.local, config.model.routing
    for key, value, num_heads in (
        ("model.local.block_size", local.block_size, local.num_heads),
        ("model.routing.window_size", routing.window_size, routing.num_heads),
    ):
        if num_heads and value > length:
            raise ValueError(
                f"{key} is {value} and data.sequence_length only {length}; "
                f"a sequence must be at least as long as one window"
            )
    longest = config.model.max_sequence_length
    if longest is not None and longest < length:
        raise ValueError(
            f"model.max_sequence_length is {longest}; it must be at least data.sequence_length, "
            f"{length}, or null"
        )


def _check_sources(config):
    tokenizer, data = config.tokenizer, config.data
    if tokenizer.name != "bytes" and tokenizer.vocabulary is None:
        raise ValueError(f"tokenizer.vocabulary must name a file for tokenizer {tokenizer.name}")
    if tokenizer.vocabulary is not None and not Path(tokenizer.vocabulary).is_file():
        raise ValueError(f"tokenizer.vocabulary is {tokenizer.vocabulary!r}, which is no file")
    if data.name in ("text_folder", "enwik8", "wikitext103") and data.directory is None:
        raise ValueError(f"data.directory must name the folder for data {data.name}")
    if config.trainer.strategy == "tpu" and config.trainer.tpu_address is None:
        raise ValueError('trainer.tpu_address must be set for strategy tpu; "" is a local one')


def _check_steps(config):
    trainer = config.trainer
    for key, value, whole_key, whole in (
        ("trainer.validation_every", trainer.validation_every, "trainer.steps", trainer.steps),
        (
            "trainer.steps_per_execution",
            trainer.steps_per_execution,
            "trainer.validation_every",
            trainer.validation_every,
        ),
    ):
        if whole % value:
            raise ValueError(f"{key} is {value}; it must divide {whole_key}, {whole}")
    if config.schedule.warmup_steps > trainer.steps:
        raise ValueError(
            f"schedule.warmup_steps is {config.schedule.warmup_steps}; it must be at most "
            f"trainer.steps, {trainer.steps}"
        )
