"""Writes manual pages that exist in two languages to a folder, as parallel documents.

python docs/benchmarks/recipes/manual_pages.py FOLDER [/usr/share/man /usr/share/man/de]

Debian has them in `manpages`, `manpages-dev`, `manpages-de` and `manpages-de-dev`; `mandoc`
converts them to plain text. Of pages with the same text, the first is kept, so that no text is in
two splits.
"""

import gzip
import re
import subprocess
import sys
from pathlib import Path

MANDOC = ("mandoc", "-T", "utf8", "-O", "width=1000,indent=0")


def content(path):
    roff = path.read_bytes()
    return gzip.decompress(roff) if path.suffix == ".gz" else roff


def pages(folder):
    """The files of a language by name, such as man1/ls.1, without pages that include another."""
    files = [path for path in folder.glob("man[1-8]/*") if path.is_file()]
    own = [path for path in files if not content(path).lstrip().startswith(b".so ")]
    return {f"{path.parent.name}/{path.name.removesuffix('.gz')}": path for path in own}


def plain(path):
    """The text of a page without its title and its date."""
    printed = subprocess.run(MANDOC, input=content(path), capture_output=True, check=False).stdout
    # Bold text is printed twice, and lines of tables are as wide as the page.
    text = re.sub(r".\x08", "", printed.decode("utf-8", errors="replace")).strip()
    text = re.sub(r"(?<=\S) {3,}", "  ", text)
    text = re.sub(r"[\u2500-\u257f_-]{9,}", lambda rule: rule[0][:8], text)
    lines = [line.rstrip() for line in text.split("\n")][1:-1]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def main(folder, source="/usr/share/man", target="/usr/share/man/de"):
    sides, seen = [pages(Path(side)) for side in (source, target)], set()
    for name in sorted(sides[0].keys() & sides[1].keys()):
        texts = [plain(side[name]) for side in sides]
        if not all(texts) or not seen.isdisjoint(texts):
            continue
        seen.update(texts)
        for side, text in zip(("source", "target"), texts):
            path = Path(folder, side, f"{name}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"{len(seen) // 2:,} pages in both languages")


if __name__ == "__main__":
    main(*sys.argv[1:])
