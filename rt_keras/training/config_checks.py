"""Which values of a configuration go together."""

from rt_keras.config_files import flatten
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import check_heads, check_length, check_networks, head_counts
from rt_keras.training.tasks import TASKS, task_named


def check_together(config):
    """Raises a ValueError where values do not go together."""
    check_heads(config.model, task_named(config.model.kind).attentions)
    check_networks(config.model)
    _check_task(config)
    _check_lengths(config)
    _check_steps(config)
    _check_watching(config)


def _check_task(config):
    task = task_named(config.model.kind)
    _check_use(config, task)
    if not task.knows_data(config.data.name):
        raise ValueError(
            f"data.name is {config.data.name!r}; for kind {task.kind} it must be {task.data_names}"
        )
    task.check(config)


def _check_use(config, task):
    """Raises where a key is set that only other tasks have a use for."""
    others = {key for other in TASKS.values() for key in other.keys} - set(task.keys)
    defaults = dict(flatten(type(config)().as_dict()))
    for key, value in flatten(config.as_dict()):
        section = key[: key.rindex(".") + 1]
        if value != defaults[key] and (key in others or section in others):
            raise ValueError(
                f"{key} is {value!r}, which a model of kind {task.kind} has no use for"
            )


def _check_lengths(config):
    for name, length, num_layers in task_named(config.model.kind).stacks(config):
        if num_layers:
            check_length(config.model, name, length)


def check_sources(config):
    """Raises a ValueError if a file or an address that training needs is not named or not there.

    A configuration can be inspected, and its model made, without them.

    Args:
        config: an `ExperimentConfig`.
    """
    task_named(config.model.kind).check_sources(config)
    if config.trainer.strategy == "tpu" and config.trainer.tpu_address is None:
        raise ValueError('trainer.tpu_address must be set for strategy tpu; "" is a local one')


def check_replicas(config, count):
    """Raises a ValueError if a number of replicas cannot share a batch.

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
    for name, whole_name in (
        ("validation_every", "steps"),
        ("steps_per_execution", "validation_every"),
    ):
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


def _check_watching(config):
    for name, count in head_counts(config.model).items():
        has_scores = HEAD_KINDS[name].layer.returns_attention_scores
        if config.trainer.watch_heads and count and not has_scores:
            raise ValueError(
                "trainer.watch_heads is True; it must be False with heads of "
                f"model.{name}, which have no attention weights of single keys"
            )
