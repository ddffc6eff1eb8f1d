import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer
from rt_keras.data.document_source import text_of
from rt_keras.retrieval.passages import cut

WORDS = st.lists(st.text("abé", min_size=1, max_size=9), min_size=1, max_size=25)
SPACE = st.sampled_from([" ", "  ", "\n", "\n\n", "\t "])


def document(text, title=""):
    return {"id": "7", "title": title, "text": text}


def size(text):
    return len(text.encode())


def places(words, passages):
    """The first and the last word of each passage; no other word is equal to one of these."""
    found = [passage["text"].split() for passage in passages]
    return [(words.index(part[0]), words.index(part[-1])) for part in found]


@settings(max_examples=40)
@given(words=WORDS, space=SPACE, title=st.sampled_from(["", "t", "a title"]), data=st.data())
def test_passages_cover_all_words_in_order(words, space, title, data):
    words = [f"{number}{word}" for number, word in enumerate(words)]
    # No word is divided.
    length = data.draw(st.integers(42, 90))
    overlap = data.draw(st.integers(0, length - 1))
    text = data.draw(st.sampled_from(["", " "])) + space.join(words) + "\n"
    passages = cut(document(text, title), ByteTokenizer(), length, overlap)
    found = places(words, passages)
    assert found[0][0] == 0 and found[-1][1] == len(words) - 1
    for (first, last), passage in zip(found, passages):
        assert passage["document"] == "7" and passage["title"] == title
        assert passage["text"] == space.join(words[first : last + 1])
        assert size(text_of(passage)) <= length
    for (first, last), (start, end) in zip(found, found[1:]):
        assert first < start <= last + 1 <= end
        # Spaces count as tokens of the next word.
        assert sum(size(space) + size(word) for word in words[start : last + 1]) <= overlap or (
            start == last + 1
        )


@settings(max_examples=40)
@given(words=WORDS, length=st.integers(20, 60))
@example(words=["a", "b"], length=3)
def test_passages_are_as_long_as_they_can_be(words, length):
    words = [f"{number}{word}" for number, word in enumerate(words)]
    passages = cut(document(" ".join(words)), ByteTokenizer(), length)
    found = places(words, passages)
    for (first, last), (start, _) in zip(found, found[1:]):
        assert start == last + 1
        # A passage that does not begin the text has a space before its first word.
        assert size(" ".join(words[first : last + 2])) + (first > 0) > length


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(["the", "quick", "fox", "dog", "jumps,"]), min_size=1),
    # So many that no word is divided.
    length=st.integers(16, 30),
)
def test_every_tokenizer_counts(tokenizer, words, length):
    passages = cut(document(" ".join(words)), tokenizer, length)
    assert " ".join(passage["text"] for passage in passages) == " ".join(words)
    for passage in passages:
        count = len(tokenizer(passage["text"]))
        assert count <= length or " " not in passage["text"]


@settings(max_examples=40)
@given(text=st.text("天bé \n", max_size=60), length=st.integers(3, 12))
@example(text=f"a{' ' * 30}bcd", length=3)
def test_long_words_are_divided(text, length):
    passages = cut(document(text), ByteTokenizer(), length)
    texts = [passage["text"] for passage in passages]
    assert "".join("".join(texts).split()) == "".join(text.split())
    assert all(0 < size(text) <= length for text in texts)
    # No other words are.
    words = text.split()
    assert all(any(word in text for text in texts) for word in words if size(word) <= length)


def test_a_long_title_leaves_room_for_text():
    passages = cut(document("ab cd", "a long title"), ByteTokenizer(), length=6)
    assert [x["text"] for x in passages] == ["ab", "cd"]


def test_characters_of_many_tokens_and_documents_without_words():
    assert [x["text"] for x in cut(document("天天"), ByteTokenizer(), length=2)] == ["天", "天"]
    assert cut(document(" \n"), ByteTokenizer(), 4) == []


def test_lengths_out_of_range_are_refused():
    with pytest.raises(ValueError, match="length must be a positive integer"):
        cut(document("a"), ByteTokenizer(), 0)
    for overlap in (-1, 4):
        with pytest.raises(ValueError, match=f"from 0 to 3, .* Received: overlap={overlap}"):
            cut(document("a"), ByteTokenizer(), 4, overlap)
