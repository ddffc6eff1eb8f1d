"""The folders of saved tasks: what is in them, writing and loading it."""

from pathlib import Path

from rt_keras import files, models
from rt_keras.models.adapted.adapted_causal_lm import AdaptedCausalLM
from rt_keras.models.adapted.tasks import AdaptedTextEmbedder

# Adapted models that commands accept.
ACCEPTED = {AdaptedCausalLM: "causal language models", AdaptedTextEmbedder: "text embedders"}


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


def adapted_class(folder, base=None):
    """Returns the class of the adapted model in the folder of a task.

    Args:
        folder: path of the folder.
        base: class that it must be a subclass of. Defaults to None, for any model that commands
            accept.

    Raises:
        ValueError: if it is a model of another kind.
    """
    from rt_keras.models.adapted.tasks import TASKS as ADAPTED

    name, adapted = class_name(folder), {cls.__name__: cls for cls in ADAPTED.values()}
    if name not in adapted:
        more = "; adapt it with `rt-keras adapt`" if name in {x.__name__ for x in ADAPTED} else ""
        kind = "an adapted model" if hasattr(models, name) else "a model of rt_keras"
        raise ValueError(f"{folder} holds a {name}, which is not {kind}{more}")
    if not issubclass(adapted[name], base or tuple(ACCEPTED)):
        accepted = ACCEPTED[base] if base else " and ".join(ACCEPTED.values())
        raise ValueError(
            f"{folder} holds a {name}; among adapted models, only {accepted} can be used here"
        )
    return adapted[name]


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
    elif issubclass(cls, tuple(ACCEPTED)):
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
