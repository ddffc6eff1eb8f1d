import pytest

from rt_keras.data import tfds_sets
from rt_keras.data.csv_folder import CsvFolder


def test_records_are_read_as_csv_and_a_wrong_label_is_named(tmp_path):
    lines = 'id,label,text\r\n7,1,"says ""yes"",\nand no"\r\n\r\n8,0,café\r\n'
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    builder = tfds_sets.prepare(CsvFolder(tmp_path, data_dir=tmp_path / "prepared"))
    found = list(tfds_sets.read(builder, "train").as_numpy_iterator())
    assert sorted((x["label"], x["text"].decode()) for x in found) == [
        (0, "café"),
        (1, 'says "yes",\nand no'),
    ]
    (tmp_path / "train.csv").write_text("text,label\na,good\n")
    with pytest.raises(ValueError, match="train.csv, line 2: label must be .* Received: 'good'"):
        tfds_sets.prepare(CsvFolder(tmp_path, data_dir=tmp_path / "prepared"))
