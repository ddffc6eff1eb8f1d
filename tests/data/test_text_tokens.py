import pytest

from rt_keras.data import ByteTokenizer
from rt_keras.data.text_tokens import first_tokens_of


def test_files_that_will_not_do_are_refused(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="book.txt must be a text file in UTF-8"):
        first_tokens_of(path, ByteTokenizer(), 2)
