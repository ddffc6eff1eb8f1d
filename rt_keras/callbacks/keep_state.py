"""Saves the complete state of a run, also after a signal, so that it can resume exactly."""

import contextlib
import signal
import threading

import keras
import tensorflow as tf

from rt_keras.callbacks.workers import Workers


class KeepState(keras.callbacks.Callback):
    """Writes checkpoints of the complete state during `fit`, and can start from one.

    The state includes the model, its random seeds, the recurrent state between batches, the
    optimizer, the epoch's metrics, and other callbacks. A run that resumes from a checkpoint,
    within an epoch or after one, therefore computes the same bits as an uninterrupted run, provided
    that it gets the same batches. `keras.callbacks.BackupAndRestore` restarts the epoch, and keeps
    neither metrics nor callbacks.

    Checkpoints are written every `save_every` steps, after each epoch, and before the last step of
    each epoch, so that a failure in validation costs at most one step. After a signal, the step is
    finished and saved, and `Stopped` is raised. A signal during validation saves nothing new.

    Place this callback after all others. Create and compile the model in the scope of a
    `tf.distribute` strategy, such as that of one device, so that `fit` builds the optimizer and the
    metrics before the first batch. With several workers, only the chief writes, to a folder that
    all can read. The others take part because the state of some variables is distributed over them,
    and all stop after the same step if one gets a signal.

    Args:
        checkpoints: `Checkpoints`, the folder to write to.
        save_every: int, steps between checkpoints.
        callbacks: list of callbacks with state: TensorFlow variables in a list `variables`, JSON
            values in a dictionary `values`, or both. Defaults to `()`.
        first_step: int, the step of the checkpoint to start from. Defaults to 0, no checkpoint.
        signals: list that gets the signals of this process; see `caught_signals`. Defaults to `()`.
        extra_values: function that returns a dictionary of JSON values to save as well. Defaults to
            `dict`, no values.

    Attributes:
        step: int, the current step.

    Raises:
        OSError: if a checkpoint cannot be written, for example because the disk is full.
        Stopped: after a signal.
        ValueError: if the checkpoint to start from is damaged or belongs to another model.
    """

    def __init__(
        self, checkpoints, save_every, callbacks=(), first_step=0, signals=(), extra_values=dict
    ):
        super().__init__()
        self.checkpoints = checkpoints
        self.save_every = save_every
        self.callbacks = callbacks
        self.signals = signals
        self.extra_values = extra_values
        self.step = self._saved_step = self._epoch_start = first_step
        self._restored = not first_step

    def set_model(self, model):
        super().set_model(model)
        self._workers = Workers(model.distribute_strategy)

    def on_epoch_begin(self, epoch, logs=None):
        # Not earlier: an epoch resets its metrics, which are part of the state.
        if not self._restored:
            self._restore(epoch)
            self._restored = True
        elif self.step == 0:
            self._save()
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch_start + batch + 1
        left = self._epoch_start + self.params["steps"] - self.step
        is_due = before // self.save_every < self.step // self.save_every
        is_stopped = self._workers.any(bool(self.signals))
        if left and (is_due or is_stopped or left <= self.step - before):
            self._save()
        self._stop_if(is_stopped)

    def on_test_batch_end(self, batch, logs=None):
        self._stop_if(self._workers.any(bool(self.signals)))

    def on_epoch_end(self, epoch, logs=None):
        self._save(between_epochs=True)

    def _stop_if(self, is_stopped):
        if is_stopped:
            # Another worker may have got the signal.
            raise Stopped(self.signals[0] if self.signals else signal.SIGTERM, self._saved_step)

    def _save(self, between_epochs=False):
        arrays = {name: tf.convert_to_tensor(x) for name, x in self._variables().items()}
        values = {name: callback.values for name, callback in self._with("values")}
        if self._workers.is_chief:
            values = {"callbacks": values, "between_epochs": between_epochs, **self.extra_values()}
            self.checkpoints.write(self.step, arrays, values)
        self._saved_step = self.step

    def _restore(self, epoch):
        arrays, values = self.checkpoints.read(self.step)
        variables = self._variables()
        if not self._workers.is_chief:
            # Drops the state of callbacks that only the chief has.
            arrays = {name: x for name, x in arrays.items() if name in variables}
        shapes = [{(name, *x.shape) for name, x in state.items()} for state in (arrays, variables)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"the checkpoint of step {self.step:,} in {self.checkpoints.folder} belongs to "
                f"another model: it differs in {min(shapes[0] ^ shapes[1])}"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        for name, callback in self._with("values"):
            callback.values = values["callbacks"][name]
        if values["between_epochs"]:
            self.model.reset_metrics()
            for callback in self.callbacks:
                callback.on_epoch_begin(epoch)

    def _variables(self):
        """Returns all variables that training changes, by names that are stable across processes.

        Keras's own names differ from process to process.
        """
        sources = {
            "model": self.model.variables,
            "optimizer": self.model.optimizer.variables,
            "metrics": self.model.metrics_variables,
            "state": getattr(self.model, "state_variables", []),
            **{name: callback.variables for name, callback in self._with("variables")},
        }
        return {
            f"{source}_{number}": variable
            for source, variables in sources.items()
            for number, variable in enumerate(variables)
        }

    def _with(self, attribute):
        return [(type(x).__name__, x) for x in self.callbacks if hasattr(x, attribute)]


class Stopped(KeyboardInterrupt):
    """Raised when a signal has ended the run. Its state is saved.

    Attributes:
        number: the `signal.Signals`.
    """

    def __init__(self, number, step):
        super().__init__(
            f"stopped by {number.name} after step {step:,}; --resume continues from there"
        )
        self.number = number


@contextlib.contextmanager
def caught_signals():
    """Catches SIGTERM and Ctrl-C, which `KeepState` looks for after each step.

    A second signal ends the process at once. Outside the main thread, where Python has no signals,
    none is caught.

    Yields:
        A list, which gets the first `signal.Signals`.
    """
    caught, before = [], {}

    def note(number, _):
        caught.append(signal.Signals(number))
        restore()

    def restore():
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():
        before.update({x: signal.signal(x, note) for x in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield caught
    finally:
        restore()
