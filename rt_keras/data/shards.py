"""Folders of packed data: files that are whole or not there, and a manifest that lists them.

A folder is filled once, shard by shard, and only read from then on. The manifest is written after
each shard, so whoever packs goes on where the last one was interrupted. It holds

- `contents`: what was packed, and how;
- `finished`: whether that is all of it;
- `shards`: for each file its name, its bytes, their SHA-256 sum, the number of items (documents or
  examples) in it and their length (in tokens or bytes);
- `sha256`: the sum of all this.
"""

import itertools
from pathlib import Path

from rt_keras import files, progress

MANIFEST = "manifest.json"


def write(folder, contents, read, save, suffix, limit, total=-1):
    """Packs items into a folder, unless that has been done; goes on if it was interrupted.

    Another process that packs into the folder at the same time is waited for. A shard that is
    missing or has another size than it should is packed again.

    Args:
        folder: string or `Path`.
        contents: dictionary of JSON values, what is packed; `unit` is the plural of an item.
        read: function of an int n that returns an iterator of the items from number n on, each
            bytes or an array of one dimension.
        save: function of a `Path` and a list of items, which writes them to this file.
        suffix: string, the end of the names of files.
        limit: int, the length of items at which a shard is full.
        total: int, the number of items, for the progress bar; below 0 if it is not known.

    Returns:
        The folder, a `Path`.

    Raises:
        ValueError: if the folder holds something else, if its manifest is damaged, if there are no
            items, or if the items of a shard to be packed again have changed.
        OSError: if the disk is full.
    """
    folder = Path(folder)
    manifest = _started(folder, contents)
    if manifest["finished"] and not _missing(folder, manifest):
        return folder
    with files.locked(folder, wait=True):
        manifest = _started(folder, contents)
        for place in _missing(folder, manifest):
            _write_again(folder, manifest["shards"], place, read, save)
        if not manifest["finished"]:
            _write_rest(folder, manifest, read, save, suffix, limit, total)
    return folder


def _started(folder, contents):
    """The manifest of a folder, which must be of these contents, or an empty one."""
    if not (folder / MANIFEST).exists():
        return {"contents": contents, "finished": False, "shards": []}
    manifest = read_manifest(folder)
    found = manifest["contents"]
    for name in sorted({*contents, *found}):
        if contents.get(name) != found.get(name):
            raise ValueError(
                f"{folder} holds packed data whose {name} is {found.get(name)!r}, not "
                f"{contents.get(name)!r}; pack into another folder"
            )
    return manifest


def _missing(folder, manifest):
    """The places of shards whose files are not there or have another size."""
    return [place for place, shard in enumerate(manifest["shards"]) if _problem(folder, shard)]


def _problem(folder, shard):
    """What is wrong with the file of a shard, in words; None if it has the right size."""
    path = folder / shard["file"]
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != shard["bytes"]:
        return f"{path} is damaged: it has {size:,} bytes, not {shard['bytes']:,}"
    return None


def _write_again(folder, shards, place, read, save):
    shard, before = shards[place], sum(shard["items"] for shard in shards[:place])
    progress.say(f"{_problem(folder, shard)}; it is packed again")
    with progress.bar(f"packing {shard['file']}"):
        items = list(itertools.islice(read(before), shard["items"]))
        same = len(items) == shard["items"]
        if not same or _write_shard(folder, shard["file"], items, save) != shard:
            files.delete(folder / shard["file"])
            raise ValueError(
                f"{folder / shard['file']} cannot be packed again: what it was packed from has "
                "changed. Pack into another folder"
            )


def _write_rest(folder, manifest, read, save, suffix, limit, total):
    shards, unit = manifest["shards"], manifest["contents"]["unit"]
    done = sum(shard["items"] for shard in shards)
    with progress.bar(f"packing {unit}", total if total >= 0 else None, unit, done) as update:
        items = read(done)
        while taken := _take(items, limit, update):
            name = f"{len(shards):05}{suffix}"
            shards.append(_write_shard(folder, name, taken, save))
            write_manifest(folder, manifest)
    if not shards:
        raise ValueError(f"{unit} must not be empty: there is nothing to train on.")
    manifest["finished"] = True
    write_manifest(folder, manifest)


def _take(items, limit, update):
    """The next items, of a length of `limit` or just above."""
    taken, length = [], 0
    while length < limit and (item := next(items, None)) is not None:
        taken.append(item)
        length += len(item)
        update(advance=1)
    return taken


def _write_shard(folder, name, items, save):
    """Writes a file whole or not at all; returns its entry in the manifest."""
    files.check_space(folder, sum(memoryview(item).nbytes for item in items))
    with files.whole_file(folder / name, suffix=Path(name).suffix) as part:
        save(part, items)
        entry = {
            "file": name,
            "bytes": part.stat().st_size,
            "sha256": files.sum_of_file(part),
            "items": len(items),
            "length": sum(map(len, items)),
        }
    return entry


def write_manifest(folder, manifest):
    """Writes a manifest, with its sum, to a folder."""
    files.write_sealed_json(folder / MANIFEST, manifest)


def read_manifest(folder):
    """The manifest of a folder.

    Raises:
        FileNotFoundError: if the folder has none.
        ValueError: if it is damaged.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no packed data: it has no {MANIFEST}")
    return files.read_sealed_json(path)


def read_finished(folder, unit):
    """The manifest of a folder that is packed to the end and lacks nothing.

    The sizes of the files are checked, which takes no time; `check_packed` reads them all.

    Args:
        folder: string or `Path`.
        unit: string, what must have been packed.

    Raises:
        FileNotFoundError: if the folder holds no packed data or lacks a file.
        ValueError: if something else was packed, or not to the end, or a file is damaged.
    """
    manifest = read_manifest(folder)
    found = manifest["contents"]["unit"]
    if found != unit:
        raise ValueError(f"{folder} must hold packed {unit}; it holds packed {found}")
    if not manifest["finished"]:
        raise ValueError(f"{folder} is not packed to the end; pack the same {unit} there again")
    for shard in manifest["shards"]:
        problem = _problem(Path(folder), shard)
        if problem:
            error = FileNotFoundError if problem.endswith("missing") else ValueError
            raise error(f"{problem}; pack the same {unit} there again")
    return manifest


def check_packed(packed):
    """Reads all files of a packed folder, and raises an error if bytes of one have changed.

    When a training starts, it only compares their sizes. This takes as long as reading them does.

    Args:
        packed: folder that `pack_documents` or `pack_examples` filled.

    Raises:
        FileNotFoundError: if the folder holds no packed data or lacks a file.
        ValueError: if a file is damaged. Once it is deleted, packing makes it again.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer, pack_documents
    >>> documents = tf.data.Dataset.from_tensors("tick tock")
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> check_packed(packed)
    """
    shards = read_manifest(packed)["shards"]
    for shard in progress.track(shards, f"checking {packed}", len(shards), "files"):
        path = Path(packed, shard["file"])
        if files.sum_of_file(path) != shard["sha256"]:
            raise ValueError(f"{path} is damaged: its bytes have changed; delete it and pack again")
