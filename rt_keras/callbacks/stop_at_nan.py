"""Stops a run whose loss is NaN or infinite."""

import math

import keras


class StopAtNaN(keras.callbacks.Callback):
    """Raises an error after the first batch whose loss is NaN or infinite.

    It does not set `stop_training`, so that nothing is validated or saved afterwards.

    Raises:
        FloatingPointError: with the step of the optimizer. With `steps_per_execution` above 1, this
            is the last step of the execution.

    Example:

    >>> import numpy as np
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones([4, 1]), np.array([[1.0], [1.0], [np.nan], [1.0]])
    >>> model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[StopAtNaN()])
    Traceback (most recent call last):
    FloatingPointError: the loss is nan at step 3
    """

    def on_train_batch_end(self, batch, logs=None):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            raise FloatingPointError(f"the loss is {loss} at step {step}")
