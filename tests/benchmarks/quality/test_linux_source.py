import io
import tarfile

import pytest

from rt_keras.benchmarks.quality import linux_source
from rt_keras.benchmarks.quality.tasks.text import read

HEADER = "// SPDX-License-Identifier: GPL-2.0\n/*\n * Copyright (C) 2020 Someone\n */\n\n"
CODE = "/* Adds one. */\nint add_one(int x)\n{\n\treturn x + one;\n}\n" * 40


def archive_of(path, files):
    with tarfile.open(path, "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"linux-6.1/{name}")
            member.size = len(text.encode("latin-1"))
            tar.addfile(member, io.BytesIO(text.encode("latin-1")))
        # A file outside the kernel's folder is ignored.
        tar.addfile(tarfile.TarInfo("alone.c"))
    return path


@pytest.fixture
def archive(tmp_path):
    files = {f"fs/part{i}/file.c": HEADER + f"int part{i};\n" + CODE for i in range(30)}
    files |= {
        "fs/part0/table.c": "0x01, 0x02, 0x03,\n" * 200,
        "fs/part0/short.c": HEADER + "int x;\n",
        "fs/part0/header.h": CODE,
        "tools/perf/perf.c": CODE,
        "fs/part0/latin.c": CODE + "/* \xe9 */\n",
        "fs/part1/deep/a/b.c": CODE,
    }
    return archive_of(tmp_path / "linux.tar.xz", files)


def test_the_folder_has_c_source_without_headers(archive, tmp_path, capsys):
    folder = tmp_path / "linux"
    assert linux_source.main([str(archive), str(folder)]) == 0
    files = {file.name: file.parent.name for file in folder.glob("*/*.txt")}
    names = {f"fs-part{i}-file.txt" for i in range(30)} | {"fs-part1-deep-a-b.txt"}
    assert files.keys() == names
    for name, split in files.items():
        text = (folder / split / name).read_text()
        assert "Copyright" not in text and text.endswith(CODE)
        assert text.startswith("int part" if "file" in name else "/* Adds one")
    splits = list(files.values())
    # Whole folders are in one split: the 1st and the 26th are for validation.
    assert [splits.count(split) for split in ("validation", "test")] == [2, 2]
    printed = capsys.readouterr().out
    for split in ("train", "validation", "test"):
        assert f"{split}: " in printed
        assert len(read(str(folder), split)) > 1000


def test_the_folder_ends_after_its_length(archive, tmp_path):
    short, whole = tmp_path / "short", tmp_path / "whole"
    linux_source.main([str(archive), str(short), "--length", "12000"])
    linux_source.main([str(archive), str(whole)])
    few, all_files = ({x.name for x in folder.glob("*/*.txt")} for folder in (short, whole))
    assert 3 <= len(few) < len(all_files) and few < all_files


@pytest.mark.parametrize("case", ["no archive", "no tar", "cut", "no source", "a full folder"])
def test_bad_arguments(case, archive, tmp_path, capsys):
    folder = tmp_path / "linux"
    if case == "no archive":
        archive = tmp_path / "missing.tar.xz"
    elif case == "no tar":
        archive.write_text("text")
    elif case == "cut":
        archive.write_bytes(archive.read_bytes()[:-200])
    elif case == "no source":
        archive = archive_of(tmp_path / "other.tar.xz", {"fs/a.h": CODE})
    else:
        folder.mkdir()
        (folder / "notes.txt").write_text("kept")
    assert linux_source.main([str(archive), str(folder)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert case == "a full folder" or not folder.exists()
