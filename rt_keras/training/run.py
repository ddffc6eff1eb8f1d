"""The `fit` driver: runs a configuration and writes a folder with the trained model."""

import contextlib
import sys
import time
from pathlib import Path

import keras

from rt_keras import files
from rt_keras.callbacks.centroid_ema import CentroidEMA
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_best import KeepBest
from rt_keras.callbacks.keep_state import KeepState, caught_signals
from rt_keras.callbacks.measure_speed import MeasureSpeed
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.callbacks.tensor_board import TensorBoard
from rt_keras.callbacks.workers import Workers
from rt_keras.data.arrivals import make_arrivals
from rt_keras.layers.centroids import centroids_inside
from rt_keras.training import config_checks, run_folder
from rt_keras.training.batches import training_batches, validation_batches
from rt_keras.training.experiment import Experiment, add_l2, make_optimizer, start_from
from rt_keras.training.strategy import make_strategy


def train(config, output, resume=False, overwrite=False, verbose=1):
    """Trains the model of a configuration.

    At the end, the folder `output` holds

    - `config.yaml`: the configuration, with all keys;
    - `data.json`: the source of the training split, which `resume` compares;
    - `model/`: the model with the lowest validation loss, as a KerasHub preset;
    - `checkpoints/`: the complete state of the run at its last steps, from which `resume` starts;
    - `log.csv`, `tensorboard/`: after every validation, the losses and other metrics, the learning
      rate, the cluster use and load bias of each routing layer (see `CentroidEMA`) and the speed
      (see `MeasureSpeed`). TensorBoard also gets most of these every `trainer.log_every` steps.

    Two runs with the same configuration and seed, on the same machine, differ only in speed. A run
    that is interrupted at any time and resumed equals an uninterrupted one: see `KeepState`.
    SIGTERM and SIGINT save the state and end the run. A run locks its folder.

    A run, even a finished one, can be resumed with more `trainer.steps`. The "cosine" schedule then
    spans all steps, so the learning rate rises once.

    With several workers, every worker calls this function with the same arguments and its own
    `TF_CONFIG`. The chief writes the folder, which all workers must be able to read.

    Args:
        config: an `ExperimentConfig`.
        output: folder of the run.
        resume: bool, whether to resume the run in the folder; or "auto", to resume it if there is
            one and to start it otherwise. Defaults to False.
        overwrite: bool, whether to delete the run in the folder first. Defaults to False.
        verbose: int. 0 prints nothing. 1 shows Keras's progress bar in a terminal, and prints a
            line per epoch, which ends with a validation, elsewhere. 2 prints only the lines.
            Defaults to 1.

    Returns:
        A dictionary of `steps`, `best_step`, `validation_nats_per_token` at that step (or per
        label, according to the `loss_name` of the task), `parameters`, and for this call
        `new_steps`, `seconds` and `tokens_per_second`, including validation. These three are 0 if
        the run to resume is finished. `is_chief` is False for workers other than the chief.

    Raises:
        BlockingIOError: if another process is training in the folder.
        FileExistsError: if the folder holds a run and neither `resume` nor `overwrite` is set.
        FileNotFoundError: if there is no run to resume.
        OSError: if the disk is full. What was saved before stays.
        ValueError: if the configuration is incomplete or differs from that of the run to resume, if
            the training data have changed, or if all checkpoints are damaged.
        Stopped: if a signal ended the run. Its state is saved.
        FloatingPointError: if the loss is NaN or infinite. The last good checkpoint is kept.

    >>> import tempfile
    >>> from rt_keras.training.config import make_config
    >>> folder = Path(tempfile.mkdtemp())
    >>> for split in ("train", "validation"):
    ...     (folder / split).mkdir()
    ...     _ = (folder / split / "tale.txt").write_text("Once upon a time. " * 40)
    >>> config = make_config(
    ...     {
    ...         "model.num_layers": 1,
    ...         "model.hidden_dim": 16,
    ...         "data.name": "text_folder",
    ...         "data.directory": str(folder),
    ...         "data.data_dir": str(folder / "prepared"),
    ...         "data.sequence_length": 64,
    ...         "data.batch_size": 2,
    ...         "schedule.warmup_steps": 0,
    ...         "trainer.steps": 2,
    ...         "trainer.validation_every": 2,
    ...     }
    ... )
    >>> result = train(config, folder / "run", verbose=0)
    >>> result["steps"], result["best_step"]
    (2, 2)
    >>> sorted(path.name for path in (folder / "run").iterdir() if path.is_dir())
    ['checkpoints', 'model', 'tensorboard']
    """
    experiment, output = Experiment(config), Path(output)
    before = run_folder.check(output, experiment, resume, overwrite)
    config_checks.check_sources(experiment)
    strategy = make_strategy(config.trainer.strategy, config.trainer.tpu_address)
    is_chief = Workers(strategy).is_chief
    with files.locked(output) if is_chief else contextlib.nullcontext():
        return _train(experiment, output, before, strategy, verbose if is_chief else 0)


def _train(experiment, output, before, strategy, verbose):
    """`train` on one worker. `before` is the run's saved configuration."""
    workers, config, task = Workers(strategy), experiment.config, experiment.task
    config_checks.check_replicas(config, strategy.num_replicas_in_sync)
    keras.utils.set_random_seed(config.trainer.seed)
    checkpoints = Checkpoints(output / "checkpoints")
    best = KeepBest(output / "model", f"val_{task.loss_name}", experiment.preprocessor)
    first_step = 0
    if workers.is_chief and before is not None:
        first_step = run_folder.go_back(output, checkpoints, best)
    first_step = workers.of_chief(first_step)
    if first_step > config.trainer.steps:
        raise ValueError(f"trainer.steps is {config.trainer.steps}; the run has done {first_step}")
    with strategy.scope():
        model = compiled_model(experiment)
        if config.model.preset is not None and first_step == 0 and not task.adapts:
            start_from(model, config.model.preset)
    if verbose:
        notes = (describe(experiment, model, first_step), task.split_note(config.data))
        print(*filter(None, notes), sep="\n", flush=True)
    new_steps, seconds = config.trainer.steps - first_step, 0.0
    if new_steps:
        config_checks.check_model(experiment, model)
        seconds = _fit(experiment, model, output, checkpoints, best, first_step, before, verbose)
    tokens = new_steps * config.data.batch_size * task.length(experiment)
    speed = tokens / seconds if new_steps else 0.0
    step, loss = best.values["step"], best.values["value"]
    if verbose and new_steps:
        print(f"trained for {new_steps:,} steps in {seconds:.0f} s, {speed:,.0f} tokens/s")
    if verbose and step:
        value = f"{loss:.3f} {task.loss_name.replace('_', ' ')}"
        print(f"best model: {best.folder}, from step {step:,}, with {value} on validation")
    return {
        "steps": config.trainer.steps,
        "new_steps": new_steps,
        "best_step": step,
        f"validation_{task.loss_name}": loss,
        "parameters": model.count_params(),
        "seconds": seconds,
        "tokens_per_second": speed,
        "is_chief": workers.is_chief,
    }


def _fit(experiment, model, output, checkpoints, best, first_step, before, verbose):
    """Trains a compiled model from a step on, and returns the seconds that this takes."""
    trainer, strategy = experiment.trainer, model.distribute_strategy
    tokens = experiment.data.batch_size * experiment.task.length(experiment)
    arrivals = None
    # A TPU's batches may be read on other machines, which cannot write to a variable of this one.
    if trainer.strategy != "tpu":
        # More batches than one execution takes and the strategy prefetches.
        arrivals = make_arrivals(trainer.steps_per_execution + 16)
    speed = MeasureSpeed(tokens, first_step, arrivals)
    # After the model, so that reading the data does not change the random initial weights.
    validation, validation_steps = validation_batches(experiment, model, strategy)
    parts = [
        (training_batches(experiment, strategy, step, arrivals), epochs, steps_per_epoch)
        for step, epochs, steps_per_epoch in _parts(trainer, first_step)
    ]
    if Workers(strategy).is_chief:
        if before is None:
            run_folder.start(output, experiment)
        run_folder.write_config(output, experiment.config)
    callbacks = _callbacks(experiment, model, output, best, speed)

    def log_bytes():
        return {"log_bytes": (output / "log.csv").stat().st_size}

    started = time.monotonic()
    try:
        with caught_signals() as signals:
            keep_state = KeepState(
                checkpoints, trainer.checkpoint_every, callbacks, first_step, signals, log_bytes
            )
            for training, epochs, steps_per_epoch in parts:
                model.fit(
                    training,
                    validation_data=validation,
                    validation_steps=validation_steps,
                    initial_epoch=epochs.start,
                    epochs=epochs.stop,
                    steps_per_epoch=steps_per_epoch,
                    callbacks=[*callbacks, keep_state],
                    shuffle=False,
                    # A bar would fill a file with copies of itself.
                    verbose=2 if verbose and not sys.stdout.isatty() else verbose,
                )
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{error}; training stopped. {output} keeps the last good checkpoint, if "
            "there is one. A lower optimizer.learning_rate or optimizer.global_clipnorm may help"
        ) from None
    return time.monotonic() - started


def _parts(trainer, first_step):
    """Yields the calls of `fit`: the first step, the epochs, and the steps of each epoch.

    An epoch ends with a validation. An interrupted epoch has fewer steps left.

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


def describe(experiment, model, first_step=0):
    """Describes the model, the data and the steps of a run in one line.

    Args:
        experiment: an `Experiment`.
        model: its model.
        first_step: int, the number of completed steps. Defaults to 0.

    Returns:
        A string.
    """
    trainer, data, task = experiment.trainer, experiment.data, experiment.task
    size = f"{model.count_params():,} parameters ({task.kind})"
    batch = f"{data.batch_size} x {task.length(experiment):,} tokens"
    steps = f"{trainer.steps:,} steps"
    if first_step >= trainer.steps:
        run = f"the run of {size} on {data.name} has completed all of its {steps}"
        return f"nothing left to train: {run}"
    if first_step:
        steps = f"steps {first_step + 1:,} to {trainer.steps:,}"
    return (
        f"training {size} on {data.name}: {steps} of {batch}, "
        f"validated every {trainer.validation_every:,}"
    )


def compiled_model(experiment):
    """Creates and compiles the model of an experiment.

    Args:
        experiment: an `Experiment`.

    Returns:
        A model with new weights, optimizer, loss and metrics.
    """
    model, trainer, task = experiment.make_model(), experiment.trainer, experiment.task
    add_l2(model, experiment.config.optimizer.l2_weight)
    model.compile(
        optimizer=make_optimizer(experiment.config),
        loss=task.loss(),
        metrics=None,
        weighted_metrics=[task.loss_metric(), *task.metrics()],
        jit_compile=trainer.jit_compile,
        steps_per_execution=trainer.steps_per_execution,
        gradient_accumulation_steps=trainer.gradient_accumulation_steps,
    )
    if trainer.stateful:
        model.make_stateful(experiment.data.batch_size)
    return model


def _more_logs(experiment, model):
    """Returns the callback that logs scores of texts on validation, and the optimizer's figures."""
    task, batch_size, examples = experiment.task, experiment.data.batch_size, None
    if task.text_units:
        count = batch_size * experiment.trainer.validation_batches
        examples = experiment.load_split("validation").take(count)

    def add(epoch, logs):
        scores = task.text_scores(model, examples, batch_size, experiment.preprocessor)
        logs.update({f"val_{name}": value for name, value in scores.items()})
        logs["learning_rate"] = float(model.optimizer.learning_rate)
        logs["gradient_norm"] = model.gradient_norm

    return keras.callbacks.LambdaCallback(on_epoch_end=add)


def _callbacks(experiment, model, output, best, speed):
    """Returns the callbacks of a run. Those that add to the epoch logs precede the loggers."""
    centroids, trainer = experiment.config.centroids, experiment.trainer
    callbacks = [
        speed,
        # Here, it shows the losses and the speed, without what later ones add to the epoch logs.
        keras.callbacks.ProgbarLogger(),
        *([CentroidEMA(**vars(centroids))] if centroids_inside(model) else []),
        StopAtNaN(),
        best,
    ]
    if not Workers(model.distribute_strategy).is_chief:
        return callbacks
    return [
        *callbacks,
        _more_logs(experiment, model),
        keras.callbacks.CSVLogger(output / "log.csv", append=speed.step > 0),
        TensorBoard(output / "tensorboard", speed, trainer.log_every),
    ]
