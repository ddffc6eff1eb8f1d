import collections

import pytest

from rt_keras.data import wordnet_glosses
from rt_keras.data.wordnet_glosses import invented_word, parts

LICENSE = "  1 This software and database is being provided to you.  \n"
FILES = {
    "noun": [
        '00000001 06 n 02 hut 0 small_house 0 001 @ 00001740 n 0000 | a hut; "huts of wood"',
        '00000002 06 n 01 box 0 000 | a box\'s case; "The boxes"; "it is boxed"',
        "00000003 06 n 01 case 0 000 | a box's case",
        "00000004 06 n 01 thing 0 000 | whatever",
    ],
    "verb": [
        "00000001 30 v 02 stop 0 give_up 1 000 01 + 02 00 | end; stopping; "
        '"he gave up"; "she gives up"'
    ],
    "adj": [
        '00000001 00 a 02 happy(p) 0 a 0 000 | not a sad one; "a happier man"; "Happy people"',
    ],
    "adv": ['00000001 02 r 01 well 0 000 | in a "good" way, or so'],
}


@pytest.fixture
def share(tmp_path):
    (tmp_path / "wordnet").mkdir()
    for name, lines in FILES.items():
        # Lines end in two spaces.
        text = LICENSE + "".join(f"{line}  \n" for line in lines)
        (tmp_path / "wordnet" / f"data.{name}").write_text(text)
    return tmp_path


def test_glosses_are_of_invented_words(share):
    left_out = collections.Counter()
    questions = {x["id"]: x for x in wordnet_glosses.find(share, left_out)}
    noun, box, verb, adjective, adverb = (x["text"].split()[0] for x in questions.values())
    assert {key: x["text"] for key, x in questions.items()} == {
        "noun/00000001": f'{noun} (noun): a {noun}; "{noun}s of wood"',
        "noun/00000002": f'{box} (noun): a {box}\'s case; "The {box}s"',
        "verb/00000001": f'{verb} (verb): end; {verb}ing; "she {verb}s"',
        "adj/00000001": f'{adjective} (adjective): not a sad one; "a {adjective}er man"; '
        f'"{adjective.capitalize()} people"',
        "adv/00000001": f'{adverb} (adverb): in a "good" way, or so',
    }
    assert left_out == {"with the gloss of another": 1, "with less than two words": 1}
    question = questions["verb/00000001"]
    assert question["question"] == f"What does the verb {verb} mean?"
    assert question["answer"] == f"end; {verb}ing"
    assert len({noun, box, verb, adjective, adverb}) == 5


def test_invented_words_depend_on_the_key_alone():
    word = invented_word("noun/1", set())
    assert word == invented_word("noun/1", {"other"}) != invented_word("noun/2", set())
    assert len(word) == 7 and invented_word("noun/1", {word}) != word


@pytest.mark.parametrize(
    "gloss, expected",
    [
        ("a hut", ("a hut", [])),
        ('a hut; "my hut"', ("a hut", ["my hut"])),
        ('a hut "my hut"', ("a hut", ["my hut"])),
        (
            'a "hut" of wood; for people; "my hut"- A. B',
            ('a "hut" of wood; for people', ["my hut"]),
        ),
        ("an unclosed one; \"that is'", ("an unclosed one; \"that is'", [])),
    ],
)
def test_parts_of_a_gloss(gloss, expected):
    assert parts(gloss) == expected


def test_the_package_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="data.noun does not exist; install wordnet-base"):
        list(wordnet_glosses.find(tmp_path, collections.Counter()))
