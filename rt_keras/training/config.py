"""The typed configuration of an experiment, its YAML files and overrides.

The sections are dataclasses. The declaration of each key validates its value; see
`rt_keras.training.config_fields`.
"""

import copy
import dataclasses
import re

import yaml

from rt_keras.arguments import (
    AT_LEAST_0,
    AT_LEAST_1,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_1,
    one_of,
)
from rt_keras.training import config_files
from rt_keras.training.config_checks import check_together, refuse_old_heads
from rt_keras.training.config_fields import field, keys_of, place_of, section, set_value
from rt_keras.training.experiment import Experiment
from rt_keras.training.schedule import SCHEDULES
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
TOKENIZED = (*TEXTS, "ctc")
T2T = (*READERS, "image_lm")
CAUSAL, PAIRS, READER = ("causal_lm",), ("seq_2_seq_lm",), ("reader",)
RETRIEVER, SPEECH = ("retriever",), ("ctc",)
# The heads of a model whose configuration does not give any.
HEADS = {"class": "LocalRoutingHeads", "num_heads": 4}
HEADS |= {"block_size": 64, "num_clusters": 16, "window_size": 64}
LOWER_HEADS = {"class": "LocalHeads", "num_heads": 4, "block_size": 128}
CROSS_HEADS = {"class": "FullHeads", "num_heads": 4}


def count(default, meaning, kinds=None):
    """A field that holds an integer of at least 1; see `field`."""
    return field(default, meaning, AT_LEAST_1, kinds)


def rate(default, meaning, kinds=None):
    """A field that holds a number of at least 0 and below 1; see `field`."""
    return field(default, meaning, SHARE_BELOW_1, kinds)


@dataclasses.dataclass
class ImageConfig:
    """Images of an image model."""

    height: int = count(32, "rows of pixels")
    width: int = count(32, "columns of pixels")
    channels: int = count(3, "values per pixel")
    block_shape: list | None = field(None, "rows and values in a row of a block; null for rows")
    num_classes: int | None = count(None, "classes, null for images without classes")
    position_embedding: bool = field(True, "whether to add embeddings of rows and columns")

    @property
    def shape(self):
        """The shape of an image, `(height, width, channels)`."""
        return self.height, self.width, self.channels


@dataclasses.dataclass
class SpeechConfig:
    """Features of a speech model and their masks in training; see `rt_keras.layers.SpecAugment`."""

    num_mel_bins: int = count(80, "features of a frame of sound")
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
        None, "name or file of hyperparameters of the authors' code", kinds=T2T
    )
    lora_rank: int | None = count(None, "rank of updates that are trained, or null", ADAPTED)
    vocabulary_size: int | None = count(None, "token ids; null for the tokenizer's, 256 for images")
    num_encoder_layers: int = field(0, "blocks of the encoder", AT_LEAST_0, PAIRS)
    num_layers: int = count(2, "blocks, or blocks of the decoder with an encoder")
    heads: list = field([HEADS], "heads of each block, or a list of such lists, one per block")
    num_lower_layers: int = field(0, "blocks that have lower_heads instead of heads", AT_LEAST_0)
    lower_heads: list = field([LOWER_HEADS], "heads of the first num_lower_layers blocks")
    encoder_heads: list | None = field(None, "heads of the encoder, null for heads", kinds=PAIRS)
    cross_heads: list = field([CROSS_HEADS], "heads of the attention to the encoder", kinds=PAIRS)
    hidden_dim: int = count(256, "width of the blocks")
    intermediate_dim: int = count(1024, "width of the feed-forward networks")
    embedding_dim: int | None = count(None, "width of the embedding, null for hidden_dim", TEXTS)
    tie_embeddings: bool = field(True, "whether output and embedding share weights", kinds=TEXTS)
    key_dim: int | None = count(None, "key depth of a head, null for hidden_dim / heads")
    value_dim: int | None = count(None, "value depth of a head, null for key_dim")
    activation: str = field("geglu", "relu, gelu, geglu or geglu_approximate")
    normalize_first: bool = field(True, "pre-norm if true, post-norm if false")
    normalization: str = field("layer_norm", "normalization layer: layer_norm or rms_norm")
    dropout: float = rate(0.0, "dropout before the first block and residuals")
    attention_dropout: float | None = rate(None, "that of attention weights, null for dropout")
    activation_dropout: float | None = rate(None, "that of feed-forward networks, null for dropout")
    embedding_dropout: float = rate(0.0, "dropout of the embedding", TEXTS)
    token_dropout: float = rate(0.0, "probability of replacing a token by padding", TEXTS)
    encoder_input_dropout: float = rate(0.0, "that of the encoder's embedding", PAIRS)
    shift_tokens: bool = field(False, "whether blocks mix neighboring positions", kinds=TEXTS)
    max_sequence_length: int | None = count(None, "number of position embeddings, or null", TEXTS)
    sinusoidal_positions: bool = field(
        False, "whether to add sinusoidal positions", kinds=TOKENIZED
    )
    attention_bias: bool = field(True, "whether the dense layers of attention use biases")
    feed_forward_bias: bool = field(True, "whether feed-forward networks use biases")
    use_head_dense: bool = field(False, "whether heads pass through a shared dense layer")
    layer_norm_epsilon: float = field(1e-6, "epsilon of the normalization layers", POSITIVE)
    conv_kernel_size: int | list | None = field(
        None, "width of the convolutions of queries, keys and values, or a list, one per block"
    )
    remat: bool = field(False, "whether the backward pass recomputes blocks, which saves memory")
    loss_chunk_size: int | None = count(None, "positions of logits at once, null for all", READERS)
    pooling: str = field("mean", "pooling of a retriever: mean or first", kinds=RETRIEVER)
    projection_dim: int | None = count(None, "features of its output, or null", RETRIEVER)
    temperature: float = field(0.05, "divisor of similarities in the loss", POSITIVE, RETRIEVERS)
    initializer_scale: float = field(1.0, "initial variance of dense layers / Glorot's", POSITIVE)
    image: ImageConfig = section(ImageConfig, ("image_lm",))
    speech: SpeechConfig = section(SpeechConfig, SPEECH)

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
    reverse: bool = field(False, "whether to predict the first text of a pair", kinds=PAIRS)
    sequence_length: int = count(2048, "tokens, or positions of 40 ms, in a sequence", SEQUENCES)
    encoder_sequence_length: int | None = count(None, "that of an encoder, or null", PAIRS)
    label_length: int | None = count(None, "most tokens of a sound, or null", SPEECH)
    num_passages: int = count(7, "passages before a question", READER)
    passage_length: int = count(288, "most tokens in a passage", READER)
    question_length: int = count(64, "most tokens in a question", (*READER, *RETRIEVERS))
    answer_length: int = count(256, "most tokens in an answer", READER)
    num_negatives: int = field(0, "passages that do not answer it", AT_LEAST_0, RETRIEVERS)
    join_clips: bool = field(False, "whether to join sounds to fill sequences", kinds=SPEECH)
    num_buckets: int = count(1, "groups of sounds by length; a batch is from one", SPEECH)
    speed_perturbation: float = rate(0.0, "share by which sounds are slower and faster", SPEECH)
    batch_size: int = count(2, "sequences, texts, pairs, images or sounds in a batch")


@dataclasses.dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = field("adam", "the optimizer", one_of("adam", "adamw", "adafactor"))
    learning_rate: float = field(1e-3, "peak learning rate", POSITIVE)
    beta_1: float = rate(0.9, "decay rate of the first moment, for adam and adamw")
    beta_2: float = rate(0.999, "decay rate of the second moment, for adam and adamw")
    epsilon: float = field(1e-7, "constant for numerical stability, for adam and adamw", POSITIVE)
    weight_decay: float = field(0.0, "weight decay of the optimizer", NOT_NEGATIVE)
    l2_weight: float = field(0.0, "L2 penalty of all weights but biases", NOT_NEGATIVE)
    global_clipnorm: float | None = field(1.0, "maximum norm of gradients, or null", POSITIVE)


@dataclasses.dataclass
class ScheduleConfig:
    """The learning rate schedule: see `rt_keras.training.schedule`."""

    name: str = field("cosine", "the schedule after the warm-up", one_of(*SCHEDULES))
    warmup_steps: int = field(100, "steps of linear warm-up from 0", AT_LEAST_0)
    final_fraction: float = field(0.05, "final value of cosine, as a fraction of the peak", SHARE)


@dataclasses.dataclass
class CentroidsConfig:
    """The updates of the centroids: see `rt_keras.callbacks.CentroidEMA`."""

    decay: float = rate(0.999, "decay rate of the moving average")
    update: str = field("mean", "as in the paper, or its code", one_of("mean", "count"))
    load_bias_step: float = field(0.1, "step size of the load bias, 0 for none", NOT_NEGATIVE)
    initialize_from_batch: bool = field(False, "whether centroids start as vectors of a batch")
    restart_after: int | None = count(None, "batches before an empty cluster restarts, or null")


@dataclasses.dataclass
class TrainerConfig:
    """The training loop."""

    seed: int = field(1, "random seed of weights, dropout and data order", AT_LEAST_0)
    steps: int = count(1500, "training steps")
    validation_every: int = count(100, "steps between validations")
    validation_batches: int = count(20, "batches in a validation")
    checkpoint_every: int = count(100, "steps between checkpoints")
    log_every: int = count(10, "steps between logs to TensorBoard")
    strategy: str = field("one_device", "distribution over devices", one_of(*STRATEGIES))
    tpu_address: str | None = field(None, "address of the TPU, empty for a local one")
    mixed_bfloat16: bool = field(False, "whether to compute in bfloat16")
    jit_compile: bool = field(True, "whether to compile the training step with XLA")
    steps_per_execution: int = count(1, "steps in each call of the compiled function")
    gradient_accumulation_steps: int = count(1, "parts of a batch that are processed in turn")
    stateful: bool = field(
        False, "whether states are kept between chunks of a document", kinds=CAUSAL
    )
    state_dropout: float = rate(0.1, "share of chunks that start from an empty state", CAUSAL)

    @property
    def dtype(self):
        """The dtype policy of the model."""
        return "mixed_bfloat16" if self.mixed_bfloat16 else "float32"


@dataclasses.dataclass
class ExperimentConfig:
    """The complete configuration of a run, the content of `configs/NAME.yaml`."""

    model: ModelConfig = section(ModelConfig)
    tokenizer: TokenizerConfig = section(TokenizerConfig, TOKENIZED)
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
    layers = config_files.read_config(config_files.find_config(name))
    for text in overrides:
        values = config_files.flatten(dict([config_files.parse_assignment(text)]))
        layers.append((values, dict.fromkeys(values, f"--set {text}")))
    return _make_config(layers)


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
    return _make_config([(config_files.flatten(values), {})])


def _make_config(layers):
    """Creates a configuration from pairs of values by their keys and the places that set them."""
    config, places = ExperimentConfig(), {}
    for values, places_of_layer in layers:
        for key, value in values.items():
            try:
                refuse_old_heads(key)
                # A copy, since a later key may change an option in a list.
                set_value(config, key, copy.deepcopy(value))
            except ValueError as error:
                raise ValueError(f"{place_of(key, places_of_layer)}{error}") from None
        # A list replaces the entries of the previous list.
        replaced = tuple(f"{key}[" for key in places_of_layer)
        places = {key: place for key, place in places.items() if not key.startswith(replaced)}
        places |= places_of_layer
    config.model.places = places
    try:
        check_together(Experiment(config))
    except ValueError as error:
        # Messages begin with the key.
        key = re.match(r"[\w.]*", str(error))[0]
        raise ValueError(f"{place_of(key, places)}{error}") from error
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
