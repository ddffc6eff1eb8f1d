import os

import pytest

from rt_keras.data.folder_files import list_files
from rt_keras.data.text_folder import TextFolder, split_of
from tests.data import checks
from tests.data.checks import write_texts as write


def prepared(folder, data_dir):
    splits = checks.prepared(TextFolder(folder, data_dir=data_dir))
    return {split: {x["id"].decode(): x["text"] for x in found} for split, found in splits.items()}


def test_folders_named_as_splits(tmp_path):
    texts = {"train/a.txt": b"one\r\n", "train/deep/b.txt": b"", "validation/c.txt": b"\xff\x00"}
    folder = write(tmp_path / "books", texts | {"notes.txt": b"no", "train/d.md": b"no"})
    assert prepared(folder, tmp_path / "tfds") == {
        "train": {"train/a.txt": b"one\r\n", "train/deep/b.txt": b""},
        "validation": {"validation/c.txt": b"\xff\x00"},
    }


def test_flat_and_nested_files_are_split_by_name(tmp_path):
    names = [f"{number}.txt" for number in range(60)] + ["deep/down/x.txt"]
    folder = write(tmp_path / "texts", {name: name.encode() for name in names})
    assert TextFolder(folder, data_dir=tmp_path / "tfds").split_note is None
    splits = prepared(folder, tmp_path / "tfds")
    assert {name for files in splits.values() for name in files} == set(names)
    assert all(split_of(name) == split for split, files in splits.items() for name in files)
    assert all(text == name.encode() for files in splits.values() for name, text in files.items())


def test_too_few_files_for_three_splits_are_all_cut(tmp_path):
    lines = {name: [f"{name} {n:2}\n".encode() for n in range(40)] for name in ("a.txt", "b.txt")}
    folder = write(tmp_path / "texts", {name: b"".join(x) for name, x in lines.items()})
    assert {split_of(name) for name in lines} != {"train", "validation", "test"}
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


@pytest.mark.parametrize("change", ["text", "new", "gone", "renamed"])
def test_a_folder_is_read_anew_only_if_it_has_changed(tmp_path, change, capsys, caplog):
    folder = write(tmp_path / "books", {"train/a.txt": b"old", "train/b.txt": b"b"})
    TextFolder(folder, data_dir=tmp_path / "tfds").download_and_prepare()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    records = [*(tmp_path / "tfds").rglob("*.tfrecord*")]
    times = [path.stat().st_mtime_ns for path in records]
    before = prepared(folder, tmp_path / "tfds")["train"]
    assert times == [path.stat().st_mtime_ns for path in records]
    if change == "text":  # Of the same length, so that the time alone tells.
        write(folder, {"train/a.txt": b"new"})
        later = (folder / "train/b.txt").stat().st_mtime_ns + 1_000_000
        os.utime(folder / "train/a.txt", ns=(later, later))
    elif change == "new":
        write(folder, {"train/c.txt": b"c"})
    elif change == "gone":
        (folder / "train/a.txt").unlink()
    else:
        (folder / "train/a.txt").rename(folder / "train/c.txt")
    after = prepared(folder, tmp_path / "tfds")["train"]
    assert before == {"train/a.txt": b"old", "train/b.txt": b"b"}
    assert after == {
        f"train/{path.name}": path.read_bytes() for path in (folder / "train").iterdir()
    }
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


def test_hidden_files_and_folders_are_left_out(tmp_path):
    names = [".git/a.txt", "sub/.b.txt", "sub/c.txt", "skip/d.txt", "a.md"]
    write(tmp_path, dict.fromkeys(names, ""))
    assert list_files(tmp_path, ".txt", ["skip"]) == ["sub/c.txt"]
    assert list_files(tmp_path, (".txt", ".md"), ["skip"]) == ["a.md", "sub/c.txt"]


def test_what_cannot_be_listed_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold .txt or .md files"):
        list_files(tmp_path, (".txt", ".md"))
