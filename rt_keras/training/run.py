"""The `fit` driver: one run, from a configuration to a folder with the trained model."""

import shutil
import time
from pathlib import Path

import keras
import tensorflow as tf

from rt_keras import files, progress
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.keep_checkpoints import KeepCheckpoints
from rt_keras.callbacks.show_progress import ShowProgress
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.callbacks.watch_heads import WatchHeads
from rt_keras.training import config as config_lib
from rt_keras.training import config_checks, experiment
from rt_keras.training.memory import check_memory
from rt_keras.training.tasks import task_named


def train(config, output, resume=False, overwrite=False, verbose=1):
    """Trains the model of a configuration.

    In the end the folder `output` holds

    - `config.yaml`: the configuration, with all keys;
    - `model/`: the model with the lowest validation loss, as a KerasHub preset;
    - `last.weights.h5`, `progress.json`: the last checkpoint, which `resume` starts from;
    - `log.csv`, `tensorboard/`: losses and cluster use after every validation, and what
      `WatchHeads` logs if `trainer.watch_heads` is set.

    Two runs with the same configuration and seed, on the same machine, are equal. A run that was
    interrupted and resumed equals one that was not: weights, optimizer, step and position in the
    training data are restored from the last validation. The exceptions are random numbers drawn
    during training: dropout masks, and the members that empty clusters restart from.

    Args:
        config: an `ExperimentConfig`.
        output: folder of the run.
        resume: bool, whether to continue the run in the folder. Defaults to False.
        overwrite: bool, whether to delete the run in the folder first. Defaults to False.
        verbose: int, 0 for silence, 1 for a line after each validation and, in a terminal, one
            progress bar, 2 for the lines alone. Defaults to 1.

    Returns:
        A dictionary of `steps`, `best_step`, `validation_nats_per_token` at that step,
        `parameters`, and for this call `new_steps`, `seconds` and `tokens_per_second`, including
        validation. If the run to resume is finished, all three are 0.

    Raises:
        FileExistsError: if the folder holds a run and neither `resume` nor `overwrite` is set.
        FileNotFoundError: if there is no run to resume.
        ValueError: if the configuration lacks what training needs, or needs more memory than the
            machine has, or if a file of the run to resume is damaged.
        FloatingPointError: if the loss is NaN or infinite. The last good checkpoint is kept.
    """
    output = Path(output)
    config_checks.check_sources(config)
    _check_folder(output, config, resume, overwrite)
    keras.utils.set_random_seed(config.trainer.seed)
    task = task_named(config.model.kind)
    preprocessor = task.make_preprocessor(config)
    tokenizer = preprocessor and preprocessor.tokenizer
    check_memory(config, task.vocabulary_size(config, tokenizer))
    checkpoints = KeepCheckpoints(output, "val_nats_per_token", preprocessor)
    with experiment.make_strategy(config.trainer).scope():
        model = compiled_model(config, tokenizer)
        first_step = checkpoints.restore(model) if resume else 0
    if verbose:
        print(describe(config, model, first_step), flush=True)
    new_steps, seconds = config.trainer.steps - first_step, 0.0
    if new_steps:
        seconds = _fit(config, model, checkpoints, first_step, resume, verbose)
    tokens = new_steps * config.data.batch_size * task.predictions(config)
    return {
        "steps": config.trainer.steps,
        "new_steps": new_steps,
        "best_step": checkpoints.best_step,
        "validation_nats_per_token": checkpoints.best_value,
        "parameters": model.count_params(),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if new_steps else 0.0,
    }


def _fit(config, model, checkpoints, first_step, resume, verbose):
    """Trains a compiled model from a step on; returns the seconds that it took."""
    trainer = config.trainer
    # After the model, so that reading the data does not change its random initial weights.
    training, validation = _datasets(config, model, checkpoints.preprocessor)
    if not resume:
        _start_folder(checkpoints.folder, config)
    callbacks = _callbacks(config, model, checkpoints, validation, resume)
    tokens = config.data.batch_size * task_named(config.model.kind).predictions(config)
    started = time.monotonic()
    try:
        with progress.bar("compiling", trainer.steps, "steps", first_step, verbose) as update:
            if verbose:
                callbacks.append(ShowProgress(update, trainer.steps, tokens, first_step))
            model.fit(
                training.skip(first_step),
                validation_data=validation,
                initial_epoch=first_step // trainer.validation_every,
                epochs=trainer.steps // trainer.validation_every,
                steps_per_epoch=trainer.validation_every,
                callbacks=callbacks,
                shuffle=False,
                verbose=0,
            )
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{error}; training stopped. {checkpoints.folder} keeps the last good checkpoint, if "
            "there was one. A lower optimizer.learning_rate or optimizer.global_clipnorm may help"
        ) from None
    return time.monotonic() - started


def describe(config, model, first_step=0):
    """What a run trains, on what data and for how long, in one line.

    Args:
        config: an `ExperimentConfig`.
        model: its model.
        first_step: int, the number of steps that are done already. Defaults to 0.

    Returns:
        A string.
    """
    trainer, data = config.trainer, config.data
    size = f"{model.count_params():,} parameters ({config.model.kind})"
    batch = f"{data.batch_size} x {task_named(config.model.kind).predictions(config):,} tokens"
    if first_step >= trainer.steps:
        return (
            f"nothing left to train: the run of {size} on {data.name} has done all of its "
            f"{trainer.steps:,} steps"
        )
    steps = (
        f"steps {first_step + 1:,} to {trainer.steps:,}"
        if first_step
        else f"{trainer.steps:,} steps"
    )
    return (
        f"training {size} on {data.name}: {steps} of {batch}, "
        f"validated every {trainer.validation_every:,}"
    )


def _check_folder(output, config, resume, overwrite):
    """Raises the error that says why a run cannot start, or continue, in the folder."""
    saved = output / "config.yaml"
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other: continue the run or delete it")
    if resume and not saved.exists():
        raise FileNotFoundError(f"{output} holds no run to resume: it has no config.yaml")
    if resume and saved.read_bytes() != config_lib.to_yaml(config).encode("utf-8"):
        raise ValueError(f"the configuration differs from that of the run to resume, {saved}")
    if saved.exists() and not resume and not overwrite:
        raise FileExistsError(
            f"{output} already holds a run; --resume continues it, --overwrite deletes it"
        )


def _start_folder(output, config):
    """Deletes the files of an earlier run, and nothing else, and writes the configuration."""
    for name in ("config.yaml", "last.weights.h5", "progress.json", "log.csv"):
        (output / name).unlink(missing_ok=True)
    for name in ("model", "tensorboard"):
        shutil.rmtree(output / name, ignore_errors=True)
    with files.whole_file(output / "config.yaml") as part:
        part.write_text(config_lib.to_yaml(config), encoding="utf-8")


def compiled_model(config, tokenizer=None):
    """The model of a configuration, compiled for training.

    Args:
        config: an `ExperimentConfig`.
        tokenizer: its tokenizer; see `experiment.make_model`.

    Returns:
        A model with new weights, its optimizer, loss and metrics.
    """
    model = experiment.make_model(config, tokenizer)
    experiment.add_l2(model, config.optimizer.l2_weight)
    nats = keras.metrics.SparseCategoricalCrossentropy(name="nats_per_token", from_logits=True)
    model.compile(
        optimizer=experiment.make_optimizer(config),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[nats],
        jit_compile=config.trainer.jit_compile,
        steps_per_execution=config.trainer.steps_per_execution,
    )
    return model


def _datasets(config, model, preprocessor):
    """The endless training batches, and the first ones of the validation split."""
    task = task_named(config.model.kind)
    training = task.training_batches(config, preprocessor)
    validation = task.evaluation_batches(
        model,
        task.load_split(config.data, "validation", preprocessor),
        config.data.batch_size,
        preprocessor,
    ).take(config.trainer.validation_batches)
    # Keras warns about a data set that ends but does not know its size.
    count = int(validation.reduce(0, lambda number, _: number + 1))
    validation = validation.apply(tf.data.experimental.assert_cardinality(count))
    # Replicas share each batch. TensorFlow would try to share files, and warn that it cannot.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return training.with_options(options), validation.with_options(options)


def _callbacks(config, model, checkpoints, validation, resume):
    """The callbacks of a run; those that add to the epoch logs precede those that write them."""
    output = checkpoints.folder
    return [
        *([CentroidEMA(**config.centroids.as_dict())] if routing_heads(model) else []),
        StopAtNaN(),
        checkpoints,
        *([WatchHeads(_first_example(validation))] if config.trainer.watch_heads else []),
        keras.callbacks.CSVLogger(output / "log.csv", append=resume),
        keras.callbacks.TensorBoard(output / "tensorboard", write_graph=False),
    ]


def _first_example(batches):
    """The inputs of the first example, as a batch of one."""
    inputs, _, _ = next(iter(batches))
    return {name: values[:1] for name, values in inputs.items()}
