"""What a configuration describes: its tokenizer, model, optimizer and strategy."""

import json
from pathlib import Path

import keras

from rt_keras.training.schedule import make_schedule

# Values of a channel of an image.
PIXEL_VALUES = 256


def make_tokenizer(config):
    """The tokenizer of a `TokenizerConfig`."""
    from rt_keras import data

    if config.name == "bytes":
        return data.ByteTokenizer()
    if config.name == "sentence_piece":
        return data.SentencePieceTokenizer(proto=config.vocabulary)
    if config.name == "t2t_subwords":
        return data.T2TSubwordTokenizer(vocabulary=config.vocabulary)
    if config.name == "words":
        return data.WordTokenizer(vocabulary=config.vocabulary)
    return data.WordPieceTokenizer(vocabulary=config.vocabulary)


def make_preprocessor(config):
    """The preprocessor of an `ExperimentConfig`, with its tokenizer; None for images."""
    from rt_keras import models

    length = config.data.sequence_length
    if config.model.kind == "image_lm":
        return None
    tokenizer = make_tokenizer(config.tokenizer)
    if config.model.kind == "causal_lm":
        return models.RoutingTransformerCausalLMPreprocessor(tokenizer, sequence_length=length)
    return models.RoutingTransformerSeq2SeqLMPreprocessor(
        tokenizer,
        encoder_sequence_length=config.data.encoder_sequence_length or length,
        decoder_sequence_length=length,
    )


def make_model(config, tokenizer=None):
    """The model of an `ExperimentConfig`, with new weights.

    It has no preprocessor, so that `fit` takes the batches of `rt_keras.data`, which are numbers.

    Args:
        config: an `ExperimentConfig`.
        tokenizer: its tokenizer; None where `model.vocabulary_size` is given, or for images.

    Raises:
        ValueError: if `model.vocabulary_size` is less than the tokenizer's.
    """
    from rt_keras.models.configured import make_task

    dtype = "mixed_bfloat16" if config.trainer.mixed_bfloat16 else "float32"
    return make_task(config.model.as_dict(), _vocabulary_size(config.model, tokenizer), dtype)


def _vocabulary_size(model, tokenizer):
    if tokenizer is None:
        return model.vocabulary_size or PIXEL_VALUES
    least = tokenizer.vocabulary_size()
    if model.vocabulary_size is not None and model.vocabulary_size < least:
        raise ValueError(
            f"model.vocabulary_size is {model.vocabulary_size}; the tokenizer has {least} tokens"
        )
    return model.vocabulary_size or least


def load_model(path):
    """The model in the folder of a run, which holds its best one, or of a preset.

    Raises:
        FileNotFoundError: if there is neither.
        ValueError: if what is there is a model of another project.
    """
    from rt_keras.models.configured import TASKS

    path = Path(path)
    for folder in (path / "model", path):
        if (folder / "task.json").is_file():
            saved = json.loads((folder / "task.json").read_text(encoding="utf-8"))["class_name"]
            for task in TASKS.values():
                if task.__name__ == saved:
                    return task.from_preset(str(folder))
            raise ValueError(f"{folder} holds a {saved}, which is no model of rt_keras")
    if (path / "config.yaml").is_file():
        raise FileNotFoundError(f"the run in {path} has not reached its first validation yet")
    raise FileNotFoundError(f"{path} holds neither a run nor a preset of a model")


def kind_of(model):
    """The kind of a model, as `ModelConfig` names it."""
    from rt_keras.models.configured import TASKS

    return next(kind for kind, task in TASKS.items() if isinstance(model, task))


def make_optimizer(config):
    """The optimizer of an `ExperimentConfig`, with its learning rate schedule."""
    optimizer = config.optimizer
    arguments = {
        "learning_rate": make_schedule(
            config.schedule.name,
            optimizer.learning_rate,
            config.schedule.warmup_steps,
            config.trainer.steps,
            config.schedule.final_fraction,
        ),
        # Adam and Adafactor save the work of no decay at None, which AdamW does not take.
        "weight_decay": optimizer.weight_decay or (0.0 if optimizer.name == "adamw" else None),
        "global_clipnorm": optimizer.global_clipnorm,
    }
    if optimizer.name == "adafactor":
        # Its own relative step would take the place of the schedule.
        return keras.optimizers.Adafactor(relative_step=False, **arguments)
    kind = {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[optimizer.name]
    return kind(
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        **arguments,
    )


def add_l2(model, weight):
    """Has `weight / 2` times the sum of squares of all trainable weights but biases in the loss.

    Those of dense layers and normalisations named bias are left out, as Tensor2Tensor does.
    """
    if weight:
        for variable in model.trainable_variables:
            if variable.name != "bias":
                variable.regularizer = keras.regularizers.L2(weight / 2)


def make_strategy(config):
    """The strategy of a `TrainerConfig`, over the GPUs of this machine or else its CPU."""
    import tensorflow as tf
    from official.common import distribute_utils

    num_gpus = len(tf.config.list_physical_devices("GPU"))
    return distribute_utils.get_distribution_strategy(
        config.strategy,
        num_gpus=min(num_gpus, 1) if config.strategy == "one_device" else num_gpus,
        tpu_address=config.tpu_address,
    )
