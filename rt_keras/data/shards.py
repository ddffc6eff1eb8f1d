"""Folders of packed data: shards that are written atomically, and their manifest.

A folder is filled once, shard by shard, and is only read from then on. The manifest is written
after each shard, so interrupted packing can resume. It holds

- `contents`: what was packed, and how;
- `finished`: whether packing is complete;
- `shards`: for each file, its name, its size in bytes, its SHA-256 sum, the number of items
  (documents or examples) in it and their length (in tokens or bytes);
- `sha256`: the checksum of the manifest itself.
"""

import hashlib
import itertools
import json
import warnings
from pathlib import Path

from rt_keras import files
from rt_keras.data import progress

MANIFEST = "manifest.json"


def write(folder, contents, read, save, suffix, limit, total=-1):
    """Packs items into a folder, or resumes interrupted packing; a complete folder is kept.

    If another process packs into the same folder, this one waits for it. A shard that is missing or
    has the wrong size is packed again.

    Args:
        folder: string or `Path`.
        contents: dictionary of JSON values that describes the data; `unit` is the plural name of an
            item.
        read: function that maps an int n to an iterator of the items from index n on, each bytes or
            a one-dimensional array.
        save: function of a `Path` and a list of items that writes the items to this file.
        suffix: string, suffix of the file names.
        limit: int, total length of items at which a shard is full.
        total: int, number of items, for the progress bar; negative if unknown.

    Returns:
        The folder, a `Path`.

    Raises:
        ValueError: if the folder holds other data, if its manifest is damaged, if there are no
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
    """Returns the manifest of a folder, which must have these contents, or an empty one."""
    if not (folder / MANIFEST).exists():
        return {"contents": contents, "finished": False, "shards": []}
    manifest = read_manifest(folder)
    theirs = manifest["contents"]
    for name in sorted({*contents, *theirs}):
        if contents.get(name) != theirs.get(name):
            raise ValueError(
                f"{folder} holds packed data whose {name} is {theirs.get(name)!r}, not "
                f"{contents.get(name)!r}; pack into another folder"
            )
    return manifest


def _missing(folder, manifest):
    """Returns the places of shards whose files are missing or have the wrong size."""
    return [place for place, shard in enumerate(manifest["shards"]) if _problem(folder, shard)]


def _problem(folder, shard):
    """Describes the problem with a shard's file; None if it has the right size."""
    path = folder / shard["file"]
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != shard["bytes"]:
        return f"{path} is damaged: it has {size:,} bytes, not {shard['bytes']:,}"
    return None


def _write_again(folder, shards, place, read, save):
    """Writes a lost shard, which must become what it was."""
    shard, before = shards[place], sum(shard["items"] for shard in shards[:place])
    warnings.warn(f"{_problem(folder, shard)}; packing it again", stacklevel=2)
    items = list(itertools.islice(read(before), shard["items"]))
    if not items or _write_shard(folder, shard["file"], items, save) != shard:
        path = folder / shard["file"]
        path.unlink(missing_ok=True)
        problem = "cannot be packed again: its source has changed. Pack into another folder"
        raise ValueError(f"{path} {problem}")


def _write_rest(folder, manifest, read, save, suffix, limit, total):
    """Writes the shards that follow those of a manifest."""
    shards, unit = manifest["shards"], manifest["contents"]["unit"]
    done = sum(shard["items"] for shard in shards)
    left = total - done if total >= 0 else None
    items = iter(progress.track(read(done), f"packing {unit}", left))
    while shard := _take(items, limit):
        shards.append(_write_shard(folder, f"{len(shards):05}{suffix}", shard, save))
        write_manifest(folder, manifest)
    if not shards:
        raise ValueError(f"{unit} must not be empty: there is nothing to train on.")
    manifest["finished"] = True
    write_manifest(folder, manifest)


def _take(items, limit):
    """Returns the next items, up to a total length of at least `limit`."""
    taken, length = [], 0
    while length < limit and (item := next(items, None)) is not None:
        taken.append(item)
        length += len(item)
    return taken


def _write_shard(folder, name, items, save):
    """Writes a file atomically and returns its entry in the manifest."""
    path = folder / name
    with files.whole_file(path, suffix=path.suffix) as part:
        save(part, items)
    return {
        "file": name,
        "bytes": path.stat().st_size,
        "sha256": files.sum_of_file(path),
        "items": len(items),
        "length": sum(map(len, items)),
    }


def write_manifest(folder, manifest):
    """Writes a manifest with its checksum to a folder."""
    files.write_json(folder / MANIFEST, {**manifest, "sha256": _sum(manifest)})


def read_manifest(folder):
    """Returns the manifest of a folder.

    Raises:
        FileNotFoundError: if the folder has none.
        ValueError: if it is damaged.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no packed data: it has no {MANIFEST}")
    manifest = files.read_json(path)
    if manifest.pop("sha256", None) != _sum(manifest):
        raise ValueError(f"{path} is damaged: its content has changed")
    return manifest


def _sum(manifest):
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_finished(folder, unit):
    """Returns the manifest of a folder after checking that it is complete.

    Only the sizes of the files are checked; `check_packed` checks their contents.

    Args:
        folder: string or `Path`.
        unit: string, the required unit of the contents, such as "documents".

    Raises:
        FileNotFoundError: if the folder holds no packed data, or a file is missing.
        ValueError: if the folder holds other data, if packing is incomplete, or if a file is
            damaged.
    """
    manifest = read_manifest(folder)
    if manifest["contents"]["unit"] != unit:
        theirs = manifest["contents"]["unit"]
        raise ValueError(f"{folder} must hold packed {unit}; it holds packed {theirs}")
    if not manifest["finished"]:
        raise ValueError(f"{folder} is incomplete; pack the same {unit} there again")
    for shard in manifest["shards"]:
        if problem := _problem(Path(folder), shard):
            error = FileNotFoundError if problem.endswith("missing") else ValueError
            raise error(f"{problem}; pack the same {unit} there again")
    return manifest


def check_packed(packed):
    """Checks the contents of all files of a packed folder against their checksums.

    Training only compares the sizes of the files when it starts. This check reads every file.

    Args:
        packed: path of a folder packed by `pack_documents` or `pack_examples`.

    Raises:
        FileNotFoundError: if the folder holds no packed data, or a file is missing.
        ValueError: if a file is damaged. Delete it and pack again to restore it.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer, pack_documents
    >>> documents = tf.data.Dataset.from_tensors("tick tock")
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> check_packed(packed)
    """
    shards = read_manifest(packed)["shards"]
    for shard in progress.track(shards, f"checking {packed}", len(shards)):
        path = Path(packed, shard["file"])
        if files.sum_of_file(path) != shard["sha256"]:
            raise ValueError(f"{path} is damaged: its bytes have changed; delete it and pack again")
