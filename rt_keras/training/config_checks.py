"""Which values of a configuration go together."""

from rt_keras.config_files import flatten
from rt_keras.training.tasks import TASKS, task_named


def check_together(config):
    """Raises a ValueError where values do not go together."""
    _check_heads(config.model)
    _check_task(config)
    _check_lengths(config)
    _check_steps(config)


def _check_heads(model):
    kinds = ("local", "routing", "cluster_strided", "strided", "full")
    heads = {name: model.get(name).num_heads for name in kinds}
    total = sum(heads.values())
    if total == 0:
        raise ValueError(f"model.{', model.'.join(kinds)} all have num_heads 0")
    if model.key_dim is None and model.hidden_dim % total:
        listed = ", ".join(f"{name} {count}" for name, count in heads.items() if count)
        below = model.hidden_dim - model.hidden_dim % total
        raise ValueError(
            f"model.hidden_dim is {model.hidden_dim}, which its {total} heads ({listed}) do not "
            f"divide; it must be a multiple of {total}, such as {below or total}, or model.key_dim "
            "be given"
        )
    routing = model.routing
    if routing.first_layer > model.num_layers:
        raise ValueError(
            f"model.routing.first_layer is {routing.first_layer}; it must be at most "
            f"model.num_layers, {model.num_layers}"
        )
    if routing.num_heads:
        _check_routing(routing, model.reference)


def _check_routing(routing, reference):
    if routing.num_probes > routing.num_clusters:
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be at most "
            f"model.routing.num_clusters, {routing.num_clusters}"
        )
    if routing.num_probes > 1 and routing.assignment != "nearest":
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be 1 with assignment "
            f"{routing.assignment}"
        )
    if reference and routing.assignment not in ("balanced", "hashed"):
        raise ValueError(
            f"model.routing.assignment is {routing.assignment}; with model.reference it must be "
            "balanced or hashed"
        )
    if routing.assignment == "hashed" and routing.num_clusters < 2:
        raise ValueError("model.routing.num_clusters is 1; assignment hashed needs at least 2")
    if routing.assignment == "random" and routing.share_qk:
        raise ValueError("model.routing.share_qk is true; assignment random needs false")


def _check_task(config):
    model, task = config.model, task_named(config.model.kind)
    _check_use(config, task)
    if model.reversible and (model.remat or not model.normalize_first):
        raise ValueError(
            f"model.reversible is true, model.remat {model.remat} and model.normalize_first "
            f"{model.normalize_first}; reversible blocks need remat false, normalize_first true"
        )
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
            _check_windows(config.model, name, length)


def _check_windows(model, name, length):
    routing = model.routing
    for key, value, num_heads in (
        ("model.local.block_size", model.local.block_size, model.local.num_heads),
        ("model.routing.window_size", routing.window_size, routing.num_heads),
    ):
        if num_heads and value > length:
            raise ValueError(
                f"{key} is {value} and {name} only {length}; "
                f"a sequence must be at least as long as one window"
            )


def check_sources(config):
    """Raises a ValueError if a file or an address that training needs is not named or not there.

    A configuration can be inspected, and its model made, without them.

    Args:
        config: an `ExperimentConfig`.
    """
    task_named(config.model.kind).check_sources(config)
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
