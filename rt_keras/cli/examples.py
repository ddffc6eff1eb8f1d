"""The model and the examples that `evaluate` and `analyze` are given."""

from pathlib import Path

from rt_keras.cli.options import load_model


def load(args):
    """Loads the model of `--model` and the examples of `--data` and `--split`.

    Args:
        args: namespace of `model`, `data` and `split`.

    Returns:
        A tuple of the model, a `tf.data.Dataset` of its kind of examples, and what they are called.
    """
    from rt_keras.training import config as config_lib
    from rt_keras.training.tasks import task_of

    model = load_model(args.model)
    task = task_of(model)
    run = Path(args.model) / "config.yaml"
    if args.data is not None:
        config = config_lib.DataConfig(**task.data_named(args.data))
    elif run.exists():
        config = config_lib.load_config(run).data
    else:
        raise ValueError(f"--data is missing; {args.model} does not say what to evaluate on")
    examples = task.load_split(config, args.split, model.preprocessor)
    return model, examples, f"the {args.split} split of {config.name}"
