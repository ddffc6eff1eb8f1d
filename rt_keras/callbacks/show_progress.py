"""Shows how far the training of a model has come."""

import math
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
        speed: the `MeasureSpeed` of the run. Place it before this callback.

    Example:

    >>> import numpy as np
    >>> from rt_keras.callbacks.measure_speed import MeasureSpeed
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with progress.bar("training", total=4, unit="steps", verbose=0) as update:
    ...     speed = MeasureSpeed(tokens_per_step=2)
    ...     shown = ShowProgress(update, total_steps=4, speed=speed)
    ...     data = np.zeros([4, 1]), np.zeros([4, 1])
    ...     _ = model.fit(*data, batch_size=2, epochs=2, verbose=0, callbacks=[speed, shown])
    step 2 of 4: loss 0.0000, ... tokens/s, 0:00:0... left
    step 4 of 4: loss 0.0000, ... tokens/s
    """

    def __init__(self, update, total_steps, speed):
        super().__init__()
        self.update = update
        self.total_steps = total_steps
        self.speed = speed
        # Step and time at the end of the first execution, which compiles; None before it.
        self.start = None

    def on_train_batch_end(self, batch, logs=None):
        if self.start is None:
            self.start = self.speed.step, time.monotonic()
        note = ", ".join([f"loss {float(logs['loss']):.4f}", *self._rate()])
        self.update(completed=self.speed.step, description="training", note=note)

    def on_test_begin(self, logs=None):
        self.update(description="validating")

    def on_epoch_end(self, epoch, logs=None):
        losses = [f"loss {logs['loss']:.4f}"]
        if "val_loss" in logs:
            losses.append(f"validation loss {logs['val_loss']:.4f}")
        line = ", ".join([*losses, *self._rate(), *self._left()])
        print(f"step {self.speed.step:,} of {self.total_steps:,}: {line}", flush=True)

    def _rate(self):
        """Tokens per second of the epoch, once there is more than the first execution."""
        rate = self.speed.tokens_per_second
        return [] if math.isnan(rate) else [f"{rate:,.0f} tokens/s"]

    def _left(self):
        """The time that the other steps take, with their validation."""
        step, moment = self.start
        done, left = self.speed.step - step, self.total_steps - self.speed.step
        if not done or not left:
            return []
        return [f"{progress.duration((time.monotonic() - moment) / done * left)} left"]
