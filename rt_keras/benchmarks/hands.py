"""`rt-keras benchmark hands`: what a person waits for with a pretrained language model.

The waits, from the start of Python on: first and further texts after a prompt, training steps of
LoRA or of all weights, and an export with its first answer. keras_hub is KerasHub's own model, and
adapt is rt_keras.adapt with its default heads. They take turns, each in a new process.

example: rt-keras benchmark hands --model SmolLM2-135M --tasks generate --json hands.json
"""

# Libraries are imported inside functions, since their imports are part of what a person waits for.

import functools
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from rt_keras.benchmarks import machine, runs
from rt_keras.cli.options import add_integers, add_language_model, add_options, check_at_least_one
from rt_keras.data.tables import table

CONTENDERS = ("keras_hub", "adapt")
TASKS = ("generate", "fit_lora", "fit_all", "export")
# Numbers of new tokens of a text, and of further ones of a longer text.
NEW, FURTHER = 30, 128
STEPS, LORA_RANK = 5, 4


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    add_language_model(parser)
    runs.add_names(parser, "contenders", CONTENDERS)
    runs.add_names(parser, "tasks", TASKS)
    meaning = "tokens of the prompts (default: 8 8000)"
    add_options(parser, {"--prompt-lengths N": meaning}, type=int, nargs="+", default=(8, 8000))
    meaning = "tokens of the texts to train on (default: 512)"
    add_options(parser, {"--fit-lengths N": meaning}, type=int, nargs="+", default=(512,))
    add_integers(parser, {"repeats": (1, "processes for each figure, which is their median")})


def main(args):
    """Measures all cells and prints the table.

    With `--json`, the file is written after each cell, and cells that it contains are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each process: its `settings`,
        and the results of `measure`.

    Raises:
        ValueError: if an option is out of range, the model does not exist, or the file is from
            another benchmark.
        RuntimeError: if nothing could be measured.
    """
    check_at_least_one(args, "prompt_lengths", "fit_lengths", "repeats")
    runs.check_language_model(args)
    measure = functools.partial(_measure, args.model)
    return runs.figures_of(args.json, "hands", cells(args), measure, report)


def cells(args):
    """Returns the settings of all processes, in which the contenders take turns."""
    lengths = {"generate": args.prompt_lengths, "export": [None]}
    return [
        {"name": Path(args.model).name, "task": task, "length": length, "kind": kind, "turn": turn}
        for task in dict.fromkeys(args.tasks)
        for length in dict.fromkeys(lengths.get(task, args.fit_lengths))
        for turn, kind in itertools.product(range(args.repeats), dict.fromkeys(args.contenders))
        # KerasHub does not export a model with its tokenizer.
        if (task, kind) != ("export", "keras_hub")
    ]


def _measure(model, settings):
    """Measures a cell in a new process; returns None if memory ran out."""
    task, length, kind = (settings[name] for name in ("task", "length", "kind"))
    where = f"{task} of {kind}" + (f", {length:,} tokens" if length else "")
    return runs.attempt(where, measure, model, task, length, kind, time.time())


def report(figures):
    """Returns the figures as a table with a row for each wait."""
    rows = {}
    for figure in figures:
        settings = figure["settings"]
        for wait, value in figure["waits"].items():
            row = rows.setdefault((settings["task"], settings["length"], wait), {})
            row.setdefault(settings["kind"], []).append(value)
    lines = []
    for (task, length, wait), values in rows.items():
        medians = [statistics.median(values[x]) if x in values else None for x in CONTENDERS]
        ratio = None if None in medians else medians[1] / medians[0]
        lines.append([runs.words(task), length, runs.words(wait), *medians, ratio])
    columns = {"task": "", "tokens": ",", "wait (s)": ""}
    columns |= {**dict.fromkeys(CONTENDERS, ",.3f"), "ratio": ",.2f"}
    head = [figures[0]["settings"]["name"], runs.machines(figures), ""]
    return "\n".join([*head, table(columns, lines)])


def measure(model, task, length, kind, began):
    """Measures the waits of a task.

    Args:
        model: string, folder or preset name of a pretrained language model.
        task: "generate", "fit_lora", "fit_all" or "export".
        length: int, number of tokens of a prompt or of a text to train on; None for an export.
        kind: "keras_hub" or "adapt".
        began: float, the time at which the process was started, as from `time.time`.

    Returns:
        A dictionary of the `machine` and of `waits`: `load`, the seconds from the start of Python
        until the model is there, and those of `generation`, `training` or `export`.
    """
    loaded = load(model, kind)
    seconds = time.time() - began
    if task == "generate":
        waits = generation(loaded, length)
    elif task == "export":
        waits = export(loaded)
    else:
        waits = training(loaded, length, lora=task == "fit_lora")
    return {"machine": machine.describe(), "waits": {"load": seconds, **waits}}


def load(model, kind):
    """Loads the model of KerasHub, or adapts it."""
    if kind == "keras_hub":
        import keras_hub

        return keras_hub.models.CausalLM.from_preset(model)
    import rt_keras

    return rt_keras.adapt(model)


def text_of(length):
    """Returns a text of more tokens than `length`."""
    return "".join(f"sentence {i} of a text that is long enough, " for i in range(1 + length // 4))


def generation(model, length):
    """Measures calls of `generate` with prompts of some tokens.

    Returns:
        A dictionary of seconds: `first_call` and `second_call`, with the same prompt and `NEW` new
        tokens; `other_prompt`, a shorter one; `other_length`, with `FURTHER` further tokens, and
        `same_again`; and `token`, each of the further ones.
    """
    model.compile(sampler="greedy")
    tokenizer = model.preprocessor.tokenizer
    tokens = tokenizer(text_of(length))[:length]

    def call(first=0, further=0):
        prompt, room = str(tokenizer.detokenize(tokens[first:])), 1 + length - first + NEW + further
        return runs.timed(lambda: model.generate(prompt, room, stop_token_ids=None))[0]

    waits = {
        "first_call": call(),
        "second_call": call(),
        "other_prompt": call(first=length // 4),
        "other_length": call(further=FURTHER),
        "same_again": call(further=FURTHER),
    }
    return {**waits, "token": (waits["same_again"] - waits["second_call"]) / FURTHER}


def training(model, length, lora):
    """Measures steps of `fit` with Adam and one text, of all weights or of LoRA.

    Returns:
        A dictionary of seconds: `first_step`, and `step`, the median of the others.
    """
    import keras
    import tensorflow as tf

    if lora:
        model.backbone.enable_lora(LORA_RANK)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, weighted_metrics=[])
    model.preprocessor.sequence_length = length
    batches = tf.data.Dataset.from_tensors([text_of(length)]).repeat(STEPS)
    times = [time.perf_counter()]

    def stop(batch, logs):
        # Reading a value waits for the device.
        float(logs["loss"])
        times.append(time.perf_counter())

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    model.fit(batches, shuffle=False, callbacks=[watch], verbose=0)
    first, *others = (after - before for before, after in zip(times, times[1:]))
    return {"first_step": first, "step": statistics.median(others)}


def export(model):
    """Measures an export of an adapted model, and its answers in another process.

    Returns:
        A dictionary of the seconds of `export`, the `graph_megabytes` of `saved_model.pb`, and the
        seconds of `answers`.
    """
    from rt_keras.serving.saved_model import export_saved_model

    with tempfile.TemporaryDirectory() as folder:
        seconds, path = runs.timed(export_saved_model, model, folder)
        size = (path / "saved_model.pb").stat().st_size / 1e6
        waits = runs.alone(answers, str(path), time.time())
    return {"export": seconds, "graph_megabytes": size, **waits}


def answers(path, began):
    """Measures texts that an exported model writes with TensorFlow alone.

    Args:
        path: string, the folder of the SavedModel.
        began: float, the time at which the process was started, as from `time.time`.

    Returns:
        A dictionary of seconds: `load_export`, from the start of Python on, `first_answer` and
        `second_answer`, of `NEW` new tokens.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  The operations of tokenizers.

    model = tf.saved_model.load(path)
    waits = {"load_export": time.time() - began}
    inputs = {"prompts": tf.constant([text_of(1)]), "max_new_tokens": NEW, "top_k": 1}
    for name in ("first_answer", "second_answer"):
        waits[name] = runs.timed(lambda: model.generate(**inputs)["texts"].numpy())[0]
    return waits
