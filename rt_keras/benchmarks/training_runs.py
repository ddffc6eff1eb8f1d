"""The trainings of a table: one after another, each in its own process, kept in a file."""

import importlib
import json
import multiprocessing
import signal
import time

from rt_keras import progress
from rt_keras.benchmarks import options
from rt_keras.files import write_json

# Number of tests during a training.
TESTS = 20


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


def _identity(settings):
    return json.dumps(settings, sort_keys=True)


def train_alone(target, settings, name):
    """Trains a model in a separate process, so that the peak memory is that of this run.

    Args:
        target: string, "module:function". The function takes `settings` and a function `report`,
            which it calls as `report("step", step)` after each step and as `report("test", {"step":
            step, "note": text})` after each test.
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
