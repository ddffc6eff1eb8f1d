"""The meanings of words in WordNet, as questions with answers. The words are invented."""

import hashlib
import re
from pathlib import Path

# Each file of meanings, and how its words are called.
FILES = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
QUOTED = re.compile(r'"([^"]+)"')
# An example after the meaning. Other quotations are within it.
EXAMPLE = re.compile(r'[;:,]?\s*"[^"]+"\s*(?:$|[;,-].*)')
LEAST_LETTERS = 3
# Regular endings of most words, of those in -e and in -y, and whether the last letter may double.
ENDINGS = {
    "noun": ("s|es|'s", "es|e's", "ies", False),
    "verb": ("s|es|ed|ing", "es|ed|ing", "ies|ied", True),
    "adjective": ("er|est", "er|est", "ier|iest", True),
    "adverb": ("er|est", "er|est", "ier|iest", False),
}


def find(share, left_out):
    """Yields a question for each meaning: that of an invented word, answered by its gloss.

    The document is a line of a dictionary. In the gloss and its examples, the invented word
    replaces the true one; examples with another form of the word are omitted.

    Args:
        share: path of the folder where `wordnet-base` is installed, such as "/usr/share".
        left_out: `collections.Counter`, in which reasons to leave out a question are counted.

    Raises:
        FileNotFoundError: if the package is not installed.
    """
    meanings, true_words = [], set()
    for name, kind in FILES.items():
        path = Path(share, "wordnet", f"data.{name}")
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; install wordnet-base")
        for line in path.read_text(encoding="utf-8").splitlines():
            # The license comes first, indented.
            if not line.startswith(" "):
                offset, words, gloss = _fields(line)
                meanings.append((f"{name}/{offset}", kind, words, gloss))
                true_words.update(word.lower() for word in words)
    taken, glosses = true_words, set()
    for key, kind, words, gloss in meanings:
        gloss, examples = parts(gloss)
        if len(gloss.split()) < 2:
            left_out["with less than two words"] += 1
            continue
        if gloss in glosses:
            left_out["with the gloss of another"] += 1
            continue
        glosses.add(gloss)
        new = invented_word(key, taken)
        taken.add(new)
        forms = _forms(words, kind)
        gloss = _replace(gloss, words, forms, new)
        examples = [_replace(example, words, forms, new) for example in examples]
        line = [gloss, *(f'"{x}"' for x in examples if new in x.lower())]
        yield {
            "id": key,
            # The text begins with the word.
            "title": "",
            "text": f"{new} ({kind}): {'; '.join(line)}",
            "question": f"What does the {kind} {new} mean?",
            "answer": gloss,
        }


def _fields(line):
    """Returns the offset of a meaning, its words and its gloss."""
    data, _, gloss = line.partition(" | ")
    offset, _, _, count, *rest = data.split(" ")
    words = rest[: 2 * int(count, 16) : 2]
    # Adjectives have their position in brackets.
    return offset, [re.sub(r"\(\w+\)$", "", x).replace("_", " ") for x in words], gloss.strip()


def parts(gloss):
    """Returns the meaning in a gloss and its examples.

    >>> parts('a small house; "she has a hut"; "huts of wood" - A. Smith')
    ('a small house', ['she has a hut', 'huts of wood'])
    """
    example = EXAMPLE.search(gloss)
    if example is None:
        return gloss, []
    return gloss[: example.start()].strip(), QUOTED.findall(gloss, example.start())


def invented_word(key, taken):
    """Returns a word that sounds like one, from the hash of a string.

    Args:
        key: string.
        taken: set of words that are not returned.

    >>> invented_word("noun/00001740", set())
    'vurikab'
    """
    word, count = "", 0
    while not word or word in taken:
        value = int(hashlib.sha256(f"{key} {count}".encode()).hexdigest(), 16)
        letters = []
        for choices in (CONSONANTS, VOWELS) * 3 + (CONSONANTS,):
            value, index = divmod(value, len(choices))
            letters.append(choices[index])
        word, count = "".join(letters), count + 1
    return word


def _forms(words, kind):
    """Returns a regular expression of words with their regular endings; None without words."""
    # The longest first, as some are parts of others. Shorter ones are often also other words.
    words = sorted((x for x in words if len(x) >= LEAST_LETTERS), key=len, reverse=True)
    if not words:
        return None
    forms = "|".join(_form(word, *ENDINGS[kind]) for word in words)
    return re.compile(rf"(?<!\w)(?:{forms})(?!\w)", re.IGNORECASE)


def _form(word, endings, end_e, end_y, double):
    """Returns a regular expression of a word, whose first and last part may have an ending."""

    def with_ending(part):
        start, end = re.escape(part[:-1]), part[-1:].lower()
        if end == "e":
            return f"{start}(?:e|{end_e})"
        if end == "y":
            return f"(?:{start}(?:{end_y})|{start}y(?:{endings})?)"
        doubled = f"{end}?" if double and end.isalpha() else ""
        return f"{re.escape(part)}(?:{doubled}(?:{endings}))?"

    first, space, rest = word.partition(" ")
    if not space:
        return with_ending(first)
    middle, space, last = rest.rpartition(" ")
    return f"{with_ending(first)}[ -]{re.escape(middle + space)}{with_ending(last)}"


def _replace(text, words, forms, new):
    """Replaces the forms of words by another word, with the same ending."""
    known = {part for word in words for part in re.split("[ -]", word.lower())}
    endings = ("'s", "s", "ed", "ing", "er", "est")

    def replace(match):
        parts = (part for part in re.split("[ -]", match[0].lower()) if part not in known)
        ending = next((x for part in parts for x in endings if part.endswith(x)), "")
        word = new + ending
        return word.capitalize() if match[0][0].isupper() and match.start() == 0 else word

    return forms.sub(replace, text) if forms else text
