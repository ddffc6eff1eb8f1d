import collections
import random

import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks import listops


def evaluate(tokens):
    """The value of an expression, computed with a stack, and its depth."""
    stack, deepest = [[]], 1
    for token in tokens:
        if token.startswith("["):
            stack.append([token])
            # The arguments of the first operator are of depth 2.
            deepest = max(deepest, len(stack))
        elif token == "]":
            operator, *values = stack.pop()
            assert 2 <= len(values) <= 10
            values = sorted(values)
            low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
            results = {"[MIN": values[0], "[MAX": values[-1]}
            results |= {"[MED": (low + high) // 2, "[SM": sum(values) % 10}
            stack[-1].append(results[operator])
        else:
            stack[-1].append(int(token))
    ((value,),) = stack
    return value, deepest


@pytest.mark.parametrize("length, count", [(64, 100), (2000, 8)])
def test_labels_are_the_values_of_the_expressions(length, count):
    task = listops.ListOps(length)
    tokens, labels, weights = task.sample(np.random.default_rng(0), count, False)
    assert weights.tolist() == [1] * count
    for row, label in zip(tokens, labels):
        words = [listops.TOKENS[token] for token in row if token]
        assert length / 4 < len(words) < length
        assert not row[len(words) :].any()
        value, depth = evaluate(words)
        assert value == label and depth <= 10
    assert count < 100 or set(labels.tolist()) == set(range(10))


def test_expressions_are_as_long_range_arena_draws_them():
    known = "[MAX 2 [MED 1 8 6 3 ] [SM 9 8 7 ] [MIN 5 3 ] ]"
    assert evaluate(known.split()) == (4, 3)
    draw, words, kinds = random.Random(0), collections.Counter(), collections.Counter()
    for _ in range(4000):
        tokens = []
        listops.expression(draw, tokens)
        words.update(tokens)
        kinds[tokens[0] in listops.OPERATORS] += 1
        assert evaluate(tokens)[1] <= 10
    # An operator has p = 0.25. The four operators are equally frequent, and so are the digits.
    assert kinds[True] / 4000 == pytest.approx(0.25, abs=0.03)
    operators = sum(words[operator] for operator in listops.OPERATORS)
    for operator in listops.OPERATORS:
        assert words[operator] / operators == pytest.approx(0.25, abs=0.03)
    leaves = sum(words[str(digit)] for digit in range(10))
    for digit in range(10):
        assert words[str(digit)] / leaves == pytest.approx(0.1, abs=0.02)
    # Each operator has 6 arguments on average, which are leaves or operators.
    assert (leaves + operators - 4000) / operators == pytest.approx(6, abs=0.2)
