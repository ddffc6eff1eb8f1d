"""Tests T2TSubwordTokenizer against plain Python and against results of Tensor2Tensor."""

import json
import re
import unicodedata
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.convert import T2TSubwordTokenizer

SHARED = Path(__file__).parents[4] / "shared"
CHARACTERS = sorted(set("\\_u;0123456789 abct.,-'\"é日\x00\x85\u2028\ufeff\U0010ffff<pad>EOS"))
PARTS = ["ab", "abc", "abcab", "bc_", "a_", "cat_", "the_", ". ", ". _", "--_"]
PARTS += ["\\\\", "\\u_", "u_"]
CODES = ["\\9", "\\97", "10;_", "0;", "5529", ";_", "a_b", "é日", "日_", "'_", "  ", " _", "t__"]
VOCABULARY = [
    "<pad>_",
    "<EOS>_",
    *(part for part in PARTS + CODES if set(part) <= set(CHARACTERS)),
    *CHARACTERS,
]
IDS = {subtoken: id for id, subtoken in enumerate(VOCABULARY)}


def is_alphanumeric(character):
    return unicodedata.category(character)[0] in "LN"


def reference_words(text):
    words = []
    for character in text:
        if words and is_alphanumeric(words[-1][-1]) == is_alphanumeric(character):
            words[-1] += character
        else:
            words.append(character)
    inside = range(1, len(words) - 1)
    return [word for place, word in enumerate(words) if word != " " or place not in inside]


def reference_escape(word):
    escapes = {"\\": "\\\\", "_": "\\u"}
    return "".join(
        escapes.get(character, character) if character in IDS else f"\\{ord(character)};"
        for character in word
    )


def reference_encode(text):
    tokens = []
    for word in reference_words(text):
        rest = reference_escape(word) + "_"
        while rest:
            longest = max((part for part in VOCABULARY if rest.startswith(part)), key=len)
            tokens.append(IDS[longest])
            rest = rest[len(longest) :]
    return tokens


def reference_character(match):
    if match[1] is None:
        return {"u": "_", "\\": "\\"}[match[0][1]]
    code = int(match[1])
    if code > 0x10FFFF:
        return "\u3013"
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def reference_decode(tokens):
    joined = "".join(VOCABULARY[token] for token in tokens if 2 <= token < len(VOCABULARY))
    text, last = "", ""
    for escaped in filter(None, joined.split("_")):
        word = re.sub(r"\\(?:u|\\|([0-9]+);)", reference_character, escaped)
        if last and is_alphanumeric(last[0]) and is_alphanumeric(word[0]):
            text += " "
        text += word
        last = word
    return text


@pytest.fixture(scope="module")
def t2t():
    return T2TSubwordTokenizer(VOCABULARY)


def texts():
    common = st.text(st.sampled_from([*CHARACTERS, "\n", "x", "☃", "٣", "\u0301"]))
    pieces = st.lists(st.sampled_from([*VOCABULARY[2:], " ", "\\10;", "\\\\u", "<pad>_"]))
    return st.one_of(common, st.text(), pieces.map("".join))


@pytest.mark.slow
@settings(max_examples=20)
@given(batch=st.lists(texts(), min_size=1, max_size=6))
def test_any_text_is_encoded_as_by_the_reference_and_comes_back(t2t, batch):
    tokens = t2t.tokenize(tf.constant(batch))
    assert tokens.to_list() == [reference_encode(text) for text in batch]
    assert [text.decode() for text in t2t.detokenize(tokens).numpy()] == batch


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.integers(-2, len(VOCABULARY) + 2)), st.data())
def test_any_tokens_are_decoded_as_by_the_reference(t2t, tokens, data):
    escapes = st.lists(st.sampled_from([IDS[part] for part in "\\_u;0159a."]))
    tokens += data.draw(escapes)
    text = t2t.detokenize(tf.constant(tokens, tf.int32)).numpy().decode()
    assert text == reference_decode(tokens)


@pytest.mark.parametrize(
    "escaped, text",
    [
        ("\\00000000097;", "a"),
        ("\\1114111;", "\U0010ffff"),
        ("\\1114112;", "〓"),
        ("\\99999999999999999999999;", "〓"),
        ("\\55296;", "\ufffd"),
        ("\\97", "\\97"),
        ("\\\\\\u", "\\_"),
        ("a_\\97;_._\\\\_a", "a a.\\a"),
        ("__a__\\98;", "a b"),
    ],
)
def test_escapes_well_formed_or_not(t2t, escaped, text):
    assert t2t.detokenize([IDS[character] for character in escaped]) == text
    assert reference_decode([IDS[character] for character in escaped]) == text


def test_empty_batches_bytes_that_are_not_utf8_and_no_vocabulary(t2t):
    assert t2t(["", ""]) == [[], []]
    assert t2t.tokenize(tf.constant([], tf.string)).shape.as_list() == [0, None]
    assert t2t("cat a").dtype == tf.int32
    assert t2t(b"a\xffb").numpy().tolist() == reference_encode("a\ufffdb")
    with pytest.raises(ValueError, match="vocabulary must be given"):
        T2TSubwordTokenizer().vocabulary_size()


def lines(*subtokens):
    return "".join(f"'{subtoken}'\n" for subtoken in subtokens).encode()


def test_file(t2t, tmp_path):
    path = tmp_path / "vocabulary"
    path.write_bytes(lines(*VOCABULARY).replace(b"'cat_'\n", b' "cat_"\r\n')[:-1])
    assert T2TSubwordTokenizer(path, len(VOCABULARY)).get_vocabulary() == VOCABULARY
    plain = ["<pad>", "<EOS>", *VOCABULARY[2:]]
    assert T2TSubwordTokenizer(plain).pad_token_id == 0


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "line 1: nothing must be <pad> or <pad>_"),
        (lines("<pad>"), "line 2: nothing must be <EOS> or <EOS>_"),
        (lines(*VOCABULARY) + b"of_\n", "line .*: \"?'?of_.* must be a subtoken in single"),
        (lines(*VOCABULARY) + b"'of_\"\n", "must be a subtoken in single quotes"),
        (lines(*VOCABULARY, "cat_"), "'cat_' must occur once, but is on line [0-9]+ too"),
        (lines(*VOCABULARY, "bag_"), "'g', which line .* contains, must itself be a subtoken"),
        (lines("<pad>", "<EOS>", *"<pad>EOS_"), r"'\\\\', which any text may need, must itself be"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "vocabulary"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{message}"):
        T2TSubwordTokenizer(str(path))


def test_wrong_size_and_newlines_are_refused():
    size = len(VOCABULARY)
    with pytest.raises(ValueError, match=f"vocabulary_size=9 .*Received: {size} subtokens"):
        T2TSubwordTokenizer(VOCABULARY, vocabulary_size=9)
    with pytest.raises(ValueError, match=r"'a\\n' must have at least one character and no newline"):
        T2TSubwordTokenizer([*VOCABULARY, "a\n"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the results of Tensor2Tensor are in ../shared")
def test_tensor2tensors_own_results():
    golden = json.loads((SHARED / "golden" / "t2t_subwords.json").read_text(encoding="utf-8"))
    tokenizer = T2TSubwordTokenizer(
        SHARED / "data" / "vocab.pg19_length8k.32768.subwords", golden["vocab_size"]
    )
    examples = golden["examples"]
    tokens = tokenizer([example["text"] for example in examples])
    assert [list(map(int, row)) for row in tokens] == [example["ids"] for example in examples]
    decoded = tokenizer.detokenize([example["ids"] for example in examples]).numpy()
    assert [text.decode() for text in decoded] == [example["decoded"] for example in examples]
