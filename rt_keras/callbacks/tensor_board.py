"""Logs a run to TensorBoard, also during epochs."""

import keras
import tensorflow as tf

from rt_keras.keras_internals import open_writers, train_writer


class TensorBoard(keras.callbacks.TensorBoard):
    """Logs scalars every `log_every` steps and after each epoch.

    During an epoch, it logs by step, with the prefix `batch_`: the loss and other metrics (means
    over the epoch so far), the learning rate, the figures of `MeasureSpeed` and, for models with a
    `gradient_norm`, the norm of the last gradients. After the epoch, it logs the epoch's logs by
    epoch, with the prefix `epoch_`, as Keras does.

    Keras's own `update_freq` counts executions, from 0 in each `fit`. This callback counts the
    steps of the run, so a resumed run continues its curves. Everything is written to disk at once,
    so that nothing before a checkpoint is lost when the process is killed.

    Args:
        log_dir: string or path, the folder to write to.
        speed: the `MeasureSpeed` of the run. Place it before this callback.
        log_every: int, the number of steps between logs of scalars. Defaults to 10.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from rt_keras.callbacks.measure_speed import MeasureSpeed
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> data, speed = (np.zeros([4, 1]), np.zeros([4, 1])), MeasureSpeed(tokens_per_step=2)
    >>> board = TensorBoard(tempfile.mkdtemp(), speed, log_every=1)
    >>> history = model.fit(*data, batch_size=2, verbose=0, callbacks=[speed, board])
    """

    def __init__(self, log_dir, speed, log_every=10):
        super().__init__(log_dir, write_graph=False)
        self.speed = speed
        self.log_every = log_every
        self._logged = speed.step

    def on_train_batch_end(self, batch, logs=None):
        step = self.speed.step
        if self._logged // self.log_every < step // self.log_every:
            self._log_batch(step, logs)
        self._logged = step

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self._flush()

    def _log_batch(self, step, logs):
        # Keras's own writers: TensorBoard follows one file of a folder at a time.
        rate = float(self.model.optimizer.learning_rate)
        values = {**logs, **self.speed.figures(), "learning_rate": rate}
        if hasattr(self.model, "gradient_norm"):
            values["gradient_norm"] = self.model.gradient_norm
        with train_writer(self).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(f"batch_{name}", value)
        self._flush()

    def _flush(self):
        for writer in open_writers(self):
            writer.flush()
