"""The folders of saved tasks: what is in them, writing and loading it."""

from pathlib import Path

from rt_keras import files
from rt_keras.models.presets import Loadable


def task_folder(path):
    """Returns the folder of the task in the folder of a run or a preset.

    Args:
        path: folder of the run or the preset.

    Raises:
        FileNotFoundError: if there is none.
    """
    path = Path(path)
    for folder in (path / "model", path):
        if (folder / "task.json").is_file():
            return folder
    if (path / "config.yaml").is_file():
        raise FileNotFoundError(f"the run in {path} has not reached its first validation yet")
    if (path / "config.json").is_file():
        config = files.read_json(path / "config.json")
        name, model_type = config.get("class_name"), config.get("model_type")
        found = f"only a {name}" if name else f"a model of type {model_type!r}"
        advice = "`rt-keras adapt` converts a pretrained language model to one"
        raise FileNotFoundError(f"{path} holds {found}, not a task of rt_keras; {advice}")
    raise FileNotFoundError(f"{path} holds neither a run nor a preset of a model")


def class_name(folder):
    """Returns the name of the class of the task in a folder."""
    return files.read_json(folder / "task.json").get("class_name")


def write_task(task, folder):
    """Writes a task, or a backbone, as a preset with the sums of its files, atomically.

    Args:
        task: the model.
        folder: path of the folder, which must be new or empty.

    Raises:
        OSError: if the folder is not empty, or the disk is full.
    """
    with files.whole_folder(folder) as part:
        files.check_space(part, 4 * task.count_params())
        task.save_to_preset(part)
        files.write_sums(part)


def load_task(cls, folder, dtype=None):
    """Loads the task in a folder.

    Args:
        cls: its class.
        folder: path of the folder.
        dtype: dtype policy. Defaults to None, for Keras's global policy, or that of an adapted
            model.

    Raises:
        ValueError: if the folder is damaged.
    """
    files.check_sums(folder)
    options, config = {}, files.read_json(folder / "config.json")
    if dtype is not None:
        options["dtype"] = dtype
    elif not issubclass(cls, Loadable):
        # An adapted model.
        options["dtype"] = _dtype(config)
    try:
        return cls.from_preset(str(folder), **options)
    except Exception as error:
        raise ValueError(f"{folder} holds a model that cannot be loaded: {error}") from error


def _dtype(config):
    """Returns the dtype policy in a preset's config.json; None for policies of single layers."""
    dtype = config.get("config", {}).get("dtype") or {}
    # Quantized models have a policy for each layer, which KerasHub loads.
    return None if dtype.get("class_name") != "DTypePolicy" else dtype["config"]["name"]
