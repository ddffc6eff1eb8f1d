"""Saves the best model of a run."""

import math
from pathlib import Path

import keras

from rt_keras import files
from rt_keras.callbacks.workers import Workers


class KeepBest(keras.callbacks.Callback):
    """Writes the model to a folder after every validation if it is the best so far.

    The folder is a KerasHub preset with `SHA256SUMS`, which `rt_keras.files.check_sums` compares.
    `keras.callbacks.ModelCheckpoint` writes no presets, and a failure leaves half of its file. With
    several workers, only the chief writes.

    Args:
        folder: string or path, the folder of the preset.
        monitor: string, name of the value in the epoch logs to minimize. Defaults to "val_loss".
        preprocessor: preprocessor to save with the model, which is trained without one. Defaults
            to None.

    Attributes:
        values: dictionary of the `step` and the `value` of the model in the folder.

    Raises:
        FloatingPointError: if the monitored value is NaN or infinite. Nothing is written then.
        OSError: if the disk is full. The folder is unchanged.
    """

    def __init__(self, folder, monitor="val_loss", preprocessor=None):
        super().__init__()
        self.folder = Path(folder)
        self.monitor = monitor
        self.preprocessor = preprocessor
        self.values = {"step": None, "value": math.inf}

    def on_epoch_end(self, epoch, logs=None):
        value = float(logs[self.monitor])
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        if not math.isfinite(value):
            raise FloatingPointError(f"{self.monitor} is {value} at step {step}")
        if value < self.values["value"]:
            if Workers(self.model.distribute_strategy).is_chief:
                task = self._task()
                with files.new_files(self.folder) as part:
                    files.check_space(part, 4 * task.count_params())
                    task.save_to_preset(part)
            self.values = {"step": step, "value": value}

    def _task(self):
        """Returns the model with its preprocessor."""
        model, strategy = self.model, self.model.distribute_strategy
        backbone, several = model.backbone, Workers(strategy).are_several
        if several:
            # A copy with its own variables: reading some of the model's would need all workers.
            backbone = type(backbone).from_config(backbone.get_config())
        parts = {"backbone": backbone, "preprocessor": self.preprocessor}
        task = type(model).from_config({**model.get_config(), **parts})
        for own, trained in zip(task.weights, model.weights, strict=True):
            if own is not trained:
                value = trained.value
                own.assign(strategy.experimental_local_results(value)[0] if several else value)
        return task
