"""The record of a run's training data. A run whose data have changed cannot be resumed.

The file `data.json` in the folder of a run identifies its training split: by the name and the
version of a data set, or by the names, sizes and times of the files in a folder.
"""

from pathlib import Path

from rt_keras import files

FILE_NAME = "data.json"


def write(experiment, output):
    """Writes the identity of the training data to the folder of a run.

    Args:
        experiment: an `Experiment`.
        output: `Path`, the folder of the run.
    """
    files.write_json(output / FILE_NAME, _source(experiment))


def check(experiment, output):
    """Raises an error if the training data of a run to resume have changed.

    Args:
        experiment: an `Experiment`.
        output: `Path`, the folder of the run.

    Raises:
        FileNotFoundError: if the folder has no record of the training data.
        ValueError: if the data have changed; the message names the first changed file.
    """
    saved = output / FILE_NAME
    if not saved.exists():
        raise FileNotFoundError(
            f"the run in {output} cannot be resumed: it has no {FILE_NAME}, the record of its "
            "training data; --overwrite starts from step 0"
        )
    ours, theirs = _source(experiment), files.read_json(saved)
    changes = _changes(ours, theirs)
    if changes:
        more = f" (the first of {len(changes):,} files)" if changes[1:] else ""
        raise ValueError(
            f"the training data have changed since the run in {output} began: {changes[0]}{more}. "
            "Restore them, or start from step 0 with --overwrite"
        )


def _source(experiment):
    from rt_keras.data import tfds_sets

    return tfds_sets.source(experiment.task.make_builder(experiment.data), "train")


def _changes(ours, theirs):
    """Returns a list of strings that describe the differences."""
    if ours.get("set") != theirs.get("set"):
        return [f"they are {ours.get('set')}, and were {theirs.get('set')}"]
    now, before = ours.get("files", {}), theirs.get("files", {})
    folder = Path(ours.get("folder", ""))
    return [
        _change(folder / name, before.get(name), now.get(name))
        for name in sorted({*now, *before})
        if now.get(name) != before.get(name)
    ]


def _change(path, before, now):
    if now is None:
        return f"{path} is missing"
    if before is None:
        return f"{path} is new"
    if before[0] != now[0]:
        return f"{path} has {now[0]:,} bytes, and had {before[0]:,}"
    return f"{path} was written again"
