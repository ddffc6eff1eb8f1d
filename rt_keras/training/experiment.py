"""What a configuration describes: its tokenizer, model, optimizer and strategy."""

import json
from pathlib import Path

import keras

from rt_keras.training.schedule import make_schedule
from rt_keras.training.tasks import TASKS, task_named


def make_model(config, tokenizer=None):
    """The model of an `ExperimentConfig`, with new weights.

    It has no preprocessor, so that `fit` takes the batches of `rt_keras.data`, which are numbers.

    Args:
        config: an `ExperimentConfig`.
        tokenizer: its tokenizer. Defaults to a new one, if the vocabulary depends on it.

    Raises:
        ValueError: if `model.vocabulary_size` is less than the tokenizer's.
    """
    dtype = "mixed_bfloat16" if config.trainer.mixed_bfloat16 else "float32"
    task = task_named(config.model.kind)
    vocabulary_size = task.vocabulary_size(config, tokenizer)
    return task.model_class.from_section(config.model, vocabulary_size, dtype)


def load_model(path):
    """The model in the folder of a run, which holds its best one, or of a preset.

    Raises:
        FileNotFoundError: if there is neither.
        ValueError: if what is there is a model of another project.
    """
    path = Path(path)
    for folder in (path / "model", path):
        if (folder / "task.json").is_file():
            saved = json.loads((folder / "task.json").read_text(encoding="utf-8"))["class_name"]
            for task in TASKS.values():
                if task.model_class.__name__ == saved:
                    return task.model_class.from_preset(str(folder))
            raise ValueError(f"{folder} holds a {saved}, which is no model of rt_keras")
    if (path / "config.yaml").is_file():
        raise FileNotFoundError(f"the run in {path} has not reached its first validation yet")
    raise FileNotFoundError(f"{path} holds neither a run nor a preset of a model")


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
