"""Checks of several values of a configuration together."""

from rt_keras.config_files import changed_values
from rt_keras.convert.t2t.model import check_section
from rt_keras.models.model_section import check_convolutions, check_heads, check_length
from rt_keras.training.tasks import TASKS


def check_together(experiment):
    """Raises a ValueError if values of an experiment's configuration are incompatible."""
    task, model, data = experiment.task, experiment.model, experiment.data
    described = not task.adapts and model.hparams is None
    if model.hparams is not None and not task.adapts:
        check_section(task.model_class, model)
    if described:
        check_heads(model, task.attentions)
        check_convolutions(model)
    _check_use(experiment.config, task)
    if data.name not in task.data_sets:
        raise ValueError(
            f"data.name is {data.name!r}; for kind {task.kind} it must be {task.data_sets.words}"
        )
    task.check(experiment)
    for name, length, num_layers in task.stacks(experiment) if described else ():
        if num_layers:
            check_length(model, name, length)
    _check_steps(experiment.config)


def _check_use(config, task):
    """Raises a ValueError if a key is set that only other tasks use."""
    others = {key for other in TASKS.values() for key in other.keys} - set(task.keys)
    for key, value in changed_values(config).items():
        if key in others or key[: key.rindex(".") + 1] in others:
            raise ValueError(
                f"{key} is {value!r}, but a model of kind {task.kind} does not use this key"
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


def _check_steps(config):
    trainer = config.trainer
    parts = {"validation_every": "steps", "steps_per_execution": "validation_every"}
    for name, whole_name in parts.items():
        value, whole = getattr(trainer, name), getattr(trainer, whole_name)
        if whole % value:
            raise ValueError(
                f"trainer.{name} is {value}; it must divide trainer.{whole_name}, {whole}"
            )
    if config.schedule.warmup_steps > trainer.steps:
        raise ValueError(
            f"schedule.warmup_steps is {config.schedule.warmup_steps}; it must be at most "
            f"trainer.steps, {trainer.steps}"
        )
