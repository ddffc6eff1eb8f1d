"""Keeps everything that a run is, so that it goes on as if nothing had happened."""

import threading
import time

import keras
import tensorflow as tf

from rt_keras.callbacks.workers import Workers


class KeepState(keras.callbacks.Callback):
    """Writes checkpoints of all state during `fit`, and starts from one.

    The state is that of the model, with its random seeds and what it carries from batch to batch,
    of the optimizer, of the epoch's metrics, and of other callbacks. So a run that goes on from a
    checkpoint, in the middle of an epoch or after one, computes the same bits as one that was not
    interrupted, if it gets the same batches from there on.

    A checkpoint is written every `save_every` steps, after each epoch, and before the last step of
    each epoch: what happens in validation costs one step at most. It is written in a thread of its
    own, while training goes on. If it cannot be written, as when the disk is full, the run says so
    and goes on.

    Place it behind the callbacks whose state it keeps, and before those that stop the run. Make and
    compile the model in the scope of a `tf.distribute` strategy, such as that of one device: `fit`
    then builds the optimizer and the metrics before the first batch. Of several workers the chief
    alone writes, in a folder from which all can read; the others take part as the state of some
    variables is spread over them.

    Args:
        checkpoints: `Checkpoints`, where they are written.
        save_every: int, steps between two checkpoints.
        save_minutes: float, minutes after which one is written sooner; None, the default, for no
            such limit.
        callbacks: list of callbacks that have a state: TensorFlow variables in a list `variables`
            or JSON values in a dictionary `values`, or both. Defaults to none.
        first_step: int, the step of the checkpoint to start from. Defaults to 0, for none.
        extra_values: function that returns a dictionary of JSON values to keep too. Defaults to
            none.

    Attributes:
        step: int, the step of now.
        saved_step: int, that of the last checkpoint that was written.
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
        # Not sooner: the epoch's metrics, which started anew, are part of the state.
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
        """Takes the state of now, and has it written while training goes on.

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
        """Waits until the last checkpoint is written, and says so if there was no room for it."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if isinstance(error, OSError):
            print(f"{error}; training goes on", flush=True)
        elif error is not None:
            raise error

    def _write(self, step, arrays, values):
        try:
            self.checkpoints.write(step, arrays, values)
            self.saved_step = step
        except Exception as error:
            # For the thread that trains.
            self._error = error

    def _is_due(self, before):
        if before // self.save_every < self.step // self.save_every:
            return True
        if self.save_minutes is None:
            return False
        minutes = (time.monotonic() - self._saved_at) / 60
        # Clocks differ.
        return bool(self.workers.of_chief(int(minutes >= self.save_minutes)))

    def _restore(self, epoch):
        arrays, values = self.checkpoints.read(self.step)
        variables = self._variables()
        if not self.workers.is_chief:
            # The state of callbacks that only the chief has.
            arrays = {name: x for name, x in arrays.items() if name in variables}
        found, expected = (
            {name: tuple(x.shape) for name, x in state.items()} for state in (arrays, variables)
        )
        if found != expected:
            wrong = next(x for x in {**found, **expected} if found.get(x) != expected.get(x))
            raise ValueError(
                f"the checkpoint of step {self.step:,} in {self.checkpoints.folder} is of another "
                f"model: {wrong} has shape {found.get(wrong)} there, {expected.get(wrong)} here"
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
        """All that changes in training. Keras's names differ from process to process."""
        sources = {
            "model": self.model.variables,
            "optimizer": self.model.optimizer.variables,
            "metrics": self.model.metrics_variables,
            "carried": getattr(self.model, "carried_rows", []),
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
    """The value of now, in the memory of this machine.

    There it takes no copy: TensorFlow gives a variable new memory when it is assigned to while a
    tensor still holds its value.
    """
    if isinstance(variable, keras.Variable):
        variable = variable.value
    with tf.device("CPU:0"):
        return tf.identity(tf.convert_to_tensor(variable))
