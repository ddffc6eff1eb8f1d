"""Checks of several values of a configuration together."""

import tensorflow as tf

from rt_keras import layers
from rt_keras.training.config_fields import changed_values, keys_of, place_of
from rt_keras.training.config_files import nearest

# Keys of the section `model` that hyperparameters of the paper authors' code leave open.
OPEN = ("kind", "preset", "hparams", "lora_rank", "vocabulary_size", "remat", "loss_chunk_size")
OPEN += ("image.height", "image.width", "image.channels")


def refuse_old_heads(model, places):
    """Raises a ValueError if heads are given as a section for each kind, as in version 1.0.

    Args:
        model: the values of the section `model`.
        places: dictionary from keys to the files and lines that set them.
    """
    for name, value in model.items() if isinstance(model, dict) else ():
        if isinstance(value, dict) and name not in ("image", "speech"):
            kinds = [kind for kind in layers.__all__ if kind.endswith("Heads")]
            old = name.title().replace("_", "").replace("Union", "")
            kind = nearest(f"{old}Heads", kinds)
            raise ValueError(
                f"{place_of(f'model.{name}', places)}model.{name} is no section; heads are a list "
                f"in model.heads, such as heads: [{{class: {kind}, num_heads: 4}}]"
            )


def check_together(experiment):
    """Raises a ValueError if values of an experiment's configuration are incompatible."""
    task, data, model = experiment.task, experiment.data, experiment.model
    keys = keys_of(type(experiment.config))
    for key, value in changed_values(experiment.config).items():
        if keys[key].kinds is not None and model.kind not in keys[key].kinds:
            raise ValueError(
                f"{place_of(key, model.places)}{key} is {value!r}, but a model of kind "
                f"{model.kind} does not use this key"
            )
    if data.name not in task.data_sets:
        raise ValueError(
            f"data.name is {data.name!r}; for kind {task.kind} it must be {task.data_sets.words}"
        )
    if model.hparams is not None and not task.adapts:
        _check_hparams(experiment)
    task.check(experiment)
    _check_steps(experiment.config)


def _check_hparams(experiment):
    """Raises a ValueError unless `model.hparams` alone describes a model of this kind."""
    model, hparams = experiment.model, experiment.task.hparams(experiment.model)
    num_encoder_layers = hparams.get("num_encoder_layers", 0)
    if bool(num_encoder_layers) != (model.kind == "seq_2_seq_lm"):
        raise ValueError(
            f"model.hparams has num_encoder_layers {num_encoder_layers}, which does not fit "
            f"model.kind {model.kind}"
        )
    for key, value in changed_values(model).items():
        if key not in OPEN:
            raise ValueError(
                f"model.{key} is {value!r}, but model.hparams describes the model; write the "
                "hyperparameters to a file to change them"
            )


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
