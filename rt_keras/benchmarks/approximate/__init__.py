"""`rt-keras benchmark approximate`: how well other heads stand in for full attention.

Models with full attention are trained; then each kind of heads takes its place, with the same
weights, before and after `distill`. `tasks.py` has what they learn, `kinds.py` the heads,
`models.py` the models, `forward.py` their time and memory.
"""

import itertools
import multiprocessing

from rt_keras import progress
from rt_keras.benchmarks import machine, options, workers
from rt_keras.benchmarks.approximate.kinds import KINDS, NOT_CAUSAL
from rt_keras.benchmarks.approximate.tasks import TASKS, VOCABULARY, batches, unigram_accuracy
from rt_keras.files import write_json
from rt_keras.options import add_integers
from rt_keras.tables import table

INTEGERS = {
    "length": (512, "tokens in a sequence"),
    "keys": (128, "the most keys that a query of sparse heads sees"),
    "layers": (2, "number of blocks"),
    "width": (128, "width of the blocks"),
    "heads": (4, "heads of a block"),
    "batch": (8, "sequences in a batch"),
    "steps": (1500, "steps of the training with full attention"),
}
# Held-out batches that are scored, and the seeds of those and of the batches of distillation.
TEST_BATCHES, TEST_SEED, DISTILL_SEED, DISTILL_BATCHES = 16, 10**6, 10**5, 64


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains small models like RoBERTa and GPT-2 with full attention, puts other heads in its "
        "place, and measures what they lose: without any training, and after some steps of "
        "distillation."
    )
    parser.epilog = (
        "example: rt-keras benchmark approximate --tasks copy --kinds full local nearest "
        "--json approximate.json"
    )
    for name, known in (("tasks", TASKS), ("kinds", KINDS)):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            default=list(known),
            metavar="NAME",
            help=f"{name} to measure: {', '.join(known)} (default: all)",
        )
    add_integers(parser, INTEGERS)
    parser.add_argument(
        "--distill-steps",
        type=int,
        default=200,
        help="steps of distillation, 0 for none (default: 200)",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=1e-3,
        help="highest learning rate of the training (default: 1e-3)",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="folder of texts for masked and causal (default: the source of Python's library)",
    )
    parser.add_argument(
        "--time-lengths",
        nargs="*",
        type=int,
        default=[],
        metavar="N",
        help="numbers of tokens at which a forward pass is timed (default: none)",
    )


def main(args):
    """Trains, adapts and measures, and prints the tables.

    With `--json`, the file is written after each task, and tasks that it holds with the same
    settings are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: `figures`, one for each task and kind, with `accuracy` and
        `loss` as swapped in and, with `_distilled` behind the name, after distillation; and
        `times`, one for each kind and length.

    Raises:
        ValueError: if an option is out of range, or the file is of another benchmark.
    """
    check(args)
    empty = {"benchmark": "approximate", "machine": machine.describe(), "figures": [], "times": []}
    result = options.earlier(args.json, empty)
    settings = {name: getattr(args, name) for name in (*INTEGERS, "distill_steps", "directory")}
    settings["learning_rate"] = args.learning_rate
    for task in dict.fromkeys(args.tasks):
        done = {
            x["kind"] for x in result["figures"] if (x["task"], x["settings"]) == (task, settings)
        }
        wanted = [kind for kind in dict.fromkeys(args.kinds) if kind not in done]
        if task == "causal":
            wanted = [kind for kind in wanted if kind not in NOT_CAUSAL]
        if wanted:
            result["figures"] += _alone(measure_task, task, wanted, settings)
            if args.json:
                write_json(args.json, result)
    if args.time_lengths:
        result["times"] += measure_times(args.kinds, args.time_lengths, settings)
    print(report(result))
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
    options.check_among("tasks", args.tasks, TASKS)
    options.check_among("kinds", args.kinds, KINDS)
    options.check_at_least_one(args, *INTEGERS)
    if args.distill_steps < 0:
        raise ValueError(f"--distill-steps must be at least 0. Received: {args.distill_steps}")
    if args.width % args.heads:
        raise ValueError(
            f"--width must be a multiple of --heads {args.heads}. Received: {args.width}"
        )
    if args.length < 64 or args.length % 2:
        raise ValueError(f"--length must be even and at least 64. Received: {args.length}")
    if not args.learning_rate > 0:
        raise ValueError(f"--learning-rate must be above 0. Received: {args.learning_rate}")


def _alone(function, *arguments):
    """A function's result, from a process of its own, whose memory is free afterwards."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_task(task, kinds, settings):
    """Trains a model on a task, and measures each kind of heads in it.

    Args:
        task: string, one of `TASKS`.
        kinds: list of strings, of `KINDS`.
        settings: dictionary of the options.

    Returns:
        A list of figures, see `main`.
    """
    import keras

    import rt_keras
    from rt_keras.benchmarks.approximate import models
    from rt_keras.benchmarks.quality.tasks.text import read

    keras.utils.set_random_seed(0)
    causal, length = task == "causal", settings["length"]
    text, held_out = (read(settings["directory"], split) for split in ("train", "validation"))

    def draw(seed, of):
        return batches(task, seed, settings["batch"], length, of)

    sizes = (settings[name] for name in ("layers", "width", "heads"))
    # Positions of the two copies start alike.
    period = length // 2 if task == "copy" else None
    backbone = models.make_backbone(causal, length, *sizes, period)
    head = keras.layers.Dense(2 if task == "span" else VOCABULARY)
    scored = models.Scored(task, head)
    train(scored, backbone, draw(0, text), settings, f"training {task}")
    tests = list(itertools.islice(draw(TEST_SEED, held_out), TEST_BATCHES))
    samples = [
        models.inputs_of(tokens)
        for tokens, _, _ in itertools.islice(draw(DISTILL_SEED, text), DISTILL_BATCHES)
    ]
    figures = []
    for kind in kinds:
        other = models.adapted(backbone, kind, settings["keys"], length, causal, samples[0])
        figure = {"task": task, "kind": kind, "settings": settings}
        figure |= score(scored, other, tests)
        if settings["distill_steps"] and kind != "full":
            off = rt_keras.distill(
                other, backbone, samples, settings["distill_steps"], seed=0, verbose=1
            )
            after = score(scored, other, tests)
            figure |= {f"{name}_distilled": value for name, value in after.items()}
            figure["off"] = off
        if task == "masked":
            figure["unigram_accuracy"] = unigram_accuracy(length, held_out.tobytes())
        options.say(f"{kind} on {task}: accuracy {figure['accuracy']:.3f}")
        figures.append(figure)
        keras.backend.clear_session(free_memory=True)
    return figures


def train(scored, backbone, data, settings, title):
    """Trains a backbone and its answers on a task.

    Args:
        scored: `models.Scored`.
        backbone: backbone.
        data: iterator of batches.
        settings: dictionary of the options.
        title: string, what is said to be done.
    """
    import keras
    import tensorflow as tf

    steps = settings["steps"]
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=settings["learning_rate"], warmup_steps=max(1, steps // 10)
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
    scored.head.build((None, None, settings["width"]))
    weights = backbone.trainable_variables + scored.head.trainable_variables
    optimizer.build(weights)

    @tf.function(jit_compile=True)
    def step(*batch):
        with tf.GradientTape() as tape:
            loss, hits = scored.loss_and_hits(backbone, batch)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss, hits

    with progress.bar(title, steps, "steps") as update:
        for number, batch in enumerate(itertools.islice(data, steps)):
            loss, hits = step(*map(tf.constant, batch))
            update(advance=1)
            if (number + 1) % max(1, steps // 10) == 0:
                options.say(f"{title}: step {number + 1}, loss {loss:.3f}, accuracy {hits:.3f}")


def score(scored, backbone, tests):
    """The accuracy and loss on held-out batches.

    Returns:
        Dictionary of two floats.
    """
    import numpy as np
    import tensorflow as tf

    run = tf.function(lambda *batch: scored.loss_and_hits(backbone, batch))
    found = np.mean([run(*map(tf.constant, batch)) for batch in tests], axis=0)
    return {"loss": float(found[0]), "accuracy": float(found[1])}


def measure_times(kinds, lengths, settings):
    """The time and memory of a forward pass of one sequence.

    Args:
        kinds: list of strings, of `KINDS`.
        lengths: list of ints, tokens.
        settings: dictionary of the options.

    Returns:
        A list of dictionaries of `kind`, `length`, `seconds` and `peak_bytes`.
    """
    found = []
    for length in lengths:
        contenders = {
            kind: {
                "target": "rt_keras.benchmarks.approximate.forward:prepare",
                "arguments": {
                    "kind": kind,
                    "length": length,
                    **{name: settings[name] for name in ("keys", "layers", "width", "heads")},
                },
            }
            for kind in kinds
        }
        times = workers.contest(
            contenders, 3, machine.count_cores(), lambda name, what: options.say(f"{name}: {what}")
        )
        found += [
            {"kind": kind, "length": length, **{key: x[key] for key in ("seconds", "peak_bytes")}}
            for kind, x in times.items()
        ]
    return found


def report(result):
    """The tables of a result.

    Args:
        result: what `main` returns.

    Returns:
        Lines of text: for each task, the share of full attention's accuracy that is lost.
    """
    lines = [result["machine"]]
    for task in dict.fromkeys(figure["task"] for figure in result["figures"]):
        figures = [figure for figure in result["figures"] if figure["task"] == task]
        lines += ["", _title(figures[0]), "", _task_table(figures)]
    if result["times"]:
        columns = {"kind": "", "tokens": ",", "forward (s)": ".3f", "peak (MB)": ",.0f"}
        rows = [
            [x["kind"].replace("_", " "), x["length"], x["seconds"], x["peak_bytes"] / 1e6]
            for x in result["times"]
        ]
        lines += ["", "one sequence, forward", "", table(columns, rows)]
    return "\n".join(lines)


def _title(figure):
    settings = figure["settings"]
    unigram = figure.get("unigram_accuracy")
    beside = "" if unigram is None else f"; the commonest byte of a sequence {unigram:.3f}"
    return (
        f"{figure['task']}: {settings['length']:,} tokens, {settings['layers']} blocks of width "
        f"{settings['width']}, {settings['steps']:,} steps of full attention, "
        f"{settings['distill_steps']:,} of distillation{beside}"
    )


def _task_table(figures):
    columns = {"kind": "", "accuracy": ".3f", "loss": ".3f", "lost": ".1%"}
    columns |= {"accuracy,\ndistilled": ".3f", "loss,\ndistilled": ".3f", "lost,\ndistilled": ".1%"}
    best = next((x["accuracy"] for x in figures if x["kind"] == "full"), None)
    rows = []
    for figure in figures:
        row = [figure["kind"].replace("_", " ")]
        for suffix in ("", "_distilled"):
            accuracy = figure.get(f"accuracy{suffix}")
            lost = None if None in (accuracy, best) or not best else 1 - accuracy / best
            row += [accuracy, figure.get(f"loss{suffix}"), lost]
        rows.append(row)
    return table(columns, rows)
