"""The folder of a run: checks before a run starts or resumes, and a return to a checkpoint.

The file `data.json` identifies the training data: by the name and the version of a data set, or by
the names, sizes and times of files. A run whose data have changed cannot be resumed.
"""

import copy
import os
from pathlib import Path

from rt_keras import files
from rt_keras.data import data_sets
from rt_keras.training import config as config_lib
from rt_keras.training.config_fields import set_value, values_of

# Keys that may change when a run is resumed, because its results do not depend on them.
FREE_OPTIONS = ("checkpoint_every", "log_every", "validation_every", "strategy", "tpu_address")
FREE_KEYS = tuple(f"trainer.{name}" for name in FREE_OPTIONS)
PATH_KEYS = ("model.preset", "tokenizer.vocabulary", "data.directory", "data.data_dir")


def check(output, experiment, resume, overwrite):
    """Raises an error if a run cannot start, or resume, in a folder.

    Args:
        output: `Path`, the folder.
        experiment: the `Experiment` of the run.
        resume: bool or "auto"; see `rt_keras.training.run.train`.
        overwrite: bool; see `rt_keras.training.run.train`.

    Returns:
        The saved `ExperimentConfig` of the run to resume; None for a new run.

    Raises:
        FileExistsError: if the folder holds a run and neither `resume` nor `overwrite` is set.
        FileNotFoundError: if there is no run to resume.
        ValueError: if the configuration or the data differ from those of the run to resume, or both
            `resume` and `overwrite` are set.
    """
    saved = output / "config.yaml"
    if resume and overwrite:
        raise ValueError("resume and overwrite are mutually exclusive: continue or delete the run")
    if not saved.exists() and resume and resume != "auto":
        raise FileNotFoundError(f"{output} holds no run to resume: it has no config.yaml")
    if not saved.exists() or overwrite:
        return None
    if not resume:
        problem = "already holds a run; --resume continues it, --overwrite deletes it"
        raise FileExistsError(f"{output} {problem}")
    before = config_lib.load_config(saved)
    _check_same(experiment.config, before, saved)
    _check_data(experiment, output)
    return before


def _check_same(config, before, saved):
    """Raises a ValueError that names the keys that differ from those of the run to resume."""
    ours, theirs = (values_of(_with_absolute_paths(x)) for x in (config, before))
    free = FREE_KEYS
    # Only a cosine schedule depends on the number of steps. More steps raise it once,
    # which is acceptable for longer training.
    if config.schedule.name != "cosine" or ours["trainer.steps"] > theirs["trainer.steps"]:
        free = (*FREE_KEYS, "trainer.steps")
    changed = [key for key in ours if ours[key] != theirs.get(key) and key not in free]
    if changed:
        key = changed[0]
        raise ValueError(
            f"the configuration differs from that of the run to resume, {saved}: {key} is "
            f"{ours[key]!r}, and was {theirs.get(key)!r}"
            + (f"; so do {', '.join(changed[1:])}" if changed[1:] else "")
        )


def _check_data(experiment, output):
    """Raises a ValueError that names the first file of the training data that has changed."""
    ours, theirs = _data(experiment), files.read_json(output / "data.json")
    changed = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if changed:
        raise ValueError(
            f"the training data have changed since the run in {output} began: {changed[0]} is new, "
            "missing or was written again. Restore them, or start from step 0 with --overwrite"
        )


def _data(experiment):
    return data_sets.source(experiment.task.make_builder(experiment.data), "train")


def go_back(output, checkpoints, best):
    """Returns a folder to its state at the newest intact checkpoint.

    TensorBoard's curves stay: the run computes their last points again, with equal values.

    Args:
        output: `Path`, the folder.
        checkpoints: its `Checkpoints`.
        best: the `KeepBest` of the run, whose values are restored.

    Returns:
        The step of the checkpoint; 0 if the run ended before its first checkpoint.

    Raises:
        ValueError: if all checkpoints are damaged.
    """
    step, values, damaged = checkpoints.newest()
    for message in damaged:
        print(message, flush=True)
    if step is None:
        if damaged or (output / "model").exists():
            raise ValueError(f"{output} holds no intact checkpoint; --overwrite starts from step 0")
        return 0
    for path in output.glob(".model.*"):
        files.delete(path)
    best.values = values["callbacks"]["KeepBest"]
    os.truncate(output / "log.csv", values["log_bytes"])
    return step


def start(output, experiment):
    """Deletes the files of an earlier run, and only those, and records the data of a new one.

    Args:
        output: `Path`, the folder.
        experiment: the `Experiment` of the run.
    """
    for name in ("config.yaml", "data.json", "log.csv", "model", "checkpoints", "tensorboard"):
        files.delete(output / name)
    files.write_json(output / "data.json", _data(experiment))


def write_config(output, config):
    """Writes the configuration of a run, with all keys.

    Paths become absolute, so that they are valid from any working directory.

    Args:
        output: `Path`, the folder of the run.
        config: an `ExperimentConfig`.
    """
    with files.whole_file(output / "config.yaml") as part:
        part.write_text(config_lib.to_yaml(_with_absolute_paths(config)), encoding="utf-8")


def _with_absolute_paths(config):
    config = copy.deepcopy(config)
    for key in PATH_KEYS:
        set_value(config, key, _absolute(values_of(config)[key]))
    return config


def _absolute(path):
    """Makes a path absolute, unless it is a URL or begins with a home folder."""
    if path is None or "://" in path or path.startswith("~"):
        return path
    # The folders of parallel documents may be two.
    return os.pathsep.join(str(Path(part).resolve()) for part in path.split(os.pathsep))
