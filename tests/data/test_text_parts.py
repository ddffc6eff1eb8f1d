import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.data.text_parts import LEAST_BYTES, LINE_BYTES, SHARES, read_part


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
    found = parts(text)
    assert b"".join(found) == text
    assert all(found) or found[0] == text and len(text) < LEAST_BYTES
    # Decoding fails only where the text itself is not UTF-8.
    if text.decode("utf-8", "ignore").encode() == text:
        assert all(part.decode().encode() == part for part in found)


def test_shares_are_of_the_bytes_and_end_with_lines(parts):
    train, validation, test = parts(b"".join(b"line %5d\n" % n for n in range(1000)))
    assert [len(part) for part in (train, validation, test)] == [9900, 550, 550]
    # 905 lines exceed the first 90% of the bytes.
    train, _, _ = parts(b"x" * 9 + b"".join(b"line %5d\n" % n for n in range(1000)))
    assert train.endswith(b"line   900\n") or train.endswith(b"line   899\n")


def test_a_line_without_end_is_cut_at_its_place(parts):
    text = b"x" * 40 * LINE_BYTES
    assert [len(part) for part in parts(text)] == [36 * LINE_BYTES, 2 * LINE_BYTES, 2 * LINE_BYTES]
