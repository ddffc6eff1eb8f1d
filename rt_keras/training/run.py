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
from rt_keras.training import config as config_lib
from rt_keras.training import config_checks, experiment
from rt_keras.training.memory import check_memory
from rt_keras.training.tasks import task_named


def train(config, output, resume=False, overwrite=False, verbose=1):
    """Trains the model of a configuration.

    The folder `output` holds in the end
    - `config.yaml`: the configuration, all keys;
    - `model/`: the model with the least validation loss, as a KerasHub preset;
    - `last.weights.h5`, `progress.json`: what `resume` goes on from;
    - `log.csv`, `tensorboard/`: losses and cluster use after every validation.

    Two runs with the same configuration, seed and machine are equal. A run that was interrupted
    and goes on is equal to one that was not: weights, optimizer, step and the place in the training
    data are those of the last validation. But for what is drawn at random on the way: the masks of
    dropout, and the members that empty clusters restart from.

    Args:
        config: an `ExperimentConfig`.
        output: folder of the run.
        resume: whether to go on with the run that the folder holds.
        overwrite: whether to delete the run that the folder holds.
        verbose: int, 0 for silence, 1 for a line after each validation and, in a terminal, one
            progress bar, 2 for the lines alone. Defaults to 1.

    Returns:
        A dict with `steps`, `best_step`, `validation_nats_per_token` at that step, `parameters`,
        and of this call `new_steps`, `seconds` and `tokens_per_second`, validation included.

    Raises:
        FileExistsError: if the folder holds a run and it is not said what to do with it.
        FileNotFoundError: if there is no run to go on with.
        ValueError: if the configuration lacks what training needs, or needs more memory than the
            machine has, or if a file of the run to resume is damaged.
        FloatingPointError: if the loss is no longer a number. The last good checkpoint is kept.
    """
    output = Path(output)
    config_checks.check_sources(config)
    _check_folder(output, config, resume, overwrite)
    trainer = config.trainer
    keras.utils.set_random_seed(trainer.seed)
    task = task_named(config.model.kind)
    preprocessor = task.make_preprocessor(config)
    tokenizer = preprocessor and preprocessor.tokenizer
    check_memory(config, task.vocabulary_size(config, tokenizer))
    checkpoints = KeepCheckpoints(output, "val_nats_per_token", preprocessor)
    with experiment.make_strategy(trainer).scope():
        model = compiled_model(config, tokenizer)
        first_step = checkpoints.restore(model) if resume else 0
    if verbose:
        print(describe(config, model, first_step), flush=True)
    # After the model, whose first weights would else depend on what reading the data draws.
    training, validation = _datasets(config, model, preprocessor)
    if not resume:
        _start_folder(output, config)
    tokens = config.data.batch_size * task.predictions(config)
    callbacks = _callbacks(config, model, output, checkpoints, resume)
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
            f"{error}; training stopped, and {output} keeps the last good checkpoint, if there was "
            "one. A lower optimizer.learning_rate or optimizer.global_clipnorm may help"
        ) from None
    seconds = time.monotonic() - started
    return {
        "steps": trainer.steps,
        "new_steps": trainer.steps - first_step,
        "best_step": checkpoints.best_step,
        "validation_nats_per_token": checkpoints.best_value,
        "parameters": model.count_params(),
        "seconds": seconds,
        "tokens_per_second": (trainer.steps - first_step) * tokens / seconds,
    }


def describe(config, model, first_step=0):
    """What a run trains, and on what, in one line.

    Args:
        config: an `ExperimentConfig`.
        model: its model.
        first_step: int, steps that were done before. Defaults to 0.

    Returns:
        A string.
    """
    trainer, data = config.trainer, config.data
    size = f"{model.count_params():,} parameters ({config.model.kind})"
    batch = f"{data.batch_size} x {task_named(config.model.kind).predictions(config):,} tokens"
    if first_step >= trainer.steps:
        return f"the run of {size} on {data.name} is finished: {trainer.steps:,} steps are done"
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
    """Says why a run cannot start, or go on, in the folder."""
    saved = output / "config.yaml"
    if resume and overwrite:
        raise ValueError("resume and overwrite are both given; a run is gone on with or deleted")
    if resume and not saved.exists():
        raise FileNotFoundError(f"{output} holds no run to resume: it has no config.yaml")
    if resume and saved.read_bytes() != config_lib.to_yaml(config).encode("utf-8"):
        raise ValueError(f"the configuration is not that of the run to resume, {saved}")
    if saved.exists() and not resume and not overwrite:
        raise FileExistsError(
            f"{output} already holds a run; --resume goes on with it, --overwrite deletes it"
        )


def _start_folder(output, config):
    """Deletes what an earlier run has written, and nothing else that may lie there."""
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
    # Keras warns of a data set that ends without having said when.
    count = int(validation.reduce(0, lambda number, _: number + 1))
    validation = validation.apply(tf.data.experimental.assert_cardinality(count))
    # Replicas share each batch; that files be shared instead is only warned about.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return training.with_options(options), validation.with_options(options)


def _callbacks(config, model, output, checkpoints, resume):
    """What watches a run; what adds to the epoch logs comes before what writes them."""
    return [
        *([CentroidEMA(**config.centroids.as_dict())] if routing_heads(model) else []),
        StopAtNaN(),
        checkpoints,
        keras.callbacks.CSVLogger(output / "log.csv", append=resume),
        keras.callbacks.TensorBoard(output / "tensorboard", write_graph=False),
    ]
