"""The typed configuration of an experiment, its YAML files and overrides.

The sections are dataclasses. The declaration of each key validates its value; see `rt_keras.keys`.
"""

import dataclasses

import yaml

from rt_keras import config_files
from rt_keras.keys import (
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
    read_section,
    section,
)
from rt_keras.models.model_section import ModelSection
from rt_keras.training.config_checks import check_together
from rt_keras.training.experiment import Experiment
from rt_keras.training.strategy import STRATEGIES
from rt_keras.training.tasks import TASKS
from rt_keras.training.tokenizer import TOKENIZERS


@dataclasses.dataclass
class ModelConfig(ModelSection):
    """The model: see the backbone of its kind in `rt_keras.models`."""

    kind: str = key("causal_lm", "the task of the model", one_of(*TASKS))
    preset: str | None = key(None, "folder of a run or preset with initial weights, or null")
    hparams: str | None = key(
        None,
        "hyperparameters of the paper authors' code, by which rt_keras.convert builds the model: a "
        "published set or an hparams.json; null for a model of the other keys",
    )
    lora_rank: int | None = key(
        None, "rank of updates that are trained instead of the weights, null for none", AT_LEAST_1
    )


@dataclasses.dataclass
class TokenizerConfig:
    """The tokenizer."""

    name: str = key("bytes", "the tokenizer", one_of(*TOKENIZERS))
    vocabulary: str | None = key(None, "vocabulary file; required by all tokenizers except bytes")


@dataclasses.dataclass
class DataConfig:
    """The data and their batches.

    `name` is a data set of the task: see `rt_keras.data.load_documents` for a `causal_lm`,
    `load_pairs` for a `seq_2_seq_lm`, `load_images` for an `image_lm`, `load_speech` for `ctc`, and
    `load_question_answers` for `retriever` and `reader`.
    """

    name: str = key("python_source", "the data set")
    directory: str | None = key(None, "the folder or file to read, for data sets that need one")
    data_dir: str | None = key(None, "folder of prepared data sets, null for the default of TFDS")
    reverse: bool = key(False, "whether to predict the first text of a pair from the second")
    sequence_length: int = key(2048, "tokens, or positions of 40 ms, in a sequence", AT_LEAST_1)
    encoder_sequence_length: int | None = key(
        None, "tokens in a sequence of the encoder, null for sequence_length", AT_LEAST_1
    )
    label_length: int | None = key(
        None, "most tokens in the text of a sound, null for sequence_length", AT_LEAST_1
    )
    num_passages: int = key(7, "passages that a reader reads before a question", AT_LEAST_1)
    passage_length: int = key(288, "maximum number of tokens in a passage of a reader", AT_LEAST_1)
    question_length: int = key(64, "maximum number of tokens in a question", AT_LEAST_1)
    answer_length: int = key(256, "maximum number of tokens in an answer of a reader", AT_LEAST_1)
    num_negatives: int = key(0, "passages of a question that do not answer it", AT_LEAST_0)
    join_clips: bool = key(False, "whether to join consecutive sounds to fill the sequences")
    num_buckets: int = key(1, "groups of sounds by length; each batch is from one", AT_LEAST_1)
    speed_perturbation: float = key(
        0.0, "share of its speed by which each sound is also slower and faster", SHARE_BELOW_1
    )
    batch_size: int = key(2, "sequences, texts, pairs, images or sounds in a batch", AT_LEAST_1)


@dataclasses.dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = key("adam", "the optimizer", one_of("adam", "adamw", "adafactor"))
    learning_rate: float = key(1e-3, "peak learning rate", POSITIVE)
    beta_1: float = key(0.9, "decay rate of the first moment, for adam and adamw", SHARE_BELOW_1)
    beta_2: float = key(0.999, "decay rate of the second moment, for adam and adamw", SHARE_BELOW_1)
    epsilon: float = key(1e-7, "constant for numerical stability, for adam and adamw", POSITIVE)
    weight_decay: float = key(0.0, "weight decay of the optimizer", NOT_NEGATIVE)
    l2_weight: float = key(
        0.0, "L2 penalty: half of this times the squares of all weights but biases", NOT_NEGATIVE
    )
    global_clipnorm: float | None = key(1.0, "maximum global norm of gradients, or null", POSITIVE)


@dataclasses.dataclass
class ScheduleConfig:
    """The learning rate schedule: see `rt_keras.training.schedule`."""

    name: str = key(
        "cosine",
        "the schedule after the warm-up",
        one_of("constant", "cosine", "inverse_sqrt", "held_inverse_sqrt"),
    )
    warmup_steps: int = key(100, "steps of linear warm-up from 0", AT_LEAST_0)
    final_fraction: float = key(0.05, "final value of cosine, as a fraction of the peak", SHARE)


@dataclasses.dataclass
class CentroidsConfig:
    """The updates of the centroids: see `rt_keras.callbacks.CentroidEMA`."""

    decay: float = key(0.999, "decay rate of the moving average", SHARE_BELOW_1)
    update: str = key("mean", "mean as in the paper, count as in its code", one_of("mean", "count"))
    load_bias_step: float = key(0.1, "step size of the load bias, 0 for none", NOT_NEGATIVE)
    initialize_from_batch: bool = key(False, "whether centroids start as vectors of a batch")
    restart_after: int | None = key(
        None, "batches after which an empty cluster restarts, null for never", AT_LEAST_1
    )


@dataclasses.dataclass
class TrainerConfig:
    """The training loop."""

    seed: int = key(1, "random seed of weights, dropout and data order", AT_LEAST_0)
    steps: int = key(1500, "training steps", AT_LEAST_1)
    validation_every: int = key(100, "steps between validations", AT_LEAST_1)
    validation_batches: int = key(20, "batches in a validation", AT_LEAST_1)
    checkpoint_every: int = key(100, "steps between checkpoints", AT_LEAST_1)
    log_every: int = key(10, "steps between logs to TensorBoard", AT_LEAST_1)
    strategy: str = key(
        "one_device",
        "the distribution strategy: one device, all GPUs of this machine, or a TPU; with the "
        "environment variable TF_CONFIG, all devices of the workers that it names",
        one_of(*STRATEGIES),
    )
    tpu_address: str | None = key(None, "address of the TPU, empty for a local one")
    mixed_bfloat16: bool = key(False, "whether to compute in bfloat16")
    jit_compile: bool = key(True, "whether to compile the training step with XLA")
    steps_per_execution: int = key(1, "steps in each call of the compiled function", AT_LEAST_1)
    gradient_accumulation_steps: int = key(
        1, "parts of a batch that are processed in turn, for batches that do not fit", AT_LEAST_1
    )
    stateful: bool = key(
        False,
        "whether each row of a batch reads a document in chunks of data.sequence_length and keeps "
        "its state between chunks; gradients stay within a chunk; for a causal_lm",
    )
    state_dropout: float = key(
        0.1, "share of chunks that start from an empty state, with stateful", SHARE_BELOW_1
    )

    @property
    def dtype(self):
        """The dtype policy of the model."""
        return "mixed_bfloat16" if self.mixed_bfloat16 else "float32"


@dataclasses.dataclass
class ExperimentConfig:
    """The complete configuration of a run, the content of `configs/NAME.yaml`."""

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
        name: name of a published configuration, or path of a YAML file.
        overrides: iterable of strings `section.key=value`, with the value as YAML. Defaults to
            `()`.

    Returns:
        An `ExperimentConfig`; keys that are not set have their defaults.

    Raises:
        FileNotFoundError: if there is no such configuration.
        ValueError: if a file is not a configuration, a key is unknown, a value has the wrong type
            or is out of range, or values are incompatible.

    >>> config = load_config("books", ["optimizer.learning_rate=5e-4"])
    >>> config.model.routing.assignment, config.optimizer.learning_rate
    ('nearest', 0.0005)
    """
    layers = config_files.read_config(name), dict(map(config_files.parse_assignment, overrides))
    return make_config(config_files.merge(*(check_values(ExperimentConfig, x) for x in layers)))


def make_config(values):
    """Creates a validated `ExperimentConfig` from a dictionary of keys and values.

    Args:
        values: dictionary from keys such as "model.hidden_dim" to values.

    Returns:
        An `ExperimentConfig`; keys that are not set have their defaults.

    Raises:
        ValueError: as for `load_config`.

    >>> make_config({"model.hidden_dim": 64}).model.hidden_dim
    64
    """
    config = read_section(ExperimentConfig, values)
    check_together(Experiment(config))
    return config


def config_keys():
    """Returns the declarations of all keys of a configuration.

    Returns:
        A list of `rt_keras.keys.Key`.

    >>> key = config_keys()[0]
    >>> key.name, key.default, key.meaning
    ('model.kind', 'causal_lm', 'the task of the model')
    """
    return list(keys_of(ExperimentConfig).values())


def to_yaml(config):
    """Converts a configuration to YAML that `load_config` can read.

    Args:
        config: an `ExperimentConfig`.

    Returns:
        A string.

    >>> print(to_yaml(make_config({"model.hidden_dim": 64})))
    model:
    ...
      hidden_dim: 64
    ...
    """
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)
