"""Makes a folder of parallel documents from the manual pages of two languages.

Debian has them in the packages `manpages` and `manpages-dev`, and translated in packages such as
`manpages-de` and `manpages-de-dev`. `mandoc` or `groff` converts them to plain text.
"""

import argparse
import gzip
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

from rt_keras.files import check_new_folder, whole_folder
from rt_keras.progress import track

# A character, a backspace and a character are one that is printed twice, for bold text.
OVERSTRIKE = re.compile(r".\x08")
# What fills the columns of tables, and lines of tables, as wide as the page.
FILLING, RULE = re.compile(r"(?<=\S) {3,}"), re.compile(r"[\u2500-\u257f_-]{9,}")
# Programs that read roff from standard input and write UTF-8, in the order of preference. Lines are
# as long as the programs allow, so that few paragraphs are broken.
PROGRAMS = (
    ("mandoc", "-T", "utf8", "-O", "width=1000,indent=0"),
    ("groff", "-man", "-K", "utf8", "-T", "utf8", "-r", "LL=10000n", "-P", "-cbou"),
)


def main(arguments=None):
    """Writes the folder, with subfolders `source` and `target`.

    Args:
        arguments: list of strings. Defaults to None, for those of the command line.

    Returns:
        The exit status: 1 if a folder or a program is missing or the folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rt_keras.data.manual_pages",
        description="Writes the manual pages that exist in two languages to a folder for rt-keras "
        "train --set data.name=parallel_documents --data FOLDER.",
    )
    parser.add_argument("source", help="folder with man1 to man8, such as /usr/share/man")
    parser.add_argument("target", help="the same of the other language, such as /usr/share/man/de")
    parser.add_argument("folder", help="the new folder")
    args = parser.parse_args(arguments)
    try:
        check_new_folder(args.folder)
        pages, unread, again = write_folder(args.source, args.target, args.folder)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{pages:,} pages in both languages; left out: {unread:,} that cannot be read and "
        f"{again:,} with the text of another page"
    )
    return 0


def write_folder(source, target, folder):
    """Writes the pages of two folders that have the same names, as plain text.

    Pages that only refer to another page, which `.so` includes, are skipped. Of pages with the same
    text under several names, the first is kept, so that no text is in two splits.

    Args:
        source, target: paths of the folders with the subfolders `man1` to `man8`.
        folder: path of the new folder, which is written atomically.

    Returns:
        The number of pages written, of those left out because one of the two cannot be read, and of
        those left out because an earlier page has the text of one of the two.

    Raises:
        FileNotFoundError: if there is neither `mandoc` nor `groff`.
        ValueError: if no page is in both folders.
    """
    program = next((x for x in PROGRAMS if shutil.which(x[0])), None)
    if program is None:
        raise FileNotFoundError("neither mandoc nor groff is installed, which convert manual pages")
    found = [_pages(Path(side)) for side in (source, target)]
    names = sorted(found[0].keys() & found[1].keys())
    if not names:
        raise ValueError(f"no manual page is in both {source} and {target}")
    seen, unread, again = set(), 0, 0
    with whole_folder(folder) as part:
        for name in track(names, "converting", unit="pages"):
            texts = [_text(side[name], program) for side in found]
            if not all(texts):
                unread += 1
                continue
            if not seen.isdisjoint(texts):
                again += 1
                continue
            seen.update(texts)
            for side, text in zip(("source", "target"), texts):
                path = Path(part, side, f"{name}.txt")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return len(names) - unread - again, unread, again


def _pages(folder):
    """Returns the files of a language's own pages by name, such as man1/ls.1."""
    files = (path for path in folder.glob("man[1-8]/*") if path.is_file())
    own = (path for path in files if not (_roff(path) or b"").lstrip().startswith(b".so "))
    return {f"{path.parent.name}/{path.name.removesuffix('.gz')}": path for path in own}


def _roff(path):
    """Returns the content of a page; None if it cannot be read."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error):
        return None


def _text(path, program):
    """Returns the plain text of a page without its first and last line; None if there is none."""
    roff = _roff(path)
    if roff is None:
        return None
    result = subprocess.run(program, input=roff, capture_output=True, check=False)
    text = OVERSTRIKE.sub("", result.stdout.decode("utf-8", errors="replace"))
    # The title above and the date below.
    text = RULE.sub(lambda rule: rule[0][:8], FILLING.sub("  ", text.strip()))
    lines = [line.rstrip() for line in text.split("\n")][1:-1]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") or None


if __name__ == "__main__":
    sys.exit(main())
