"""The model and the examples that `evaluate` and `analyze` are given."""

import os
from pathlib import Path


def load(args):
    """Loads the model of `--model` and the examples of `--data` and `--split`.

    Args:
        args: namespace of `model`, `data` and `split`.

    Returns:
        A tuple of the model, a `tf.data.Dataset` of its kind of examples, and what they are called.
    """
    from rt_keras.training import config as config_lib
    from rt_keras.training import datasets, experiment

    model = experiment.load_model(args.model)
    kind = experiment.kind_of(model)
    run = Path(args.model) / "config.yaml"
    if args.data is not None:
        config = _data_config(args.data, kind)
    elif run.exists():
        config = config_lib.load_config(run).data
    else:
        raise ValueError(f"--data is missing; {args.model} does not say what to evaluate on")
    examples = datasets.load_split(kind, config, args.split, model.preprocessor)
    return model, examples, f"the {args.split} split of {config.name}"


def _data_config(name_or_folder, kind):
    from rt_keras.training.config import DataConfig

    if Path(name_or_folder).is_dir():
        folder = "pairs_folder" if kind == "seq_2_seq_lm" else "text_folder"
        return DataConfig(name=folder, directory=name_or_folder)
    # The names of sets of pairs have a slash too.
    if kind != "seq_2_seq_lm" and os.sep in name_or_folder:
        raise FileNotFoundError(f"--data is {name_or_folder}; there is no such folder")
    return DataConfig(name=name_or_folder)
