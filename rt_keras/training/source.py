"""What a run was trained on, so that one whose data have changed is not resumed.

The file `data.json` in the folder of a run says what its training split was read from: the name and
the version of a data set, or the names, sizes and times of the files of a folder.
"""

from pathlib import Path

from rt_keras import files

FILE_NAME = "data.json"


def write(experiment, output):
    """Writes what a run trains on to its folder.

    Args:
        experiment: an `Experiment`.
        output: `Path`, the folder of the run.
    """
    files.write_json(output / FILE_NAME, _source(experiment))


def check(experiment, output):
    """Raises an error if the data of a run to resume are not those that it began with.

    Args:
        experiment: an `Experiment`.
        output: `Path`, the folder of the run.

    Raises:
        FileNotFoundError: if the folder does not say what the run began with.
        ValueError: if the data have changed; the message names the first file.
    """
    saved = output / FILE_NAME
    if not saved.exists():
        raise FileNotFoundError(
            f"the run in {output} cannot be resumed: it has no {FILE_NAME}, which says what data "
            "it began with; --overwrite starts anew"
        )
    ours, theirs = _source(experiment), files.read_json(saved)
    changes = _changes(ours, theirs)
    if changes:
        more = f" (the first of {len(changes):,} files)" if changes[1:] else ""
        raise ValueError(
            f"the training data have changed since the run in {output} began: {changes[0]}{more}. "
            "Restore them, or start anew with --overwrite"
        )


def _source(experiment):
    from rt_keras.data import tfds_sets

    return tfds_sets.source(experiment.task.make_builder(experiment.data), "train")


def _changes(ours, theirs):
    """What differs, in words."""
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
