"""Keeps the last state of a run, to resume from, and its best model."""

import math
import os
import tempfile
from pathlib import Path

import keras

from rt_keras import files


class KeepCheckpoints(keras.callbacks.Callback):
    """After every validation, keeps the state of the run and, if it is the best yet, the model.

    In `folder`:
    - `last.weights.h5`: weights, optimizer and step, which `restore` reads;
    - `model/`: the best model as a KerasHub preset;
    - `progress.json`: the step and the value of the best model.

    Each file is written whole or not at all. An interruption between two of them does no harm: a
    run resumed from `last.weights.h5` comes to the same validation again.

    Args:
        folder: string or path, where to keep them.
        monitor: string, name of the value in the epoch logs to minimise. Defaults to "val_loss".
        preprocessor: preprocessor to save with the model, which is trained without one. Defaults
            to None.

    Raises:
        FloatingPointError: if that value is NaN or infinite; then nothing is written.
    """

    def __init__(self, folder, monitor="val_loss", preprocessor=None):
        super().__init__()
        self.folder = Path(folder)
        self.monitor = monitor
        self.preprocessor = preprocessor
        self.best_step = None
        self.best_value = math.inf

    def restore(self, model):
        """Loads the last state into a compiled model.

        Args:
            model: a compiled model with the same configuration as the one that was saved.

        Returns:
            The step at which it was saved, an int; 0 if nothing was saved yet.

        Raises:
            ValueError: if a file of the checkpoint is damaged.
        """
        last = self.folder / "last.weights.h5"
        if not last.exists():
            return 0
        self._read_progress()
        files.check_weights(last)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(last)
        return int(keras.ops.convert_to_numpy(model.optimizer.iterations))

    def _read_progress(self):
        path = self.folder / "progress.json"
        progress = files.read_json(path)
        try:
            self.best_step = int(progress["best_step"])
            self.best_value = float(progress["best_value"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{path} is damaged: best_step and best_value must be numbers. Received: {progress}"
            ) from None

    def on_epoch_end(self, epoch, logs=None):
        value = float(logs[self.monitor])
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        if not math.isfinite(value):
            raise FloatingPointError(f"{self.monitor} is {value} at step {step}")
        if value < self.best_value:
            self._save_model()
            self.best_step, self.best_value = step, value
            progress = {"best_step": step, "best_value": value}
            files.write_json(self.folder / "progress.json", progress)
        with files.whole_file(self.folder / "last.weights.h5", suffix=".weights.h5") as part:
            self.model.save_weights(part)

    def _save_model(self):
        """Replaces the preset file by file: only its weights change from step to step."""
        task = type(self.model)(self.model.backbone, self.preprocessor)
        with tempfile.TemporaryDirectory(prefix=".model.", dir=self.folder) as part:
            task.save_to_preset(part)
            for path in Path(part).rglob("*"):
                target = self.folder / "model" / path.relative_to(part)
                if path.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
