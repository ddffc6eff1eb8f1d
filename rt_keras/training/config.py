"""The typed configuration of an experiment, its YAML files and overrides.

The sections are dataclasses on `official.modeling.hyperparams`. That package rejects keys it does
not know, but takes a string for a number without a word, so every value is held against the
declaration of its key, `rt_keras.models.keys`, before it goes in.
"""

import dataclasses

import yaml

from rt_keras import config_files, extras
from rt_keras.models.keys import (
    AT_LEAST_0,
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_1,
    check_values,
    key,
    keys_of,
    one_of,
    section,
)
from rt_keras.models.model_section import ModelSection
from rt_keras.training.config_checks import check_together
from rt_keras.training.tasks import TASKS
from rt_keras.training.tokenizer import TOKENIZERS

with extras.needed("train", "Training"):
    from official.modeling import hyperparams


def _typed(cls):
    """A section of `rt_keras.models`, and those inside it, as sections of `hyperparams`."""
    inside = {
        field.name: _typed(field.type)
        for field in dataclasses.fields(cls)
        if dataclasses.is_dataclass(field.type)
    }
    return dataclasses.make_dataclass(
        cls.__name__,
        [(name, typed, section(typed)) for name, typed in inside.items()],
        bases=(cls, hyperparams.Config),
        namespace={"__doc__": cls.__doc__, "__module__": __name__},
    )


@dataclasses.dataclass
class ModelConfig(_typed(ModelSection)):
    """The model: see the backbone of its kind in `rt_keras.models`."""

    kind: str = key("causal_lm", "which model it is", one_of(*TASKS))


@dataclasses.dataclass
class TokenizerConfig(hyperparams.Config):
    """The tokenizer."""

    name: str = key("bytes", "which tokenizer", one_of(*TOKENIZERS))
    vocabulary: str | None = key(None, "vocabulary file, which all but bytes need")


@dataclasses.dataclass
class DataConfig(hyperparams.Config):
    """The data, and how it is cut into batches.

    `name` is a set of the model's kind: of documents, `rt_keras.data.load_documents`; of pairs of
    texts, `load_pairs`; of images, `load_images`.
    """

    name: str = key("python_source", "the data set")
    directory: str | None = key(None, "folder of the sets that read one")
    data_dir: str | None = key(None, "where prepared data sets are kept")
    reverse: bool = key(False, "whether the first text of a pair is written from the second")
    sequence_length: int = key(2048, "tokens of a sequence", AT_LEAST_1)
    encoder_sequence_length: int | None = key(
        None, "tokens that an encoder sees, sequence_length if null", AT_LEAST_1
    )
    batch_size: int = key(2, "sequences of a batch", AT_LEAST_1)
    shuffle_buffer: int = key(4096, "examples among which the next one is drawn", AT_LEAST_1)


@dataclasses.dataclass
class OptimizerConfig(hyperparams.Config):
    """The optimizer."""

    name: str = key("adam", "which optimizer", one_of("adam", "adamw", "adafactor"))
    learning_rate: float = key(1e-3, "highest learning rate of the schedule", POSITIVE)
    beta_1: float = key(0.9, "decay of the mean of gradients, in adam and adamw", SHARE_BELOW_1)
    beta_2: float = key(0.999, "decay of the mean of their squares", SHARE_BELOW_1)
    epsilon: float = key(1e-7, "constant for numerical stability, in adam and adamw", POSITIVE)
    weight_decay: float = key(0.0, "share of each weight taken off at each step", NOT_NEGATIVE)
    l2_weight: float = key(
        0.0, "half of it times the squares of all weights but biases is in the loss", NOT_NEGATIVE
    )
    global_clipnorm: float | None = key(1.0, "largest norm of all gradients together", POSITIVE)


@dataclasses.dataclass
class ScheduleConfig(hyperparams.Config):
    """The learning rate over the steps: see `rt_keras.training.schedule`."""

    name: str = key(
        "cosine",
        "shape of the schedule",
        one_of("constant", "cosine", "inverse_sqrt", "held_inverse_sqrt"),
    )
    warmup_steps: int = key(100, "steps over which the learning rate rises from 0", AT_LEAST_0)
    final_fraction: float = key(0.05, "share of the learning rate that cosine ends at", SHARE)


@dataclasses.dataclass
class CentroidsConfig(hyperparams.Config):
    """How the centroids move: see `rt_keras.callbacks.CentroidEMA`."""

    decay: float = key(0.999, "share of a centroid that stays at each step", SHARE_BELOW_1)
    update: str = key("mean", "what a centroid moves towards", one_of("mean", "count"))
    load_bias_step: float = key(0.1, "step of the load bias", NOT_NEGATIVE)
    initialize_from_batch: bool = key(False, "whether centroids start as members of a batch")
    restart_after: int | None = key(
        None, "batches without members after which a centroid restarts", AT_LEAST_1
    )


@dataclasses.dataclass
class TrainerConfig(hyperparams.Config):
    """The run."""

    seed: int = key(1, "seed of weights, dropout and the order of the data", AT_LEAST_0)
    steps: int = key(1500, "steps of training", AT_LEAST_1)
    validation_every: int = key(100, "steps between validations and checkpoints", AT_LEAST_1)
    validation_batches: int = key(20, "batches of a validation", AT_LEAST_1)
    strategy: str = key(
        "one_device", "devices to train on", one_of("one_device", "mirrored", "tpu")
    )
    tpu_address: str | None = key(None, "address of the TPU; empty for a local one")
    mixed_bfloat16: bool = key(False, "whether the dtype policy is mixed_bfloat16")
    jit_compile: bool = key(True, "whether XLA compiles the steps")
    steps_per_execution: int = key(1, "steps of each call of the compiled function", AT_LEAST_1)


@dataclasses.dataclass
class ExperimentConfig(hyperparams.Config):
    """Everything that makes one run: what `configs/NAME.yaml` holds."""

    model: ModelConfig = section(ModelConfig)
    tokenizer: TokenizerConfig = section(TokenizerConfig)
    data: DataConfig = section(DataConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    schedule: ScheduleConfig = section(ScheduleConfig)
    centroids: CentroidsConfig = section(CentroidsConfig)
    trainer: TrainerConfig = section(TrainerConfig)


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
    return _config(config_files.read_config(name), dict(map(_parsed, overrides)))


def make_config(values):
    """A checked `ExperimentConfig` from dotted keys and their values.

    >>> make_config({"model.hidden_dim": 64}).model.hidden_dim
    64
    """
    return _config(values)


def _config(*layers):
    """A checked `ExperimentConfig` from values, the later ones over the earlier."""
    config = ExperimentConfig()
    for values in layers:
        config.override(check_values(ExperimentConfig, values))
    check_together(config)
    return config


def config_keys():
    """The declarations of all keys of a configuration.

    Returns:
        A list of `rt_keras.models.keys.Key`.

    >>> key = config_keys()[0]
    >>> key.name, key.default, key.meaning
    ('model.kind', 'causal_lm', 'which model it is')
    """
    return list(keys_of(ExperimentConfig).values())


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
