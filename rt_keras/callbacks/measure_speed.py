"""Measures how fast a model trains, and how long it waits for its data."""

import math
import time

import keras

from rt_keras.data.arrivals import seconds_waited


class MeasureSpeed(keras.callbacks.Callback):
    """Counts the steps and tokens of training, and the time that they take.

    The figures are of the epoch up to now, without validation. The first execution of each `fit`
    does not count, as it compiles and fills the buffers of the data. Each epoch's logs get

    - `tokens_per_second`;
    - `waiting`, if `arrivals` is given: the share of the time of training in which it waited for a
      batch, from 0 to 1.

    Both are NaN if the epoch has no other execution.

    Place it before the callbacks that read the logs, or its attributes.

    Args:
        tokens_per_step: int, tokens that are predicted in a step.
        first_step: int, steps that an earlier `fit` has done. Defaults to 0.
        arrivals: variable to which `rt_keras.data.arrivals.note_arrivals` writes for the data that
            `fit` gets; None, the default, to leave out `waiting`.

    Attributes:
        step: int, the number of steps that are done.

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
        # Steps of the epoch that count, and the seconds that they took and waited.
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0
        # When the last step ended, and when the next one began.
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
        """The figures of the epoch up to now, by their names in the logs.

        Returns:
            A dictionary of floats.
        """
        found = {"tokens_per_second": self.tokens_per_second}
        if self.arrivals is not None:
            found["waiting"] = self._waited / self._seconds if self._steps else math.nan
        return found

    @property
    def tokens_per_second(self):
        """Tokens per second of the epoch up to now; NaN before there is a step that counts."""
        return self._steps * self.tokens_per_step / self._seconds if self._steps else math.nan

    def _waited_since(self, before, now):
        """The seconds for which the steps after a step waited."""
        if self.arrivals is None:
            return 0.0
        times = self.arrivals.numpy().tolist()
        numbers = range(before - self._fit_start, self.step - self._fit_start)
        return seconds_waited(self._began, now, [times[i % len(times)] for i in numbers])
