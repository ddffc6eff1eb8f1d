import itertools

from rt_keras.benchmarks.timing import alternate


def test_functions_take_turns_until_each_has_enough_runs():
    called = []

    def run(name, seconds):
        called.append(name)
        return next(seconds)

    seconds = {name: itertools.count(start) for name, start in (("a", 1), ("b", 0.5))}
    runs = {name: lambda name=name: run(name, seconds[name]) for name in "ab"}
    found = alternate(runs, repeats=3)
    assert called == ["a", "b"] * 3
    assert found == {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]}


def test_a_long_run_is_not_repeated_and_does_not_stop_the_others():
    runs = {"slow": lambda: 2.0, "slower": lambda: 9.0, "quick": lambda: 0.1}
    found = alternate(runs, repeats=5, seconds=4.0)
    assert found == {"slow": [2.0, 2.0], "slower": [9.0], "quick": [0.1] * 5}


def test_what_fails_is_not_run_again():
    seconds = iter([1.0, None])
    assert alternate({"a": lambda: next(seconds)}, repeats=5) == {"a": [1.0, None]}
