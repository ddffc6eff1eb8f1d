"""ListOps: the value of a nested expression of lists."""

import random
import statistics

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task

OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    # The mean of the middle two, rounded down.
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
# The first token is padding.
TOKENS = ("", *map(str, range(10)), *OPERATORS, "]")
MAX_DEPTH = 10
MAX_ARGUMENTS = 10
OPERATOR_SHARE = 0.25


class ListOps(Task):
    """The digit that a nested expression of minima, maxima, medians and sums modulo 10 comes to.

    An expression is an operator with p = 0.25, else a digit; an operator has 2 to 10 arguments,
    which are expressions, and nothing is nested more than 10 deep. Those of fewer than n tokens
    and more than n / 4 are kept, where an operator has two, one of them its closing bracket; this
    is 500 < tokens < 2,000 by default. The tokens are those of the later tokenizers, which keep
    the closing bracket, without the parentheses of the files.

    Expressions are drawn in an order that the seed gives. The original data go through a set of
    strings, whose order Python does not fix.

    Args:
        length: int n of at least 16. Defaults to None, for 2,000.
        directory: ignored.

    Source: Tay et al. 2020, Long Range Arena, section 2.2.1, and its public code; Nangia and Bowman
    2018, ListOps. Brackets: the code of Gu et al. 2022, S4.
    """

    name = "listops"
    default_length = 2000
    least_length = 16
    vocabulary_size = len(TOKENS)
    scored = 1
    classes = 10
    padding = 0

    def sample(self, rng, batch, held_out):
        draw = random.Random(int(rng.integers(2**63)))
        tokens, targets = np.zeros([batch, self.length], np.int32), []
        for row in tokens:
            expression, value = self._expression(draw)
            row[: len(expression)] = [TOKENS.index(token) for token in expression]
            targets.append(value)
        return tokens, np.array(targets), np.ones(batch)

    def _expression(self, draw):
        """The tokens of an expression of the right length, and its value."""
        while True:
            tokens = []
            value = expression(draw, tokens)
            if self.length / 4 < len(tokens) < self.length:
                return tokens, value


def expression(draw, tokens, depth=1):
    """Draws an expression.

    Args:
        draw: `random.Random`.
        tokens: list of strings, to which those of the expression are added.
        depth: int, how deep it is nested. Defaults to 1.

    Returns:
        Its value, int.

    >>> tokens = []
    >>> [str(expression(random.Random(2), tokens))] == tokens
    True
    """
    if depth == MAX_DEPTH or draw.random() > OPERATOR_SHARE:
        value = draw.randrange(10)
        tokens.append(str(value))
        return value
    operator = draw.choice(tuple(OPERATORS))
    tokens.append(operator)
    arguments = [expression(draw, tokens, depth + 1) for _ in range(draw.randint(2, MAX_ARGUMENTS))]
    tokens.append("]")
    return OPERATORS[operator](arguments)
