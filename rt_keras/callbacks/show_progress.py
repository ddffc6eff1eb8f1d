"""Shows how far the training of a model has come."""

import time

import keras

from rt_keras import progress


class ShowProgress(keras.callbacks.Callback):
    """Shows the loss, the tokens per second and the time left for all epochs.

    It replaces Keras's own bar: pass `verbose=0` to `fit`. After each epoch it prints one line.

    Args:
        update: function that `rt_keras.progress.bar` yields, whose total is the number of steps of
            all epochs.
        total_steps: int, that number.
        tokens_per_step: int, tokens that are predicted in a step.
        first_step: int, steps that an earlier `fit` has done. Defaults to 0.

    Example:

    >>> import numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with progress.bar("training", total=4, unit="steps", verbose=0) as update:
    ...     shown = ShowProgress(update, total_steps=4, tokens_per_step=2)
    ...     data = np.zeros([4, 1]), np.zeros([4, 1])
    ...     _ = model.fit(*data, batch_size=2, epochs=2, verbose=0, callbacks=[shown])
    step 2 of 4: loss 0.0000, ... tokens/s, 0:00:0... left
    step 4 of 4: loss 0.0000, ... tokens/s
    """

    def __init__(self, update, total_steps, tokens_per_step, first_step=0):
        super().__init__()
        self.update = update
        self.total_steps = total_steps
        self.tokens_per_step = tokens_per_step
        self.step = self.epoch_start = first_step
        # Step and time at the end of the first execution, which compiles; None before it.
        self.start = None
        # Time of the last event, and seconds of training without the first execution.
        self.moment = None
        self.training_seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_start = self.step
        self.moment = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.step, now = self.epoch_start + batch + 1, time.monotonic()
        if self.start is None:
            self.start = self.step, now
        else:
            self.training_seconds += now - self.moment
        self.moment = now
        note = ", ".join([f"loss {float(logs['loss']):.4f}", *self._rate()])
        self.update(completed=self.step, description="training", note=note)

    def on_test_begin(self, logs=None):
        self.update(description="validating")

    def on_epoch_end(self, epoch, logs=None):
        losses = [f"loss {logs['loss']:.4f}"]
        if "val_loss" in logs:
            losses.append(f"validation loss {logs['val_loss']:.4f}")
        line = ", ".join([*losses, *self._rate(), *self._left()])
        print(f"step {self.step:,} of {self.total_steps:,}: {line}", flush=True)

    def _rate(self):
        """Tokens per second of training, once there is more than the first execution."""
        steps = self.step - self.start[0]
        if not steps:
            return []
        return [f"{steps * self.tokens_per_step / self.training_seconds:,.0f} tokens/s"]

    def _left(self):
        """The time that the other steps take, with their validation."""
        step, moment = self.start
        left = self.total_steps - self.step
        if self.step == step or not left:
            return []
        seconds = (time.monotonic() - moment) / (self.step - step)
        return [f"{progress.duration(seconds * left)} left"]
