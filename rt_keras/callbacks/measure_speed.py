"""Measures the speed of training, and the time that it waits for data."""

import math
import time

import keras

from rt_keras.data.arrivals import seconds_waited


class MeasureSpeed(keras.callbacks.Callback):
    """Counts the steps and tokens of training, and measures their time.

    The figures cover the epoch so far, without validation. The first execution of each `fit` does
    not count, because it compiles and fills the data buffers. Each epoch's logs get

    - `tokens_per_second`;
    - `waiting`, if `arrivals` is given: the share of training time spent waiting for a batch, from
      0 to 1.

    Both are NaN if the epoch has no other execution.

    Place this callback before those that read the logs or its attributes.

    Args:
        tokens_per_step: int, the number of tokens predicted in a step.
        first_step: int, the number of steps of an earlier `fit`. Defaults to 0.
        arrivals: variable to which `rt_keras.data.arrivals.note_arrivals` writes for the data of
            `fit`. Defaults to None, for no `waiting`.

    Attributes:
        step: int, the number of completed steps.

    Example:

    >>> import numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> data, speed = (np.zeros([4, 1]), np.zeros([4, 1])), MeasureSpeed(tokens_per_step=2)
    >>> history = model.fit(*data, batch_size=2, verbose=0, callbacks=[speed])
    >>> speed.step, history.history["tokens_per_second"][0] > 0
    (2, True)
    """

    def __init__(self, tokens_per_step, first_step=0, arrivals=None):
        super().__init__()
        self.tokens_per_step = tokens_per_step
        self.arrivals = arrivals
        self.step = self._epoch_start = self._fit_start = first_step
        # Counted steps of the epoch, their seconds, and the seconds of waiting.
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0
        # Times when the last step ended and the next one began.
        self._ended = self._began = None

    def on_train_begin(self, logs=None):
        self._fit_start = self.step

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0
        self._ended = time.time()

    def on_train_batch_begin(self, batch, logs=None):
        self._began = time.time()

    def on_train_batch_end(self, batch, logs=None):
        before, self.step = self.step, self._epoch_start + batch + 1
        now = time.time()
        if before > self._fit_start:
            self._steps += self.step - before
            self._seconds += now - self._ended
            self._waited += self._waited_since(before, now)
        self._ended = now

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.update(self.figures())

    def figures(self):
        """Returns the figures of the epoch so far, by their names in the logs.

        Returns:
            A dictionary of floats.
        """
        figures = {"tokens_per_second": self.tokens_per_second}
        if self.arrivals is not None:
            figures["waiting"] = self._waited / self._seconds if self._steps else math.nan
        return figures

    @property
    def tokens_per_second(self):
        """Tokens per second in the epoch so far; NaN before the first counted step."""
        return self._steps * self.tokens_per_step / self._seconds if self._steps else math.nan

    def _waited_since(self, before, now):
        """Returns the seconds that the steps after a given step waited."""
        if self.arrivals is None:
            return 0.0
        times = self.arrivals.numpy().tolist()
        numbers = range(before - self._fit_start, self.step - self._fit_start)
        return seconds_waited(self._began, now, [times[i % len(times)] for i in numbers])
