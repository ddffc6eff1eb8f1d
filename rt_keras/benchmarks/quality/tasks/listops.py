"""ListOps: the value of a nested list expression."""

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
    """The digit value of a nested expression of minima, maxima, medians and sums modulo 10.

    An expression is an operator with p = 0.25, and otherwise a digit. An operator has 2 to 10
    arguments, which are expressions. The maximum depth is 10. Expressions of more than n / 4 and
    fewer than n tokens are kept, where an operator has two tokens, one of them its closing bracket;
    by default, this is 500 < tokens < 2,000. As in later tokenizers, the tokens include the closing
    bracket but not the parentheses of the files.

    The seed determines the order of the expressions. The original data pass through a set of
    strings, whose order Python does not fix.

    Args:
        length: int n, at least 16. Defaults to None, for 2,000.
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
        """Draws an expression of the right length; returns its tokens and value."""
        while True:
            tokens = []
            value = expression(draw, tokens)
            if self.length / 4 < len(tokens) < self.length:
                return tokens, value


def expression(draw, tokens, depth=1):
    """Draws an expression.

    Args:
        draw: `random.Random`.
        tokens: list of strings, to which the tokens of the expression are appended.
        depth: int, the nesting depth. Defaults to 1.

    Returns:
        int, the value of the expression.

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
