"""`rt-keras analyze`: inspects the attention of a model."""

from rt_keras.cli import examples, options


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    parser.epilog = "example: rt-keras analyze causality --help"
    commands = parser.add_subparsers(required=True, metavar="ANALYSIS")
    summary = "measure how much a language model sees of its future"
    options.add_command(commands, "causality", summary, add_causality_arguments, analyze_causality)


def add_causality_arguments(parser):
    """Adds the arguments of `analyze causality` to an `argparse` parser."""
    parser.description += (
        " Later tokens are replaced to see which earlier outputs change, and the loss of the whole "
        "sequence at once is compared with the loss prefix by prefix."
    )
    parser.epilog = "example: rt-keras analyze causality --model runs/books --json causality.json"
    options.add_model(parser)
    options.add_examples(parser)
    for name, default, what in (
        ("sequences", 4, "number of sequences of the split to inspect"),
        ("positions", 16, "number of positions to change, and of prefixes to score, in each"),
        ("changes", 2, "number of replacements tried at each position"),
        ("seed", 0, "random seed"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: {default})"
        )


def analyze_causality(args):
    """Measures how much a language model sees of its future."""
    import numpy as np

    from rt_keras.analysis import causality
    from rt_keras.training.tasks import task_of

    for name in ("sequences", "positions", "changes"):
        options.check_range(args, name, 1)
    model, documents, name = examples.load(args)
    task = task_of(model)
    if not task.continues_text:
        raise ValueError(f"--model {args.model} must be a causal language model")
    batches = task.evaluation_batches(model, documents, 1, model.preprocessor)
    rows = [
        np.concatenate([inputs["token_ids"][0, :1], labels[0]])
        for inputs, labels, weights in batches.take(args.sequences).as_numpy_iterator()
        if weights.all()
    ]
    if not rows:
        raise ValueError(f"{name} is shorter than one sequence of the model")
    figures = causality.measure(
        model,
        np.stack(rows),
        num_positions=args.positions,
        num_changes=args.changes,
        seed=args.seed,
        verbose=1,
    )
    print(f"{len(rows)} sequences of {name}\n{causality.report(figures)}")
    return figures
