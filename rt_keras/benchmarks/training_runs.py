"""The trainings of a table: one after another, each in its own process, kept in a file."""

import importlib
import itertools
import json
import multiprocessing
import signal
import time

from rt_keras import progress
from rt_keras.benchmarks import options
from rt_keras.files import write_json

# Number of tests during a training.
TESTS = 20
WARM_UP = 50


def figures_of(path, benchmark, wanted, train, describe):
    """Trains the models of a table, unless a file already has their figures.

    The file is written after each run.

    Args:
        path: string, the file of `--json`, or None.
        benchmark: string, name of the benchmark in the file.
        wanted: list of dictionaries of JSON values, the settings of the runs.
        train: function from settings to a dictionary of JSON values with these `settings`.
        describe: function from settings to a string, for progress.

    Returns:
        Pair of the whole result, with all runs of the file in `figures`, and the list of the wanted
        figures.

    Raises:
        ValueError: if the file belongs to another benchmark.
    """
    result = options.earlier(path, {"benchmark": benchmark, "figures": []})
    done = {_identity(figure["settings"]): figure for figure in result["figures"]}
    for settings in wanted:
        if _identity(settings) in done:
            progress.say(f"{describe(settings)}: already in {path}")
            continue
        figure = train(settings)
        done[_identity(settings)] = figure
        result["figures"].append(figure)
        if path:
            write_json(path, result)
    return result, [done[_identity(settings)] for settings in wanted]


def tabulate(args, benchmark, run_settings, train, report, draw):
    """Trains a model for each seed and kind, prints their table and draws the picture of `--plot`.

    Args:
        args: namespace with `seeds`, `kinds`, `json` and `plot`.
        benchmark: string, name of the benchmark in the file of `--json`.
        run_settings: function from `args`, a kind and a seed to the settings of a run.
        train: see `figures_of`.
        report: function from figures to the table, a string.
        draw: function that draws figures to a path.

    Returns:
        The whole result of `figures_of`.
    """
    runs = itertools.product(*map(dict.fromkeys, (args.seeds, args.kinds)))
    wanted = [run_settings(args, kind, seed) for seed, kind in runs]
    # What does not depend on the seed is measured once.
    wanted = [x for i, x in enumerate(wanted) if x not in wanted[:i]]
    result, figures = figures_of(args.json, benchmark, wanted, train, describe)
    print(report(figures))
    if args.plot:
        draw(figures, args.plot)
        print(f"wrote {args.plot}")
    return result


def describe(settings):
    """Describes a run.

    >>> describe({"kind": "local", "seed": 0})
    'local, seed 0'
    """
    return f"{settings['kind']}, seed {settings['seed']}"


def training_keys(settings):
    """Returns the keys and values of a configuration for the optimizer and the steps of a run."""
    steps = settings["steps"]
    return {
        "optimizer.learning_rate": settings["learning_rate"],
        "optimizer.beta_2": 0.98,
        "schedule.warmup_steps": min(WARM_UP, steps),
        "trainer.steps": steps,
        "trainer.validation_every": steps,
        "trainer.seed": settings["seed"],
    }


def _identity(settings):
    return json.dumps(settings, sort_keys=True)


def train_alone(target, settings, name):
    """Trains a model in a separate process, so that the peak memory is that of this run.

    Args:
        target: string, "module:function". The function takes `settings` and a function `report`,
            which it calls as `report("step", step)` after each step, as `report("test", {"step":
            step, "note": text})` after each test, and as `report("note", text)` at other times.
        settings: dictionary of JSON values with the number of `steps`.
        name: string, for progress.

    Returns:
        What the function returns.

    Raises:
        ChildProcessError: if the process ends without an answer, as when memory runs out.
        Exception: if the function raises one.
    """
    steps, context = settings["steps"], multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_train_for, args=(theirs, target, settings), daemon=True)
    process.start()
    theirs.close()
    try:
        with progress.bar(f"training {name}", steps, "steps") as update:
            while True:
                kind, answer = ours.recv()
                if kind == "step":
                    update(completed=answer)
                elif kind == "test":
                    update(note=answer["note"])
                    progress.say(f"{name}: step {answer['step']} of {steps}, {answer['note']}")
                elif kind == "note":
                    update(note=answer)
                    progress.say(f"{name}: {answer}")
                elif kind == "error":
                    raise answer
                else:
                    return answer
    except EOFError:
        process.join()
        raise ChildProcessError(
            f"training {name} ended with status {process.exitcode}, perhaps because memory ran out"
        ) from None
    finally:
        process.terminate()
        process.join()


def watch(every, seconds, report, note):
    """Returns the callback of a training that reports its steps and tests.

    It comes last, so that the times of steps include the other callbacks.

    Args:
        every: int, number of steps between tests, which are epochs.
        seconds: list, to which it appends the time of each step.
        report: function; see `train_alone`.
        note: function from the logs of a test to a string.
    """
    import keras

    started = []

    def end(batch, logs):
        seconds.append(time.perf_counter() - started.pop())
        report("step", len(seconds))

    return keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: started.append(time.perf_counter()),
        on_train_batch_end=end,
        on_epoch_end=lambda epoch, logs: report(
            "test", {"step": every * (epoch + 1), "note": note(logs)}
        ),
    )


def _train_for(connection, target, settings):
    """Trains in a child process, and sends progress and the result to the parent."""
    # The parent handles interrupts and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        module, function = target.split(":")
        train = getattr(importlib.import_module(module), function)
        answer = "done", train(settings, lambda *message: connection.send(message))
    except Exception as error:
        answer = "error", error
    connection.send(answer)
