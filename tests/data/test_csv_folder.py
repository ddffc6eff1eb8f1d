import pytest

from rt_keras.data import tfds_sets
from rt_keras.data.csv_folder import CsvFolder


def examples(folder, split="train"):
    builder = tfds_sets.prepare(CsvFolder(folder, data_dir=folder / "prepared"))
    return list(tfds_sets.read(builder, split).as_numpy_iterator())


def test_records_are_read_as_csv(tmp_path):
    lines = 'id,label,text\r\n7,1,"says ""yes"",\nand no"\r\n\r\n8,0,café\r\n'
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    found = sorted((example["label"], example["text"].decode()) for example in examples(tmp_path))
    assert found == [(0, "café"), (1, 'says "yes",\nand no')]


def test_pairs_have_two_texts(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("text,text_pair,label\na,b,0\n")
    assert examples(tmp_path, "test") == [{"label": 0, "text": b"a", "text_pair": b"b"}]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "train.csv has no column text; .* It names none"),
        (b"text,class\na,0\n", "train.csv has no column label; .* It names text, class"),
        (b"text,label\n", "train.csv has no records after its first line"),
        (b"text,label\na,0\nb\n", "train.csv, line 3: it must have 2 values, .* Received: 1"),
        (b"text,label\na,\n", "train.csv, line 2: label must be the number .* Received: ''"),
        (b"text,label\na,good\n", "train.csv, line 2: label must be .* Received: 'good'"),
        (b"text,label\na,-1\n", "train.csv, line 2: label must be .* Received: '-1'"),
        (b"text,label\n\xff,1\n", "train.csv is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(content, message, tmp_path):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        examples(tmp_path)
    assert not list((tmp_path / "prepared").glob("*/*/*"))


def test_files_that_do_not_go_together(tmp_path):
    with pytest.raises(FileNotFoundError, match="must hold train.csv, validation.csv, test.csv"):
        CsvFolder(tmp_path)
    (tmp_path / "train.csv").write_text("text,text_pair,label\na,b,0\n")
    (tmp_path / "test.csv").write_text("text,label\na,0\n")
    with pytest.raises(ValueError, match="must both have the column text_pair, or neither"):
        CsvFolder(tmp_path)
