import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.benchmarks.documents import pages as pages_lib
from rt_keras.data import SentencePieceTokenizer, compute_sentence_piece_proto

SOURCE = "NAME\n   alarm - sets it\n\nNOTES\n   alarm() sets alarm()\n\nSEE ALSO\n   time"
TARGET = "NAME\n   alarm - stellt ihn\n\nNOTIZEN\n   alarm() stellt alarm()"

sides = st.lists(st.integers(0, 9), min_size=1, max_size=8)
pages = st.lists(st.tuples(sides, sides), min_size=1, max_size=6)


def write_pages(folder, count=60):
    """A folder of parallel pages, with pages in each split."""
    for side, text in (("source", SOURCE), ("target", TARGET)):
        for number in range(count):
            path = folder / side / f"page{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + f"\n   x{number}x and x{number}x")
    return folder


def write_vocabulary(path):
    path.write_bytes(compute_sentence_piece_proto([SOURCE.encode(), TARGET.encode()], 330))
    return path


@given(pages, st.integers(3, 9))
def test_parts_hold_all_tokens_in_order_and_are_not_longer(page, length):
    parts = pages_lib.parts_of(page, length)
    assert pages_lib.joined(parts) == pages_lib.joined(page)
    assert all(len(side) <= length for part in parts for side in part)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_paragraphs_end_after_empty_lines(tokens):
    found = pages_lib.paragraphs(tokens, line_break=0)
    assert [token for paragraph in found for token in paragraph] == tokens
    for paragraph in found[:-1]:
        assert paragraph[-2:] == [0, 0]
    # An empty line inside is at the beginning of a text.
    text = "".join(map(str, tokens)).lstrip("0")
    assert len([x for x in found if any(x)]) == len([x for x in text.split("00") if x.strip("0")])


def test_pages_are_read_up_to_a_length(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    folder = write_pages(tmp_path / "pages")
    tokenizer = SentencePieceTokenizer(str(write_vocabulary(tmp_path / "a.spm")))
    read = pages_lib.read_pages(folder, "train", tokenizer, 1000)
    # The third paragraph has no counterpart.
    texts = [tuple(map(tokenizer.detokenize, pair)) for pair in read[0]]
    assert [pair[1].split()[0] for pair in texts] == ["NAME", "NOTIZEN"]
    assert texts[0] == ("NAME\n   alarm - sets it\n\n", "NAME\n   alarm - stellt ihn\n\n")
    limit = sum(len(target) for _, target in read[0]) - 1
    assert {len(page) for page in pages_lib.read_pages(folder, "train", tokenizer, limit)} == {1}
    assert pages_lib.read_pages(folder, "test", tokenizer, 3) == []


@pytest.mark.parametrize("seed", range(5))
def test_repetition_is_that_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    tokens, starts = rng.integers(0, 8, 40).tolist(), np.arange(8) > 3
    words, common = [], {(4,), (5,)}
    for place, token in enumerate(tokens):
        if place == 0 or starts[token]:
            words.append([place, []])
        words[-1][1].append(token)
    expected = []
    for number, (place, word) in enumerate(words):
        earlier = [p for p, other in words[:number] if other == word]
        distance = place - earlier[-1] if earlier else 0
        expected += [-1 if tuple(word) in common else distance] * len(word)
    assert pages_lib.repetition(tokens, starts, common).tolist() == expected


def test_common_words_are_in_many_pages():
    starts = np.arange(60) > 0
    pages = [[([0], [1, page % 50 + 2])] for page in range(100)]
    assert pages_lib.common_words(pages, starts) == {(1,)}
