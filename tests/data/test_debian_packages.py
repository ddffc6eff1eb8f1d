import collections
import gzip

import pytest

from rt_keras.data import debian_packages

# As apt stores the long descriptions.
LIST = """Package: tree-doc
Description-md5: 0
Description-en: Documentation of a lister
 Tree lists files
 of a folder, with its subfolders.
 .
 This package has the documentation, which is a number of pages about everything that there is.

Package: tree
Description-md5: 1
Description-en: Lister of folders
 Tree lists files of a folder, with its
 subfolders. It has these colors:
  * red,
    for files
  * blue
 .
 - a
 - b
 and c
 .
 .
 The end of the description of this package, which is here after some more words.

Package: librust-one-dev
Description-en: First crate
 This package contains the source for the Rust one crate, packaged by debcargo for use with
 cargo and dh-cargo.

Package: librust-two-dev
Description-en: Second crate
 This package contains the source for the Rust two crate, packaged by debcargo for use with
 cargo and dh-cargo.

Package: short
Description-en: Brief
 Brief.

Package: leak
Description-en: Finder of leaks
 This is a finder
 of leaks, and it finds those that others do not find, since it looks for them everywhere.

Package: vi
Description-en: Editor like Vi
 This edits texts in a way that is known from elsewhere, with two modes and many single
 letters, as on many other machines.

Package: device
Description-en: Sender to any dévice
 This sends to it, and it is received there and shown, if it has not been lost
 before it arrives at all.
"""
TREE = """Tree lists files of a folder, with its subfolders. It has these colors:
 * red,
   for files
 * blue

- a
- b and c

The end of the description of this package, which is here after some more words."""


def found(source):
    left_out = collections.Counter()
    return {x["id"]: x for x in debian_packages.find(source, left_out)}, left_out


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "x_main_i18n_Translation-en"
    path.write_text(LIST, encoding="utf-8")
    return path


def test_the_long_description_answers_the_short_one(source):
    packages, left_out = found(source)
    assert sorted(packages) == ["device", "librust-one-dev", "tree", "tree-doc"]
    assert packages["tree"] == {
        "id": "tree",
        "title": "",
        "text": TREE,
        "question": "Lister of folders",
        "answer": TREE,
    }
    assert packages["device"]["question"] == "Sender to any dévice"
    assert left_out == {
        "with the first paragraph of another, except for the name": 1,
        "with a long description not of 100 to 10,000 characters": 1,
        "with the short description in the long one": 1,
        "with the name in the short description": 1,
    }


@pytest.mark.parametrize("first", ["Tree lists all.", "tree  lists ALL"])
def test_the_first_paragraph_is_kept_once(first, tmp_path):
    rest = "More about it and what it does, so that it is long enough. " * 2
    paragraphs = [
        f"Package: tree{end}\nDescription: Lister {end}\n {text}\n .\n {rest} {end}\n"
        for end, text in (("", "Tree lists all."), ("-doc", first), ("-x", "Other."))
    ]
    (tmp_path / "list").write_text("\n".join(paragraphs))
    packages, left_out = found(tmp_path / "list")
    assert sorted(packages) == ["tree", "tree-x"] and left_out.total() == 1


def test_the_lists_of_a_folder(source, tmp_path):
    (tmp_path / "y_Translation-en").write_text(LIST.replace("Lister of folders", "Another"))
    (tmp_path / "y_Packages").write_text("Package: a\nDescription: A\n")
    assert found(tmp_path)[0] == found(source)[0]


def test_a_compressed_list(source, tmp_path, monkeypatch):
    helper = tmp_path / "apt-helper"
    helper.write_text('#!/bin/sh\ntest "$1" = cat-file && exec gzip -dc "$2"\n')
    helper.chmod(0o755)
    monkeypatch.setattr(debian_packages, "APT_HELPER", str(helper))
    path = tmp_path / "z.gz"
    path.write_bytes(gzip.compress(LIST.encode()))
    assert found(path)[0] == found(source)[0]
    path.write_bytes(b"no gzip")
    with pytest.raises(OSError, match="z.gz cannot be decompressed: .*gzip"):
        found(path)


def test_apt_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(debian_packages, "APT_HELPER", str(tmp_path / "nothing"))
    (tmp_path / "z.lz4").touch()
    with pytest.raises(FileNotFoundError, match="z.lz4 cannot be decompressed; install apt"):
        found(tmp_path / "z.lz4")


def test_a_list_without_long_descriptions(tmp_path):
    path = tmp_path / "Packages"
    path.write_text("Package: a\nDescription: A\nDescription-md5: 0\n")
    with pytest.raises(FileNotFoundError, match="no long descriptions; run apt-get update -o"):
        found(path)
    with pytest.raises(FileNotFoundError, match="no lists with long descriptions; run apt-get"):
        found(tmp_path)
