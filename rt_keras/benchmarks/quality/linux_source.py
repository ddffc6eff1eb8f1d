"""Makes a folder of C source for the task text from the archive of the Linux kernel.

Debian's package `linux-source-6.1` has the archive, `/usr/src/linux-source-6.1.tar.xz`.
"""

import argparse
import hashlib
import lzma
import re
import sys
import tarfile
from pathlib import PurePosixPath

from rt_keras.files import check_new_folder, whole_folder
from rt_keras.progress import track

LEFT_OUT = ("Documentation", "samples", "tools")
# Shorter files have little to predict, and those with a larger share of digits are mostly tables.
LEAST_LENGTH, LARGEST_SHARE_OF_DIGITS = 1000, 0.15
# One folder in so many is for validation, and one for testing.
FOLDERS_PER_SPLIT = 25
COMMENT = re.compile(r"\s*(//[^\n]*\n|/\*.*?\*/)", re.DOTALL)
# What reading a damaged archive can raise.
UNREADABLE = OSError, EOFError, lzma.LZMAError, tarfile.TarError
LEGAL = re.compile(r"spdx|copyright|licen[cs]e|\(c\)|author", re.IGNORECASE)


def main(arguments=None):
    """Writes the folder, with subfolders `train`, `validation` and `test`.

    Args:
        arguments: list of strings. Defaults to None, for those of the command line.

    Returns:
        The exit status: 1 if the archive cannot be read or the folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rt_keras.benchmarks.quality.linux_source",
        description="Writes C source of the Linux kernel to a folder for rt-keras benchmark "
        "quality --tasks text --directory FOLDER. Whole folders of the kernel are for training, "
        "validation or testing. License headers, tables and short files are left out.",
    )
    parser.add_argument("archive", help="linux-source-6.1.tar.xz of Debian's linux-source-6.1")
    parser.add_argument("folder", help="the new folder")
    parser.add_argument(
        "--length", type=int, default=50_000_000, help="characters to write (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    try:
        check_new_folder(args.folder)
        counts = write_folder(args.archive, args.folder, args.length)
    except (*UNREADABLE, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for split, count in counts.items():
        print(f"{split}: {count:,} characters")
    return 0


def write_folder(archive, folder, length):
    """Writes the files of some folders of the archive, in a fixed random order of folders.

    Args:
        archive: path of a tar archive.
        folder: path of the new folder.
        length: int, number of characters after which no further folder is written.

    Returns:
        A dictionary from split to number of characters.

    Raises:
        ValueError: if the archive has no C source for a split.
    """
    folders = read_folders(archive)
    counts = dict.fromkeys(("train", "validation", "test"), 0)
    with whole_folder(folder) as part:
        for split in counts:
            (part / split).mkdir()
        for place, name in enumerate(sorted(folders, key=_hash)):
            split = {0: "validation", 1: "test"}.get(place % FOLDERS_PER_SPLIT, "train")
            for file, text in folders[name].items():
                (part / split / f"{file}.txt").write_text(text, encoding="utf-8")
                counts[split] += len(text)
            if sum(counts.values()) > length:
                break
        if not all(counts.values()):
            raise ValueError(
                f"{archive} must hold C source in at least 3 folders, and --length must reach the "
                f"third. Received: --length {length}"
            )
    return counts


def _hash(name):
    return hashlib.sha256(name.encode()).digest()


def read_folders(archive):
    """Reads the C source of the archive, by folder, at most three levels deep.

    Args:
        archive: path of a tar archive whose paths begin with the name of the kernel.

    Returns:
        A dictionary from folder to a dictionary from file name, without suffix, to text.

    Raises:
        ValueError: if it is no tar archive.
    """
    if not tarfile.is_tarfile(archive):
        raise ValueError(f"{archive} must be a tar archive")
    folders = {}
    with tarfile.open(archive) as tar:
        for member in track(tar, "reading the archive", unit="files"):
            parts = PurePosixPath(member.name).parts[1:]
            is_source = member.isfile() and member.name.endswith(".c")
            if not is_source or not parts or parts[0] in LEFT_OUT:
                continue
            try:
                text = without_header(tar.extractfile(member).read().decode())
            except UnicodeDecodeError:
                continue
            if len(text) >= LEAST_LENGTH and not is_table(text):
                name = "-".join(parts).removesuffix(".c")
                folders.setdefault("/".join(parts[:-1][:3]), {})[name] = text
    return folders


def without_header(text):
    """Returns C source without the comments about its license and authors at its top.

    >>> without_header("// SPDX-License-Identifier: GPL-2.0\\n/* Copyright */\\nint x;")
    'int x;'
    """
    while (found := COMMENT.match(text)) and LEGAL.search(found[0]):
        text = text[found.end() :]
    return text.lstrip()


def is_table(text):
    """Returns whether a text is mostly numbers.

    >>> is_table("0x01, 0x02, 0x03"), is_table("int main(void)")
    (True, False)
    """
    digits = sum(map(str.isdigit, text)) + text.count("0x")
    return digits > LARGEST_SHARE_OF_DIGITS * len(text)


if __name__ == "__main__":
    sys.exit(main())
