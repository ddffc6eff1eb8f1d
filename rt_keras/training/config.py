"""The typed configuration of an experiment, its YAML files and overrides.

The sections are dataclasses. The declaration of each key validates its value; see
`rt_keras.training.config_fields`.
"""

import dataclasses

import yaml

from rt_keras.arguments import (
    AT_LEAST_0,
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_1,
    Allowed,
    one_of,
)
from rt_keras.training import config_files
from rt_keras.training.config_checks import check_together, refuse_old_heads
from rt_keras.training.config_fields import field, keys_of, read_section, section, set_value
from rt_keras.training.experiment import Experiment
from rt_keras.training.strategy import STRATEGIES
from rt_keras.training.tasks import TASKS
from rt_keras.training.tokenizer import TOKENIZERS

# Values of `model.kind` that share keys.
LANGUAGE_MODELS = ("causal_lm", "seq_2_seq_lm")
READERS = (*LANGUAGE_MODELS, "reader")
TEXTS = (*READERS, "retriever")
RETRIEVERS = ("retriever", "adapted_retriever")
ADAPTED = ("adapted_causal_lm", "adapted_retriever")
SEQUENCES = (*LANGUAGE_MODELS, "retriever", "ctc", *ADAPTED)
CAUSAL, PAIRS, READER, SPEECH = ("causal_lm",), ("seq_2_seq_lm",), ("reader",), ("ctc",)
# The heads of a model whose configuration does not give any.
HEADS = {"class": "LocalRoutingHeads", "num_heads": 4}
HEADS |= {"block_size": 64, "num_clusters": 16, "window_size": 64}
LOWER_HEADS = {"class": "LocalHeads", "num_heads": 4, "block_size": 128}
CROSS_HEADS = {"class": "FullHeads", "num_heads": 4}


@dataclasses.dataclass
class ImageConfig:
    """Images of an image model."""

    height: int = field(32, "rows of pixels", AT_LEAST_1)
    width: int = field(32, "columns of pixels", AT_LEAST_1)
    channels: int = field(3, "values per pixel", AT_LEAST_1)
    block_shape: list | None = field(
        None,
        "rows and values in a row of the blocks that order the values, as the heads' `grid` needs "
        "it; null for raster order",
    )
    num_classes: int | None = field(None, "classes, null for images without classes", AT_LEAST_1)
    position_embedding: bool = field(True, "whether to add embeddings of rows and columns")

    @property
    def shape(self):
        """The shape of an image, `(height, width, channels)`."""
        return self.height, self.width, self.channels


@dataclasses.dataclass
class SpeechConfig:
    """Features of a speech model and their masks in training; see `rt_keras.layers.SpecAugment`."""

    num_mel_bins: int = field(80, "features of a frame of sound", AT_LEAST_1)
    frequency_masks: int = field(2, "bands of features that are masked in training", AT_LEAST_0)
    frequency_mask_width: int = field(27, "maximum number of features in a band", AT_LEAST_0)
    time_masks: int = field(2, "stretches of frames that are masked in training", AT_LEAST_0)
    time_mask_width: int = field(100, "maximum number of frames in a stretch", AT_LEAST_0)


@dataclasses.dataclass
class ModelConfig:
    """The model: see the backbone of its kind in `rt_keras.models`."""

    kind: str = field("causal_lm", "the task of the model", one_of(*TASKS))
    preset: str | None = field(None, "folder of a run or preset with initial weights, or null")
    hparams: str | None = field(
        None,
        "hyperparameters of the paper authors' code, by which rt_keras.convert builds the model: a "
        "published set or an hparams.json; null for a model of the other keys",
        kinds=(*READERS, "image_lm"),
    )
    lora_rank: int | None = field(
        None, "rank of updates trained instead of the weights, or null", AT_LEAST_1, ADAPTED
    )
    vocabulary_size: int | None = field(
        None, "number of token ids; null for the tokenizer's, or 256 for images", AT_LEAST_1
    )
    num_encoder_layers: int = field(0, "blocks of the encoder", AT_LEAST_0, PAIRS)
    num_layers: int = field(2, "blocks, or blocks of the decoder with an encoder", AT_LEAST_1)
    heads: list = field([HEADS], "heads of each block, or a list of such lists, one per block")
    num_lower_layers: int = field(0, "blocks that have lower_heads instead of heads", AT_LEAST_0)
    lower_heads: list = field([LOWER_HEADS], "heads of the first num_lower_layers blocks")
    encoder_heads: list | None = field(
        None, "heads of the encoder's blocks, null for heads and lower_heads", kinds=PAIRS
    )
    cross_heads: list = field([CROSS_HEADS], "heads of the attention to the encoder", kinds=PAIRS)
    hidden_dim: int = field(256, "width of the blocks", AT_LEAST_1)
    intermediate_dim: int = field(1024, "width of the feed-forward networks", AT_LEAST_1)
    embedding_dim: int | None = field(
        None, "width of the embedding, null for hidden_dim", AT_LEAST_1, TEXTS
    )
    tie_embeddings: bool = field(
        True, "whether the output layer shares the weights of the embedding", kinds=TEXTS
    )
    key_dim: int | None = field(
        None, "key depth of a head, null for hidden_dim / number of heads", AT_LEAST_1
    )
    value_dim: int | None = field(None, "value depth of a head, null for key_dim", AT_LEAST_1)
    activation: str = field(
        "geglu", "relu, gelu, geglu or geglu_approximate, in the feed-forward networks"
    )
    normalize_first: bool = field(True, "pre-norm if true, post-norm if false")
    normalization: str = field("layer_norm", "normalization layer: layer_norm or rms_norm")
    dropout: float = field(
        0.0, "dropout before the first block and before residuals", SHARE_BELOW_1
    )
    attention_dropout: float | None = field(
        None, "dropout of attention weights, null for dropout", SHARE_BELOW_1
    )
    activation_dropout: float | None = field(
        None, "dropout of feed-forward activations, null for dropout", SHARE_BELOW_1
    )
    embedding_dropout: float = field(0.0, "dropout of the embedding", SHARE_BELOW_1, TEXTS)
    token_dropout: float = field(
        0.0, "probability of replacing a token by padding", SHARE_BELOW_1, TEXTS
    )
    encoder_input_dropout: float = field(
        0.0, "probability of zeroing an entry of the encoder's embedding", SHARE_BELOW_1, PAIRS
    )
    shift_tokens: bool = field(
        False, "whether blocks mix each position with the previous one", kinds=TEXTS
    )
    max_sequence_length: int | None = field(
        None, "number of position embeddings, null for none", AT_LEAST_1, TEXTS
    )
    sinusoidal_positions: bool = field(
        False, "whether to add sinusoidal positions", kinds=(*TEXTS, "ctc")
    )
    attention_bias: bool = field(True, "whether the dense layers of attention use biases")
    feed_forward_bias: bool = field(True, "whether feed-forward networks use biases")
    use_head_dense: bool = field(False, "whether heads pass through a shared dense layer")
    layer_norm_epsilon: float = field(1e-6, "epsilon of the normalization layers", POSITIVE)
    conv_kernel_size: int | list | None = field(
        None,
        "positions in the convolutions of queries, keys and values, or a list of one number per "
        "block; null for no convolutions",
        Allowed("an integer or a list"),
    )
    remat: bool = field(False, "whether the backward pass recomputes blocks, which saves memory")
    loss_chunk_size: int | None = field(
        None, "positions whose logits are computed at once, null for all", None, READERS
    )
    pooling: str = field("mean", "pooling of a retriever: mean or first", kinds=("retriever",))
    projection_dim: int | None = field(
        None, "features of an embedding, null for those of the blocks", None, ("retriever",)
    )
    temperature: float = field(
        0.05, "divisor of the similarities in the loss of a retriever", POSITIVE, RETRIEVERS
    )
    initializer_scale: float = field(
        1.0, "initial variance of dense layers, relative to Glorot's", POSITIVE
    )
    image: ImageConfig = section(ImageConfig, ("image_lm",))
    speech: SpeechConfig = section(SpeechConfig, ("ctc",))

    # The files and lines that set the keys of the configuration, for messages.
    places = None


@dataclasses.dataclass
class TokenizerConfig:
    """The tokenizer."""

    name: str = field("bytes", "the tokenizer", one_of(*TOKENIZERS))
    vocabulary: str | None = field(None, "vocabulary file; required by all tokenizers except bytes")


@dataclasses.dataclass
class DataConfig:
    """The data and their batches.

    `name` is a data set of the task: see `rt_keras.data.load_documents` for a `causal_lm`,
    `load_pairs` for a `seq_2_seq_lm`, `load_images` for an `image_lm`, `load_speech` for `ctc`, and
    `load_question_answers` for `retriever` and `reader`.
    """

    name: str = field("python_source", "the data set")
    directory: str | None = field(None, "the folder or file to read, for data sets that need one")
    data_dir: str | None = field(None, "folder of prepared data sets, null for the default of TFDS")
    reverse: bool = field(
        False, "whether to predict the first text of a pair from the second", kinds=PAIRS
    )
    sequence_length: int = field(
        2048, "tokens, or positions of 40 ms, in a sequence", AT_LEAST_1, SEQUENCES
    )
    encoder_sequence_length: int | None = field(
        None,
        "tokens in a sequence of the encoder, null for sequence_length",
        AT_LEAST_1,
        PAIRS,
    )
    label_length: int | None = field(
        None,
        "most tokens in the text of a sound, null for sequence_length",
        AT_LEAST_1,
        SPEECH,
    )
    num_passages: int = field(
        7, "passages that a reader reads before a question", AT_LEAST_1, READER
    )
    passage_length: int = field(
        288, "maximum number of tokens in a passage of a reader", AT_LEAST_1, READER
    )
    question_length: int = field(
        64, "maximum number of tokens in a question", AT_LEAST_1, (*READER, *RETRIEVERS)
    )
    answer_length: int = field(
        256, "maximum number of tokens in an answer of a reader", AT_LEAST_1, READER
    )
    num_negatives: int = field(
        0, "passages of a question that do not answer it", AT_LEAST_0, RETRIEVERS
    )
    join_clips: bool = field(
        False, "whether to join consecutive sounds to fill the sequences", kinds=SPEECH
    )
    num_buckets: int = field(
        1, "groups of sounds by length; each batch is from one", AT_LEAST_1, SPEECH
    )
    speed_perturbation: float = field(
        0.0,
        "share of its speed by which each sound is also slower and faster",
        SHARE_BELOW_1,
        SPEECH,
    )
    batch_size: int = field(2, "sequences, texts, pairs, images or sounds in a batch", AT_LEAST_1)


@dataclasses.dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = field("adam", "the optimizer", one_of("adam", "adamw", "adafactor"))
    learning_rate: float = field(1e-3, "peak learning rate", POSITIVE)
    beta_1: float = field(0.9, "decay rate of the first moment, for adam and adamw", SHARE_BELOW_1)
    beta_2: float = field(
        0.999, "decay rate of the second moment, for adam and adamw", SHARE_BELOW_1
    )
    epsilon: float = field(1e-7, "constant for numerical stability, for adam and adamw", POSITIVE)
    weight_decay: float = field(0.0, "weight decay of the optimizer", NOT_NEGATIVE)
    l2_weight: float = field(
        0.0, "L2 penalty: half of this times the squares of all weights but biases", NOT_NEGATIVE
    )
    global_clipnorm: float | None = field(
        1.0, "maximum global norm of gradients, or null", POSITIVE
    )


@dataclasses.dataclass
class ScheduleConfig:
    """The learning rate schedule: see `rt_keras.training.schedule`."""

    name: str = field(
        "cosine",
        "the schedule after the warm-up",
        one_of("constant", "cosine", "inverse_sqrt", "held_inverse_sqrt"),
    )
    warmup_steps: int = field(100, "steps of linear warm-up from 0", AT_LEAST_0)
    final_fraction: float = field(0.05, "final value of cosine, as a fraction of the peak", SHARE)


@dataclasses.dataclass
class CentroidsConfig:
    """The updates of the centroids: see `rt_keras.callbacks.CentroidEMA`."""

    decay: float = field(0.999, "decay rate of the moving average", SHARE_BELOW_1)
    update: str = field(
        "mean", "mean as in the paper, count as in its code", one_of("mean", "count")
    )
    load_bias_step: float = field(0.1, "step size of the load bias, 0 for none", NOT_NEGATIVE)
    initialize_from_batch: bool = field(False, "whether centroids start as vectors of a batch")
    restart_after: int | None = field(
        None, "batches after which an empty cluster restarts, null for never", AT_LEAST_1
    )


@dataclasses.dataclass
class TrainerConfig:
    """The training loop."""

    seed: int = field(1, "random seed of weights, dropout and data order", AT_LEAST_0)
    steps: int = field(1500, "training steps", AT_LEAST_1)
    validation_every: int = field(100, "steps between validations", AT_LEAST_1)
    validation_batches: int = field(20, "batches in a validation", AT_LEAST_1)
    checkpoint_every: int = field(100, "steps between checkpoints", AT_LEAST_1)
    log_every: int = field(10, "steps between logs to TensorBoard", AT_LEAST_1)
    strategy: str = field(
        "one_device",
        "the distribution strategy: one device, all GPUs of this machine, or a TPU; with the "
        "environment variable TF_CONFIG, all devices of the workers that it names",
        one_of(*STRATEGIES),
    )
    tpu_address: str | None = field(None, "address of the TPU, empty for a local one")
    mixed_bfloat16: bool = field(False, "whether to compute in bfloat16")
    jit_compile: bool = field(True, "whether to compile the training step with XLA")
    steps_per_execution: int = field(1, "steps in each call of the compiled function", AT_LEAST_1)
    gradient_accumulation_steps: int = field(
        1, "parts of a batch that are processed in turn, for batches that do not fit", AT_LEAST_1
    )
    stateful: bool = field(
        False,
        "whether each row of a batch reads a document in chunks of data.sequence_length and keeps "
        "its state between chunks; gradients stay within a chunk; for a causal_lm",
        kinds=CAUSAL,
    )
    state_dropout: float = field(
        0.1,
        "share of chunks that start from an empty state, with stateful",
        SHARE_BELOW_1,
        CAUSAL,
    )

    @property
    def dtype(self):
        """The dtype policy of the model."""
        return "mixed_bfloat16" if self.mixed_bfloat16 else "float32"


@dataclasses.dataclass
class ExperimentConfig:
    """The complete configuration of a run, the content of `configs/NAME.yaml`."""

    model: ModelConfig = section(ModelConfig)
    tokenizer: TokenizerConfig = section(TokenizerConfig, (*TEXTS, "ctc"))
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
    >>> config.model.heads[0]["class"], config.optimizer.learning_rate
    ('LocalRoutingHeads', 0.0005)
    """
    pairs, places = config_files.read_config(config_files.find_config(name))
    for text in overrides:
        key, value = config_files.parse_assignment(text)
        pairs += config_files.flatten({key: value})
        inside = (f"{key}.", f"{key}[")
        places = {name: place for name, place in places.items() if not name.startswith(inside)}
        places[key] = f"--set {text}"
    return _make_config(pairs, places)


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
    return _make_config(config_files.flatten(values), {})


def _make_config(pairs, places):
    """Creates a configuration from pairs of keys and values, and the places that set them."""
    values = dataclasses.asdict(ExperimentConfig())
    for key, value in pairs:
        set_value(values, key, value, places)
    refuse_old_heads(values["model"], places)
    config = read_section(ExperimentConfig, values, places=places)
    config.model.places = places
    check_together(Experiment(config))
    return config


def config_keys():
    """Returns the declarations of all keys of a configuration.

    Returns:
        A list of `rt_keras.training.config_fields.Key`.

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
