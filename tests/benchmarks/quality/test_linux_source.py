import io
import tarfile

import pytest

from rt_keras.benchmarks.quality import linux_source

HEADER = "// SPDX-License-Identifier: GPL-2.0\n/*\n * Copyright (C) 2020 Someone\n */\n\n"
CODE = "/* Adds one. */\nint add_one(int x)\n{\n\treturn x + one;\n}\n" * 40


@pytest.fixture
def archive(tmp_path):
    files = {f"fs/part{i}/file.c": HEADER + f"int part{i};\n" + CODE for i in range(30)}
    files |= {"fs/part0/table.c": "0x01, 0x02, 0x03,\n" * 200, "fs/part0/header.h": CODE}
    files |= {"fs/part0/latin.c": CODE + "/* \xe9 */\n", "tools/perf/perf.c": CODE}
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"linux-6.1/{name}")
            member.size = len(text.encode("latin-1"))
            tar.addfile(member, io.BytesIO(text.encode("latin-1")))
    return tmp_path / "linux.tar.xz"


def test_the_folder_has_c_source_without_headers_by_split(archive, tmp_path):
    folder, short = tmp_path / "linux", tmp_path / "short"
    assert linux_source.main([str(archive), str(folder)]) == 0
    files = {file.name: file.parent.name for file in folder.glob("*/*.txt")}
    assert files.keys() == {f"fs-part{i}-file.txt" for i in range(30)}
    for name, split in files.items():
        text = (folder / split / name).read_text()
        assert text.startswith("int part") and text.endswith(CODE)
    # Whole folders are in one split: the 1st and the 26th are for validation.
    assert [list(files.values()).count(x) for x in ("validation", "test")] == [2, 2]
    assert linux_source.main([str(archive), str(short), "--length", "12000"]) == 0
    assert 3 <= len(list(short.glob("*/*.txt"))) < 30
