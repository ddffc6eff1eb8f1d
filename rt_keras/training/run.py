"""The `fit` driver: one run, from a configuration to a folder with the trained model."""

import os
import time
from pathlib import Path

import keras
import tensorflow as tf

from rt_keras import files, progress
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_best import KeepBest
from rt_keras.callbacks.keep_state import KeepState
from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.callbacks.show_progress import ShowProgress
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.callbacks.stop_at_signal import StopAtSignal
from rt_keras.callbacks.tensor_board import TensorBoard
from rt_keras.callbacks.watch_heads import WatchHeads
from rt_keras.config_files import flatten
from rt_keras.data.arrivals import make_arrivals, note_arrivals
from rt_keras.training import config as config_lib
from rt_keras.training import config_checks, experiment
from rt_keras.training.memory import check_memory
from rt_keras.training.pictures import pictures
from rt_keras.training.tasks import task_named

# Keys that may change when a run is resumed, as nothing that it has computed depends on them.
FREE_KEYS = (
    "trainer.checkpoint_every",
    "trainer.checkpoint_minutes",
    "trainer.log_every",
    "trainer.validation_every",
)


def train(config, output, resume=False, overwrite=False, verbose=1):
    """Trains the model of a configuration.

    In the end the folder `output` holds

    - `config.yaml`: the configuration, with all keys;
    - `model/`: the model with the lowest validation loss, as a KerasHub preset;
    - `checkpoints/`: all state of the run after its last steps, which `resume` starts from;
    - `log.csv`, `tensorboard/`: after every validation the losses and other metrics, the learning
      rate, the cluster use and load bias of each routing layer (see `CentroidEMA`) and the speed
      (see `MeasureSpeed`), and what `WatchHeads` logs if `trainer.watch_heads` is set. TensorBoard
      gets most of it every `trainer.log_every` steps too, and the pictures of
      `rt_keras.training.pictures` if `trainer.watch_heads` is set.

    Two runs with the same configuration and seed, on the same machine, are equal in all but speed.
    A run that was interrupted, at whatever moment, and resumed equals one that was not: see
    `KeepState`. SIGTERM and SIGINT end a run once its state is kept: see `StopAtSignal`. While it
    runs, no other run can use the folder.

    Args:
        config: an `ExperimentConfig`.
        output: folder of the run.
        resume: bool, whether to continue the run in the folder; or "auto", to continue it if there
            is one, and else to start it. Defaults to False.
        overwrite: bool, whether to delete the run in the folder first. Defaults to False.
        verbose: int, 0 for silence, 1 for a line after each validation and, in a terminal, one
            progress bar, 2 for the lines alone. Defaults to 1.

    Returns:
        A dictionary of `steps`, `best_step`, `validation_nats_per_token` at that step,
        `parameters`, and for this call `new_steps`, `seconds` and `tokens_per_second`, including
        validation. If the run to resume is finished, all three are 0.

    Raises:
        BlockingIOError: if another process trains in the folder.
        FileExistsError: if the folder holds a run and neither `resume` nor `overwrite` is set.
        FileNotFoundError: if there is no run to resume.
        ValueError: if the configuration lacks what training needs, or needs more memory than the
            machine has, or is not that of the run to resume, or if all of its checkpoints are
            damaged.
        Stopped: if a signal ended the run, with its state kept.
        FloatingPointError: if the loss is NaN or infinite. The last good checkpoint is kept.
    """
    config_checks.check_sources(config)
    with files.locked(output):
        return _train(config, Path(output), resume, overwrite, verbose)


def _train(config, output, resume, overwrite, verbose):
    """`train` in a folder that no other process uses."""
    resume = _check_folder(output, config, resume, overwrite)
    keras.utils.set_random_seed(config.trainer.seed)
    task = task_named(config.model.kind)
    preprocessor = task.make_preprocessor(config)
    tokenizer = preprocessor and preprocessor.tokenizer
    check_memory(config, task.vocabulary_size(config, tokenizer))
    checkpoints = Checkpoints(output / "checkpoints")
    best = KeepBest(output / "model", "val_nats_per_token", preprocessor)
    first_step = _resumed(output, checkpoints, best) if resume else 0
    if first_step > config.trainer.steps:
        raise ValueError(f"trainer.steps is {config.trainer.steps}; the run has done {first_step}")
    with experiment.make_strategy(config.trainer).scope():
        model = compiled_model(config, tokenizer)
    if verbose:
        print(describe(config, model, first_step), flush=True)
    new_steps, seconds = config.trainer.steps - first_step, 0.0
    if new_steps:
        seconds = _fit(config, model, output, checkpoints, best, first_step, resume, verbose)
    tokens = new_steps * config.data.batch_size * task.predictions(config)
    return {
        "steps": config.trainer.steps,
        "new_steps": new_steps,
        "best_step": best.values["step"],
        "validation_nats_per_token": best.values["value"],
        "parameters": model.count_params(),
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if new_steps else 0.0,
    }


def _fit(config, model, output, checkpoints, best, first_step, resume, verbose):
    """Trains a compiled model from a step on; returns the seconds that it took."""
    trainer = config.trainer
    # After the model, so that reading the data does not change its random initial weights.
    training, validation = _datasets(config, model, best.preprocessor)
    if not resume:
        _start_folder(output)
    with files.whole_file(output / "config.yaml") as part:
        part.write_text(config_lib.to_yaml(config), encoding="utf-8")
    tokens = config.data.batch_size * task_named(config.model.kind).predictions(config)
    arrivals = None
    # Other machines, on which a TPU's batches may be read, could not write to a variable of this.
    if trainer.strategy != "tpu":
        # Of more batches than an execution takes and the strategy reads ahead.
        arrivals = make_arrivals(trainer.steps_per_execution + 16)
    speed = MeasureSpeed(tokens, first_step, arrivals)
    callbacks = _callbacks(config, model, output, best, validation, speed)
    keep_state = KeepState(
        checkpoints,
        trainer.checkpoint_every,
        trainer.checkpoint_minutes,
        callbacks,
        first_step,
        lambda: _log_sizes(output),
    )
    started = time.monotonic()
    try:
        with (
            progress.bar("compiling", trainer.steps, "steps", first_step, verbose) as update,
            StopAtSignal(keep_state) as stop,
        ):
            shown = [ShowProgress(update, trainer.steps, speed)] if verbose else []
            for step, epochs, steps_per_epoch in _parts(trainer, first_step):
                batches = training.skip(step)
                model.fit(
                    batches if arrivals is None else note_arrivals(batches, arrivals),
                    validation_data=validation,
                    initial_epoch=epochs.start,
                    epochs=epochs.stop,
                    steps_per_epoch=steps_per_epoch,
                    callbacks=[*callbacks, *shown, keep_state, stop],
                    shuffle=False,
                    verbose=0,
                )
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{error}; training stopped. {output} keeps the last good checkpoint, if "
            "there was one. A lower optimizer.learning_rate or optimizer.global_clipnorm may help"
        ) from None
    finally:
        keep_state.wait()
    if keep_state.saved_step < trainer.steps:
        raise OSError(f"the last checkpoint in {output} is of step {keep_state.saved_step:,}")
    return time.monotonic() - started


def _parts(trainer, first_step):
    """The calls of `fit`: the first step, the epochs, and the steps of each.

    An epoch ends with a validation. One that was interrupted has fewer steps left.

    >>> from types import SimpleNamespace
    >>> list(_parts(SimpleNamespace(steps=40, validation_every=10), 17))
    [(17, range(1, 2), 3), (20, range(2, 4), 10)]
    """
    every = trainer.validation_every
    epoch, done = divmod(first_step, every)
    if done:
        yield first_step, range(epoch, epoch + 1), every - done
        epoch += 1
    if epoch * every < trainer.steps:
        yield epoch * every, range(epoch, trainer.steps // every), every


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
    """Raises the error that says why a run cannot start, or continue, in the folder.

    Returns:
        bool, whether there is a run to continue.
    """
    saved = output / "config.yaml"
    if resume and overwrite:
        raise ValueError("resume and overwrite exclude each other: continue the run or delete it")
    if resume == "auto":
        resume = saved.exists()
    if resume and not saved.exists():
        raise FileNotFoundError(f"{output} holds no run to resume: it has no config.yaml")
    if resume:
        _check_same(config, saved)
    if saved.exists() and not resume and not overwrite:
        raise FileExistsError(
            f"{output} already holds a run; --resume continues it, --overwrite deletes it"
        )
    return bool(resume)


def _check_same(config, saved):
    """Raises a ValueError that names the keys in which a run to resume differs."""
    ours, theirs = (
        dict(flatten(x.as_dict())) for x in (config, config_lib.load_config(str(saved)))
    )
    # The learning rate of all steps depends on their number in one schedule alone.
    free = (*FREE_KEYS, "trainer.steps") if config.schedule.name != "cosine" else FREE_KEYS
    changed = [key for key in ours if ours[key] != theirs.get(key) and key not in free]
    if changed:
        key = changed[0]
        raise ValueError(
            f"the configuration differs from that of the run to resume, {saved}: {key} is "
            f"{ours[key]!r}, and was {theirs.get(key)!r}"
            + (f"; so do {', '.join(changed[1:])}" if changed[1:] else "")
        )


def _resumed(output, checkpoints, best):
    """Makes the folder what it was at the newest checkpoint that is whole.

    Returns:
        Its step; 0 if the run ended before there was any.
    """
    step, damaged = checkpoints.newest()
    for message in damaged:
        print(message, flush=True)
    if step is None:
        if damaged or (output / "model").exists():
            raise ValueError(f"{output} holds no checkpoint to resume; --overwrite starts anew")
        for name in ("log.csv", "tensorboard"):
            files.delete(output / name)
        return 0
    # What is newer is damaged, and what is unfinished was being written when the run ended.
    checkpoints.sweep([x for x in checkpoints.steps() if x <= step])
    for path in output.glob(".model.*"):
        files.delete(path)
    values = checkpoints.values(step)
    best.values = values["callbacks"]["KeepBest"]
    os.truncate(output / "log.csv", values["log_bytes"])
    for path in _event_files(output):
        if path.name in values["event_bytes"]:
            os.truncate(path, values["event_bytes"][path.name])
        else:
            files.delete(path)
    return step


def _log_sizes(output):
    """How much has been logged up to now, in bytes, for a checkpoint."""
    return {
        "log_bytes": (output / "log.csv").stat().st_size,
        "event_bytes": {path.name: path.stat().st_size for path in _event_files(output)},
    }


def _event_files(output):
    """The files of TensorBoard, whose names are all different."""
    return list(output.glob("tensorboard/*/events*"))


def _start_folder(output):
    """Deletes the files of an earlier run, and nothing else."""
    for name in ("config.yaml", "log.csv", "model", "checkpoints", "tensorboard"):
        files.delete(output / name)


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


def _callbacks(config, model, output, best, validation, speed):
    """The callbacks of a run; those that add to the epoch logs precede those that write them."""
    watched = _first_example(validation) if config.trainer.watch_heads else None
    return [
        speed,
        *([CentroidEMA(**config.centroids.as_dict())] if routing_heads(model) else []),
        StopAtNaN(),
        best,
        *([WatchHeads(watched)] if watched else []),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda _, logs: logs.update(
                learning_rate=float(model.optimizer.learning_rate)
            )
        ),
        keras.callbacks.CSVLogger(output / "log.csv", append=speed.step > 0),
        TensorBoard(
            output / "tensorboard",
            speed,
            config.trainer.log_every,
            pictures=(lambda model: pictures(model, watched)) if watched else None,
        ),
    ]


def _first_example(batches):
    """The inputs of the first example, as a batch of one."""
    inputs, _, _ = next(iter(batches))
    return {name: values[:1] for name, values in inputs.items()}
