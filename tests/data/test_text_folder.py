import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.data.text_folder import (
    LEAST_BYTES,
    LINE_BYTES,
    SHARES,
    PythonSource,
    TextFile,
    TextFolder,
    read_part,
    split_of,
)
from tests.data import checks
from tests.data.checks import write_texts as write


def prepared(path, data_dir, cls=TextFolder):
    splits = checks.prepared(cls(path, data_dir=data_dir))
    return {
        split: {x["id"].decode(): x["text"] for x in examples} for split, examples in splits.items()
    }


# === Folders ===


def test_folders_named_as_splits(tmp_path):
    texts = {"train/a.txt": b"one\r\n", "train/deep/b.txt": b"", "validation/c.txt": b"\xff\x00"}
    folder = write(tmp_path / "books", texts | {"notes.txt": b"no", "train/d.md": b"no"})
    assert prepared(folder, tmp_path / "tfds") == {
        "train": {"train/a.txt": b"one\r\n", "train/deep/b.txt": b""},
        "validation": {"validation/c.txt": b"\xff\x00"},
    }


def test_too_few_files_for_three_splits_are_all_cut(tmp_path):
    lines = {name: [f"{name} {n:2}\n".encode() for n in range(40)] for name in ("a.txt", "b.txt")}
    folder = write(tmp_path / "texts", {name: b"".join(x) for name, x in lines.items()})
    builder = TextFolder(folder, data_dir=tmp_path / "tfds")
    assert "first 90% of each file of texts for training" in builder.split_note
    assert prepared(folder, tmp_path / "tfds") == {
        "train": {name: b"".join(x[:36]) for name, x in lines.items()},
        "validation": {name: b"".join(x[36:38]) for name, x in lines.items()},
        "test": {name: b"".join(x[38:]) for name, x in lines.items()},
    }


def test_split_of_is_fixed_and_has_its_shares():
    assert [split_of(f"{n}.txt") for n in (0, 22, 10)] == ["train", "validation", "test"]
    splits = [split_of(str(number)) for number in range(20_000)]
    assert abs(splits.count("train") / 20_000 - 0.90) < 0.01
    assert abs(splits.count("validation") / 20_000 - 0.05) < 0.01


def test_a_folder_is_read_anew_only_if_it_has_changed(tmp_path, capsys, caplog):
    folder = write(tmp_path / "books", {"train/a.txt": b"old", "train/b.txt": b"b"})
    TextFolder(folder, data_dir=tmp_path / "tfds").download_and_prepare()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    before = prepared(folder, tmp_path / "tfds")
    records = [*(tmp_path / "tfds").rglob("*.tfrecord*")]
    times = [path.stat().st_mtime_ns for path in records]
    assert prepared(folder, tmp_path / "tfds") == before
    assert times == [path.stat().st_mtime_ns for path in records]

    def write_later():
        """A text of the same length, so that the time alone tells."""
        write(folder, {"train/a.txt": b"new"})
        later = (folder / "train/b.txt").stat().st_mtime_ns + 1_000_000
        os.utime(folder / "train/a.txt", ns=(later, later))

    for change in (
        write_later,
        lambda: write(folder, {"train/c.txt": b"c"}),
        lambda: (folder / "train/a.txt").unlink(),
        lambda: (folder / "train/b.txt").rename(folder / "train/d.txt"),
    ):
        change()
        files = {f"train/{path.name}": path.read_bytes() for path in (folder / "train").iterdir()}
        assert prepared(folder, tmp_path / "tfds") == {"train": files}
    assert capsys.readouterr().out == ""


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="must exist.*nowhere"):
        TextFolder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="must hold .txt files"):
        TextFolder(tmp_path)
    file = write(tmp_path, {"a.txt": b""}) / "a.txt"
    with pytest.raises(NotADirectoryError, match="not a file; use the data set text_file"):
        TextFolder(file)
    with pytest.raises(ValueError, match="at least 100 bytes.*Received: .*a.txt of 0 bytes"):
        TextFolder(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="no .txt files in them"):
        TextFolder(tmp_path)


# === Files that are cut ===


def test_a_file_of_any_name_and_any_bytes_is_cut_in_three(tmp_path):
    text = b"".join(b"line\xff%3d\n" % number for number in range(200))
    write(tmp_path, {"log.2024.md": text, "other.txt": b"no"})
    assert prepared(tmp_path / "log.2024.md", tmp_path / "tfds", TextFile) == {
        "train": {"log.2024.md": text[:1620]},
        "validation": {"log.2024.md": text[1620:1710]},
        "test": {"log.2024.md": text[1710:]},
    }
    builder = TextFile(tmp_path / "log.2024.md", data_dir=tmp_path / "tfds")
    assert builder.info.metadata["not_utf8"] == ["log.2024.md"]


def test_what_is_no_file_that_can_be_cut(tmp_path):
    with pytest.raises(FileNotFoundError, match="a file that exists. .*nowhere.txt"):
        TextFile(tmp_path / "nowhere.txt")
    with pytest.raises(IsADirectoryError, match="must be a file, not a folder"):
        TextFile(tmp_path)
    write(tmp_path, {"short.txt": b"x" * 99})
    with pytest.raises(ValueError, match="at least 100 bytes.*Received: .*short.txt of 99 bytes"):
        TextFile(tmp_path / "short.txt")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Returns a function that maps bytes to the three parts of a file that holds them."""
    path = tmp_path_factory.mktemp("parts") / "text.txt"

    def parts(text):
        path.write_bytes(text)
        return [read_part(path, split) for split in SHARES]

    return parts


LINES = st.lists(st.text(alphabet="aé日\n", max_size=40), max_size=60).map("".join)


@given(text=LINES.map(str.encode) | st.binary(max_size=3 * LEAST_BYTES))
def test_parts_make_up_the_file_and_keep_characters_whole(parts, text):
    cut = parts(text)
    assert b"".join(cut) == text
    assert all(cut) or cut[0] == text and len(text) < LEAST_BYTES
    # Decoding fails only where the text itself is not UTF-8.
    if text.decode("utf-8", "ignore").encode() == text:
        assert all(part.decode().encode() == part for part in cut)


def test_a_line_without_end_is_cut_at_its_place(parts):
    text = b"x" * 40 * LINE_BYTES
    assert [len(part) for part in parts(text)] == [36 * LINE_BYTES, 2 * LINE_BYTES, 2 * LINE_BYTES]


# === Python's source ===


def test_the_files_of_the_standard_library(tmp_path):
    files = PythonSource(data_dir=tmp_path).files
    names = [name for names in files.values() for name in names]
    assert len(names) == len(set(names)) > 500
    assert {"os.py", "asyncio/tasks.py"} <= set(names)
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    assert not [name for name in names if left_out & set(name.split("/")[:-1])]
    assert all(split_of(name) == split for split, names in files.items() for name in names)
    library = Path(sysconfig.get_path("stdlib"))
    size = {s: sum(os.path.getsize(library / name) for name in files[s]) for s in files}
    assert size["train"] > 8e6
    assert min(size["validation"], size["test"]) > 3e5
