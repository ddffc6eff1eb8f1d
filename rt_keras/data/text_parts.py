"""Splitting of a file into contiguous parts for training, validation and testing.

The parts are contiguous so that long contexts stay intact.
"""

# Start and end of each part, in percent of the bytes.
SHARES = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
# A shorter text is not cut, because parts could be empty: all of it is for training.
LEAST_BYTES = 100
# Maximum distance from a cut to the end of its line.
LINE_BYTES = 2**16


def read_part(path, split):
    """Reads the part of a file that belongs to a split: the first 90%, next 5% or last 5%.

    A cut moves to the start of the next line if there is one within 5% of the file and 64 KiB, or
    else to the next character in UTF-8.

    Args:
        path: `Path` of the file.
        split: "train", "validation" or "test".

    Returns:
        Bytes. Concatenated, the parts of the three splits are the file.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "text.txt")
    >>> _ = path.write_text("".join(f"line {number:2}\\n" for number in range(20)))
    >>> read_part(path, "validation"), read_part(path, "test")
    (b'line 18\\n', b'line 19\\n')
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start, end = (_cut(file, size, percent) for percent in SHARES[split])
        file.seek(start)
        return file.read(end - start)


def _cut(file, size, percent):
    """Returns the position of a cut in an open file."""
    place = size * percent // 100
    if percent and size < LEAST_BYTES:
        return size
    if place in (0, size):
        return place
    # Start one byte earlier, since a line may start exactly at the cut.
    file.seek(place - 1)
    after = file.read(min(LINE_BYTES, size // 20))
    line = after.find(b"\n")
    if line >= 0:
        return place + line
    # In UTF-8, all bytes of a character after its first are 0b10xxxxxx.
    whole = (skip for skip, byte in enumerate(after[1:4]) if byte & 0xC0 != 0x80)
    return place + next(whole, 0)
