"""Checks of several values of a configuration together."""

import re

import tensorflow as tf

from rt_keras import layers
from rt_keras.training.config_fields import changed_values, keys_of
from rt_keras.training.config_files import nearest

# Keys that hyperparameters of the paper authors' code leave open, and those that a model of
# `rt_keras.adapt` does.
OPEN = ("kind", "preset", "hparams", "vocabulary_size", "remat", "loss_chunk_size")
OPEN += ("image.height", "image.width", "image.channels")
OPEN_IN_ADAPTED = ("kind", "preset", "lora_rank", "temperature")


def refuse_old_heads(key):
    """Raises a ValueError if a key is in a section for one kind of heads, as in version 1.0."""
    old = re.match(r"model\.(?!image\.|speech\.)(\w+)\.", key)
    if old:
        kind = old[1].title().replace("_", "").replace("Union", "")
        kind = nearest(f"{kind}Heads", layers.__all__)
        raise ValueError(
            f"model.{old[1]} is no section; heads are a list in model.heads, such as heads: "
            f"[{{class: {kind}, num_heads: 4}}]"
        )


def check_together(experiment):
    """Raises a ValueError if values of an experiment's configuration are incompatible."""
    task, data, model = experiment.task, experiment.data, experiment.model
    keys = keys_of(type(experiment.config))
    for key, value in changed_values(experiment.config).items():
        reason = _why_unused(keys[key], model, task)
        if reason:
            raise ValueError(f"{key} is {value!r}, but {reason}")
    if data.name not in task.data_sets:
        raise ValueError(
            f"data.name is {data.name!r}; for kind {task.kind} it must be {task.data_sets.words}"
        )
    if model.hparams is not None:
        num_encoder_layers = task.hparams(model).get("num_encoder_layers", 0)
        if bool(num_encoder_layers) != (model.kind == "seq_2_seq_lm"):
            raise ValueError(
                f"model.hparams has num_encoder_layers {num_encoder_layers}, which does not fit "
                f"model.kind {model.kind}"
            )
    task.check(experiment)
    _check_steps(experiment.config)


def _why_unused(key, model, task):
    """Returns the reason for which a model does not use a key; None if it does."""
    section, _, name = key.name.partition(".")
    if key.kinds is not None and task.kind not in key.kinds:
        return f"a model of kind {task.kind} does not use this key"
    if section == "model" and task.adapts and name not in OPEN_IN_ADAPTED:
        return (
            f"the model of kind {task.kind} is that of model.preset; `rt-keras adapt` sets its "
            "heads"
        )
    if section == "model" and model.hparams is not None and name not in OPEN:
        return (
            "model.hparams describes the model; write the hyperparameters to a file to change them"
        )
    return None


def check_sources(experiment):
    """Raises a ValueError if a file or an address that training needs is not set or not found.

    A configuration can be inspected, and its model created, without them.

    Args:
        experiment: an `Experiment`.
    """
    experiment.task.check_sources(experiment)
    if experiment.trainer.strategy == "tpu" and experiment.trainer.tpu_address is None:
        raise ValueError('trainer.tpu_address must be set for strategy tpu; use "" for a local TPU')


def check_replicas(config, count):
    """Raises a ValueError if a batch cannot be split evenly over a number of replicas.

    Args:
        config: an `ExperimentConfig`.
        count: int, the number of replicas of all workers.
    """
    parts = config.trainer.gradient_accumulation_steps
    if config.data.batch_size % (count * parts):
        raise ValueError(
            f"data.batch_size is {config.data.batch_size}; it must be divisible by "
            f"{count * parts}, the number of replicas that share a batch, {count}, times "
            f"trainer.gradient_accumulation_steps, {parts}"
        )


def check_model(experiment, model):
    """Raises the error of layers that do not support batches of the configuration's lengths."""
    inputs, *_ = experiment.task.example_spec(experiment, batch_size=1)
    inputs.pop("reset_states", None)
    tf.function(model, autograph=False).get_concrete_function(inputs, training=False)


def _check_steps(config):
    trainer, warmup_steps = config.trainer, config.schedule.warmup_steps
    parts = {"validation_every": "steps", "steps_per_execution": "validation_every"}
    for name, whole in parts.items():
        value, total = getattr(trainer, name), getattr(trainer, whole)
        if total % value:
            raise ValueError(f"trainer.{name} is {value}; it must divide trainer.{whole}, {total}")
    if warmup_steps > trainer.steps:
        needed = f"it must be at most trainer.steps, {trainer.steps}"
        raise ValueError(f"schedule.warmup_steps is {warmup_steps}; {needed}")
