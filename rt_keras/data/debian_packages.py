"""The short and the long descriptions of Debian's packages, as questions with answers."""

import re
import subprocess
from pathlib import Path

LISTS = "/var/lib/apt/lists"
# Decompresses a list as apt stores it.
APT_HELPER = "/usr/lib/apt/apt-helper"
COMPRESSED = (".lz4", ".gz", ".xz", ".bz2", ".zst")
LEAST, MOST = 100, 10_000
HOW = "run apt-get update -o Acquire::Languages=en"
NAME = re.compile(r"^Package: (\S+)$", re.MULTILINE)
DESCRIPTION = re.compile(r"^Description(?:-en)?: (.*)((?:\n .*)*)", re.MULTILINE)
# A line that starts an item of a list.
ITEM = re.compile(r"([-*+•o]|\d+[.)]) ")


def find(source, left_out):
    """Yields a question for each package: its short description, answered by its long one.

    Of packages with the same first paragraph, except for their names, such as a library and its
    documentation, the first by name is kept, so that no such text is in two splits.

    Args:
        source: path of a list, such as the output of `apt-cache dumpavail` or a `Translation-en` of
            apt, or of a folder of the latter.
        left_out: `collections.Counter`, in which reasons to leave out a question are counted.

    Raises:
        FileNotFoundError: if there is no list with long descriptions.
    """
    packages, seen = {}, set()
    for path in _lists(Path(source)):
        for name, short, long in descriptions(_text(path)):
            packages.setdefault(name, (short, long))
    if not any(long for _, long in packages.values()):
        raise FileNotFoundError(f"{source} has no long descriptions; {HOW}")
    for name, (short, long) in sorted(packages.items()):
        firsts = _first_paragraphs(name, long)
        if not LEAST <= len(long) <= MOST:
            left_out[f"with a long description not of {LEAST} to {MOST:,} characters"] += 1
        elif not seen.isdisjoint(firsts):
            left_out["with the first paragraph of another, except for the name"] += 1
        elif short.casefold() in " ".join(long.split()).casefold():
            left_out["with the short description in the long one"] += 1
        elif re.search(rf"(?<!\w){re.escape(name)}(?!\w)", short, re.IGNORECASE):
            left_out["with the name in the short description"] += 1
        else:
            seen.update(firsts)
            yield {"id": name, "title": "", "text": long, "question": short, "answer": long}


def _first_paragraphs(name, long):
    """Returns the words of the first paragraph, and those that are not in the package's name."""
    parts = set(re.split(r"[-+._]", name))
    words = re.findall(r"\w+", long.partition("\n\n")[0].casefold())
    return tuple(words), tuple(word for word in words if word not in parts)


def _lists(source):
    if source.is_dir():
        paths = sorted(source.glob("*_Translation-en*"))
    else:
        paths = [source] if source.exists() else []
    if not paths:
        raise FileNotFoundError(f"{source} has no lists with long descriptions; {HOW}")
    return paths


def _text(path):
    if path.suffix not in COMPRESSED:
        return path.read_text(encoding="utf-8")
    if not Path(APT_HELPER).exists():
        raise FileNotFoundError(f"{path} cannot be decompressed; install apt")
    command = [APT_HELPER, "cat-file", str(path)]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        message = result.stderr.decode("utf-8", errors="replace").strip()
        raise OSError(f"{path} cannot be decompressed: {message}")
    return result.stdout.decode("utf-8")


def descriptions(text):
    """Yields the name, the short and the long description of the packages in a list.

    Args:
        text: string, paragraphs as in the control files of Debian.

    >>> list(descriptions("Package: a\\nDescription: An a\\n It is\\n a.\\n .\\n More.\\nSize: 1"))
    [('a', 'An a', 'It is a.\\n\\nMore.')]
    """
    for paragraph in text.split("\n\n"):
        name, description = NAME.search(paragraph), DESCRIPTION.search(paragraph)
        if name and description:
            yield name[1], description[1].strip(), _plain(description[2])


def _plain(long):
    """Returns a long description with one line per paragraph, and lists as they are."""
    lines, open_line = [], False
    for line in (line[1:].rstrip() for line in long.split("\n")[1:]):
        if line in (".", ""):
            lines.append("")
            open_line = False
        elif open_line and not line.startswith((" ", "\t")) and not ITEM.match(line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
            open_line = not line.startswith((" ", "\t"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
