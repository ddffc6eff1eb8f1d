"""Writes C source of the Linux kernel to a folder of texts, from Debian's `linux-source-6.1`.

python docs/benchmarks/recipes/linux_source.py FOLDER [/usr/src/linux-source-6.1.tar.xz]

Whole folders of the kernel are for training, validation or testing. License headers, tables and
short files are left out, and about 50,000,000 characters are written.
"""

import hashlib
import re
import sys
import tarfile
from pathlib import Path

COMMENT = re.compile(r"\s*(//[^\n]*\n|/\*.*?\*/)", re.DOTALL)
LEGAL = re.compile(r"spdx|copyright|licen[cs]e|\(c\)|author", re.IGNORECASE)


def main(folder, archive="/usr/src/linux-source-6.1.tar.xz"):
    found, written = {}, 0
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = member.name.split("/")[1:]
            if not member.name.endswith(".c") or parts[0] in ("Documentation", "samples", "tools"):
                continue
            text = tar.extractfile(member).read().decode(errors="replace")
            while (comment := COMMENT.match(text)) and LEGAL.search(comment[0]):
                text = text[comment.end() :]
            digits = sum(map(str.isdigit, text)) + text.count("0x")
            if len(text) >= 1000 and digits <= 0.15 * len(text):
                name = "-".join(parts).removesuffix(".c")
                found.setdefault("/".join(parts[:-1][:3]), {})[name] = text.lstrip()
    order = sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
    for place, name in enumerate(order):
        split = {0: "validation", 1: "test"}.get(place % 25, "train")
        Path(folder, split).mkdir(parents=True, exist_ok=True)
        for file, text in found[name].items():
            Path(folder, split, f"{file}.txt").write_text(text, encoding="utf-8")
            written += len(text)
        if written > 50_000_000:
            break
    print(f"{written:,} characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
