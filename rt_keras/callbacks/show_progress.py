"""Shows the progress of training."""

import math
import time

import keras

from rt_keras import progress


class ShowProgress(keras.callbacks.Callback):
    """Shows the loss, the tokens per second and the time left for all epochs.

    It replaces Keras's own bar, so pass `verbose=0` to `fit`. After each epoch it prints one line.
    Where no bar is drawn, such as in a log file, `line_seconds` adds lines during the epoch.

    Args:
        update: function that `rt_keras.progress.bar` yields. Its total must be `total_steps`.
        total_steps: int, the number of steps of all epochs.
        speed: the `MeasureSpeed` of the run. Place it before this callback.
        line_seconds: float, the minimum number of seconds between two such lines.
            Defaults to None, for lines after epochs only.
        monitor: string, name of the value of validation in the epoch logs. Defaults to "val_loss".

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

    clock = staticmethod(time.monotonic)

    def __init__(self, update, total_steps, speed, line_seconds=None, monitor="val_loss"):
        super().__init__()
        self.update = update
        self.total_steps = total_steps
        self.speed = speed
        # Step and time at the end of the first execution, which compiles; None before that.
        self.start = None
        self.line_seconds = line_seconds
        self.monitor = monitor
        # The time of the last line, or of the start of training.
        self.last_line = None

    def on_train_begin(self, logs=None):
        if self.last_line is None:
            self.last_line = self.clock()

    def on_train_batch_end(self, batch, logs=None):
        if self.start is None:
            self.start = self.speed.step, self.clock()
        note = ", ".join([f"loss {float(logs['loss']):.4f}", *self._rate()])
        self.update(completed=self.speed.step, description="training", note=note)
        # After the last step of an epoch, `on_epoch_end` prints a line.
        if self.line_seconds is None or batch + 1 == self.params["steps"]:
            return
        if self.clock() - self.last_line >= self.line_seconds:
            self._print_line([note])

    def on_test_begin(self, logs=None):
        self.update(description="validating")

    def on_epoch_end(self, epoch, logs=None):
        losses = [f"loss {logs['loss']:.4f}"]
        if self.monitor in logs:
            name = self.monitor.removeprefix("val_").replace("_", " ")
            losses.append(f"validation {name} {logs[self.monitor]:.4f}")
        self._print_line([*losses, *self._rate()])

    def _print_line(self, parts):
        line = ", ".join([*parts, *self._left()])
        print(f"step {self.speed.step:,} of {self.total_steps:,}: {line}", flush=True)
        self.last_line = self.clock()

    def _rate(self):
        """Returns tokens per second in the epoch, if it has more than the first execution."""
        rate = self.speed.tokens_per_second
        return [] if math.isnan(rate) else [f"{rate:,.0f} tokens/s"]

    def _left(self):
        """Returns the remaining time, validation included."""
        step, moment = self.start
        done, left = self.speed.step - step, self.total_steps - self.speed.step
        if not done or not left:
            return []
        return [f"{progress.duration((self.clock() - moment) / done * left)} left"]
