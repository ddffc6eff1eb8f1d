"""Five tasks of RULER in synthetic tokens: needles, variables, common and frequent words.

Each sequence is a context, a question and its answer. The model reads all but the last token, and
the tokens of the answer are scored. A word of RULER is one token here, or two for the keys of
needles. A digit is one token.

Source: Hsieh et al. 2024, RULER, section 3, and its public code.
"""

import math

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task

# Tokens 0 to 9 are digits; these follow.
QUESTION, ANSWER, NEEDLE, VARIABLE, EQUALS = range(10, 15)
# The sentences that RULER repeats as noise have 19 words, all distinct here.
NOISE = range(15, 34)
# The first word of a task: words are variables, parts of keys, or counted.
WORDS = 34


class Ruler(Task):
    """A question about a context; subclasses define both.

    Args:
        length: int from `least_length` to `greatest_length`. Defaults to None, for 1,024.
        directory: ignored.
    """

    default_length = 1024
    least_length = 64
    greatest_length = 131072
    # Number of tokens in the question.
    question = None

    def draw(self, rng, room):
        """Draws a context of `room` tokens, its question and the answer.

        Returns:
            Int arrays of the context, the question, `[question]`, and its answer, `[scored]`.
        """
        raise NotImplementedError

    def sample(self, rng, batch, held_out):
        room = self.length - self.question - self.scored + 1
        parts = [self.draw(rng, room) for _ in range(batch)]
        sequences = np.stack([np.concatenate(part) for part in parts])
        weights = np.zeros([batch, self.length])
        weights[:, -self.scored :] = 1
        return sequences[:, :-1], sequences[:, 1:], weights


class Needle(Ruler):
    """The number of seven digits after the only key in a context of noise.

    This is RULER's first single needle: the noise repeats the same few sentences.
    """

    name = "needle"
    question = 4
    scored = 7
    # A key is two words, like RULER's adjective and noun.
    vocabulary_size = WORDS + 2 * 256
    # Number of tokens in a needle: a mark, the key and the number.
    needle = 10

    def draw(self, rng, room):
        (needle,) = self.needles(rng, 1)
        return insert(rng, room, [needle]), *self.asked(needle)

    def needles(self, rng, count):
        """Draws needles with distinct keys, `[count, needle]`."""
        keys = rng.choice(256**2, [count, 1], replace=False)
        words = np.concatenate([keys // 256, 256 + keys % 256], axis=1) + WORDS
        numbers = rng.integers(10, size=[count, self.scored])
        numbers[:, 0] = rng.integers(1, 10, count)
        return np.concatenate([np.full([count, 1], NEEDLE), words, numbers], axis=1)

    def asked(self, needle):
        """Returns the question for a needle, and its answer."""
        return np.array([QUESTION, *needle[1:3], ANSWER]), needle[3:]


class MultiKeyNeedle(Needle):
    """The number after a key in a context that consists of needles with distinct keys.

    This is RULER's second multi-key needle, line retrieval.
    """

    name = "multi_key_needle"

    def draw(self, rng, room):
        needles = self.needles(rng, room // self.needle)
        context = np.concatenate([noise(room % self.needle), needles.ravel()])
        return context, *self.asked(needles[rng.integers(len(needles))])


class VariableTracking(Ruler):
    """The five variables that are assigned a number of five digits, over four hops.

    One statement assigns the number to the first variable, and each of the others assigns a
    variable to the next one. The statements occur in this order, at random positions in a context
    of noise.
    """

    name = "variable_tracking"
    question = 7
    scored = 5
    vocabulary_size = WORDS + 512

    def draw(self, rng, room):
        names = rng.choice(512, self.scored, replace=False) + WORDS
        number = rng.integers(10, size=5)
        number[0] = rng.integers(1, 10)
        first = np.array([VARIABLE, names[0], EQUALS, *number])
        others = [
            np.array([VARIABLE, name, EQUALS, VARIABLE, before])
            for before, name in zip(names, names[1:])
        ]
        question = np.array([QUESTION, *number, ANSWER])
        return insert(rng, room, [first, *others]), question, names


class CommonWords(Ruler):
    """The ten words that occur ten times as often as all others.

    In a shuffled list, ten words occur 10 f times and each other word f times, with f = 3, or more
    if there are too few distinct words. The answer lists the ten words in the order of their first
    occurrence.
    """

    name = "common_words"
    question = 1
    scored = 10
    least_length = 512
    words = 8192
    vocabulary_size = WORDS + words

    def draw(self, rng, room):
        common = 10 * self.scored
        times = max(3, math.ceil(room / (self.words - self.scored + common)))
        others = math.ceil(room / times) - common
        words = rng.choice(self.words, self.scored + others, replace=False) + WORDS
        counts = np.full(len(words), times)
        counts[: self.scored] *= 10
        # The last word may occur less often than the others.
        context = rng.permutation(np.repeat(words, counts)[:room])
        places = [np.argmax(context == word) for word in words[: self.scored]]
        return context, np.array([QUESTION]), context[np.sort(places)]


class FrequentWords(Ruler):
    """The three most frequent words, the most frequent first.

    Of n words, the word of rank k = 1, 2, ... occurs n k^-2 / ζ(2) times, rounded down. Rank 1 is
    noise, always the same word, which also fills the rest of the context and is not part of the
    answer. The other ranks go to random words.
    """

    name = "frequent_words"
    question = 1
    scored = 3
    words = 2000
    vocabulary_size = WORDS + words

    def draw(self, rng, room):
        # ζ(2) = π² / 6.
        counts = np.floor(room * 6 / math.pi**2 / np.arange(2, self.words + 2) ** 2).astype(int)
        words = rng.permutation(self.words) + WORDS
        context = np.full(room, NOISE[0])
        context[: counts.sum()] = np.repeat(words, counts)
        return rng.permutation(context), np.array([QUESTION]), words[: self.scored]


def noise(count):
    """Returns the first tokens of endless noise.

    >>> noise(2).tolist()
    [15, 16]
    """
    return NOISE[0] + np.arange(count) % len(NOISE)


def insert(rng, room, pieces):
    """Inserts arrays at random positions in noise, in their order.

    Args:
        rng: `numpy.random.Generator`.
        room: int, the total number of tokens.
        pieces: list of int arrays.

    Returns:
        Int array `[room]`.

    >>> import numpy as np
    >>> insert(np.random.default_rng(0), 4, [np.array([1, 1]), np.array([2, 2])]).tolist()
    [1, 1, 2, 2]
    """
    around = noise(room - sum(map(len, pieces)))
    places = np.sort(rng.integers(len(around), size=len(pieces), endpoint=True))
    parts = np.split(around, places)
    inserted = [x for part, piece in zip(parts, pieces) for x in (part, piece)]
    return np.concatenate([*inserted, parts[-1]])
