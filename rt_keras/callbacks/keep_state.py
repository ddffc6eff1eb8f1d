"""Saves the complete state of a run, so that it can resume exactly."""

import threading
import time

import keras
import tensorflow as tf

from rt_keras.callbacks.workers import Workers
from rt_keras.renamed import renamed_arrays


class KeepState(keras.callbacks.Callback):
    """Writes checkpoints of the complete state during `fit`, and can start from one.

    The state includes the model, its random seeds, the recurrent state between batches, the
    optimizer, the epoch's metrics, and other callbacks. A run that resumes from a checkpoint,
    within an epoch or after one, therefore computes the same bits as an uninterrupted run, provided
    that it gets the same batches.

    Checkpoints are written every `save_every` steps, after each epoch, and before the last step of
    each epoch, so that a failure in validation costs at most one step. A separate thread writes
    them while training continues. If writing fails, for example because the disk is full, the run
    prints a message and continues.

    Place this callback after those whose state it saves, and before those that stop the run. Create
    and compile the model in the scope of a `tf.distribute` strategy, such as that of one device, so
    that `fit` builds the optimizer and the metrics before the first batch. With several workers,
    only the chief writes, to a folder that all can read. The others take part because the state of
    some variables is distributed over them.

    Args:
        checkpoints: `Checkpoints`, the folder to write to.
        save_every: int, steps between checkpoints.
        save_minutes: float, maximum minutes between checkpoints. Defaults to None, for no limit.
        callbacks: list of callbacks with state: TensorFlow variables in a list `variables`, JSON
            values in a dictionary `values`, or both. Defaults to `()`.
        first_step: int, the step of the checkpoint to start from. Defaults to 0, no checkpoint.
        extra_values: function that returns a dictionary of JSON values to save as well. Defaults to
            `dict`, no values.

    Attributes:
        step: int, the current step.
        saved_step: int, the step of the last written checkpoint.
    """

    def __init__(
        self,
        checkpoints,
        save_every,
        save_minutes=None,
        callbacks=(),
        first_step=0,
        extra_values=dict,
    ):
        super().__init__()
        self.checkpoints = checkpoints
        self.save_every = save_every
        self.save_minutes = save_minutes
        self.callbacks = callbacks
        self.extra_values = extra_values
        self.step = self.saved_step = self._epoch_start = first_step
        self.workers = None
        self._restored = not first_step
        self._saved_at = time.monotonic()
        self._writer = None
        self._error = None

    def set_model(self, model):
        super().set_model(model)
        self.workers = Workers(model.distribute_strategy)

    def on_epoch_begin(self, epoch, logs=None):
        # Not earlier: an epoch resets its metrics, which are part of the state.
        if not self._restored:
            self._restore(epoch)
            self._restored = True
        elif self.step == 0:
            self.save()
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch_start + batch + 1
        left = self._epoch_start + self.params["steps"] - self.step
        if left and (left <= self.step - before or self._is_due(before)):
            self.save()

    def on_epoch_end(self, epoch, logs=None):
        self.save(between_epochs=True)

    def save(self, between_epochs=False):
        """Takes a snapshot of the state and writes it while training continues.

        Args:
            between_epochs: bool, whether the next step begins an epoch. Defaults to False.
        """
        self.wait()
        arrays = {name: _snapshot(variable) for name, variable in self._variables().items()}
        values = {name: dict(callback.values) for name, callback in self._with("values")}
        self._saved_at = time.monotonic()
        if not self.workers.is_chief:
            self.saved_step = self.step
            return
        values = {"callbacks": values, "between_epochs": between_epochs, **self.extra_values()}
        self._writer = threading.Thread(target=self._write, args=(self.step, arrays, values))
        self._writer.start()

    def wait(self):
        """Waits until the last checkpoint is written, and reports an `OSError` of the writer."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if isinstance(error, OSError):
            print(f"{error}; training continues", flush=True)
        elif error is not None:
            raise error

    def _write(self, step, arrays, values):
        try:
            self.checkpoints.write(step, arrays, values)
            self.saved_step = step
        except Exception as error:
            # The training thread raises or reports it.
            self._error = error

    def _is_due(self, before):
        if before // self.save_every < self.step // self.save_every:
            return True
        if self.save_minutes is None:
            return False
        minutes = (time.monotonic() - self._saved_at) / 60
        # Clocks of workers differ.
        return bool(self.workers.of_chief(int(minutes >= self.save_minutes)))

    def _restore(self, epoch):
        arrays, values = self.checkpoints.read(self.step)
        arrays = renamed_arrays(arrays)
        variables = self._variables()
        if not self.workers.is_chief:
            # Drops the state of callbacks that only the chief has.
            arrays = {name: x for name, x in arrays.items() if name in variables}
        found, expected = (
            {name: tuple(x.shape) for name, x in state.items()} for state in (arrays, variables)
        )
        if found != expected:
            wrong = next(x for x in {**found, **expected} if found.get(x) != expected.get(x))
            raise ValueError(
                f"the checkpoint of step {self.step:,} in {self.checkpoints.folder} belongs to "
                f"another model: {wrong} has shape {found.get(wrong)} there, {expected.get(wrong)} "
                "here"
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


def _snapshot(variable):
    """Returns the current value of a variable in host memory.

    A value in host memory is not copied: TensorFlow gives a variable new memory if it is assigned
    to while a tensor still holds its value.
    """
    if isinstance(variable, keras.Variable):
        variable = variable.value
    with tf.device("CPU:0"):
        return tf.identity(tf.convert_to_tensor(variable))
