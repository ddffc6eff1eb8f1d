import collections

import numpy as np
import pytest

from rt_keras.benchmarks.quality.tasks import ruler


def drawn(task, length, batch=6):
    """The context, question and answer of sequences, as lists."""
    task = task(length)
    tokens, targets, weights = task.sample(np.random.default_rng(0), batch, False)
    assert (np.flatnonzero(weights[0]) == np.arange(length - task.scored, length)).all()
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    room = length - task.scored - task.question + 1
    for row, target, weight in zip(tokens.tolist(), targets, weights):
        yield row[:room], row[room : room + task.question], target[weight == 1].tolist()


def places_of(piece, context):
    """The positions at which a list occurs in another."""
    count = len(piece)
    return [i for i in range(len(context)) if context[i : i + count] == piece]


def without_noise(context):
    return [token for token in context if token not in ruler.NOISE]


def test_the_answer_is_the_number_beside_the_needle():
    depths = set()
    for context, question, answer in drawn(ruler.Needle, 64):
        key = question[1:3]
        assert question == [ruler.QUESTION, *key, ruler.ANSWER]
        (place,) = places_of([ruler.NEEDLE, *key, *answer], context)
        assert len(without_noise(context)) == 10
        assert len(answer) == 7 and answer[0] > 0 and max(answer) < 10
        depths.add(place)
        # The noise goes on behind a needle.
        noise = [token for token in context if token in ruler.NOISE]
        assert noise == [15 + i % 19 for i in range(len(noise))]
    assert len(depths) > 3


def test_all_needles_of_many_have_different_keys():
    asked = set()
    for context, question, answer in drawn(ruler.MultiKeyNeedle, 1024):
        key = question[1:3]
        (place,) = places_of(key, context)
        assert context[place + 2 : place + 9] == answer
        starts = places_of([ruler.NEEDLE], context)
        assert len(starts) == len(context) // 10
        assert len({tuple(context[start + 1 : start + 3]) for start in starts}) == len(starts)
        asked.add(place)
    assert len(asked) > 3


def test_all_variables_of_the_chain_have_the_number():
    for context, question, answer in drawn(ruler.VariableTracking, 64):
        said, value, number = without_noise(context), {}, question[1:6]
        assert question == [ruler.QUESTION, *number, ruler.ANSWER]
        while said:
            mark, name, equals, *said = said
            assert (mark, equals) == (ruler.VARIABLE, ruler.EQUALS) and name not in value
            if said[0] == ruler.VARIABLE:
                value[name], said = value[said[1]], said[2:]
            else:
                value[name], said = said[:5], said[5:]
        assert [name for name in value if value[name] == number] == answer
        assert len(answer) == 5


@pytest.mark.parametrize("length, times", [(512, 3), (131072, 16)])
def test_common_words_come_ten_times_as_often(length, times):
    for context, question, answer in drawn(ruler.CommonWords, length, batch=1):
        assert question == [ruler.QUESTION]
        counts = collections.Counter(context)
        common = [word for word, count in counts.items() if count > times]
        # A counter keeps the order of first appearance.
        assert common == answer and len(answer) == 10
        assert {counts.pop(word) for word in common} == {10 * times}
        assert sorted(counts.values())[1:] == [times] * (len(counts) - 1)


@pytest.mark.parametrize("length", [64, 131072])
def test_frequent_words_follow_zipf(length):
    for context, _, answer in drawn(ruler.FrequentWords, length, batch=2):
        counts = collections.Counter(context).most_common()
        assert counts[0][0] == ruler.NOISE[0]
        assert [word for word, _ in counts[1:4]] == answer
        zeta = sum(k**-2 for k in range(1, 10**5))
        for rank, (_, count) in enumerate(counts[1:4], start=2):
            assert count == pytest.approx(len(context) * rank**-2 / zeta, abs=1.01)
