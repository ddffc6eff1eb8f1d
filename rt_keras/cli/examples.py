"""Loads the model and the examples of `evaluate` and `analyze`."""

from pathlib import Path

from rt_keras import options


def load(args):
    """Loads the model of `--model` and the examples of `--data` and `--split`.

    Args:
        args: namespace of `model`, `data`, `split` and `sequence_length`.

    Returns:
        A tuple of the model, its task, a `tf.data.Dataset` of examples for it, and their name.
    """
    from rt_keras.training import config as config_lib

    model, task = options.load_model(args.model)
    if args.sequence_length is not None:
        _set_length(args, model)
    run = Path(args.model) / "config.yaml"
    used = config_lib.load_config(run).data if run.exists() else None
    if args.data is not None:
        config = config_lib.DataConfig(**task.data_named(args.data, used and used.name))
    elif used is not None:
        config = used
    else:
        raise ValueError(f"--data is missing; {args.model} does not name a data set")
    note = task.split_note(config)
    if note:
        print(note)
    examples = task.load_split(config, args.split, model.preprocessor)
    return model, task, examples, f"the {args.split} split of {config.name}"


def _set_length(args, model):
    """Sets the sequence length of a model's preprocessor to `--sequence-length`."""
    if not hasattr(model.preprocessor, "sequence_length"):
        raise ValueError(f"--sequence-length does not apply to --model {args.model}")
    longest = getattr(model.backbone, "max_sequence_length", None)
    options.check_range(args, "sequence_length", 1, longest)
    model.preprocessor.sequence_length = args.sequence_length
