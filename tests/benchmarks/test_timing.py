import time

from rt_keras.benchmarks.timing import alternate


def test_functions_take_turns_until_each_has_enough_runs():
    called = []
    runs = {name: lambda name=name: called.append(name) for name in "ab"}
    times = alternate(runs, repeats=3)
    # Once untimed, then in rounds.
    assert called == ["a", "b"] * 4
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}


def test_a_long_run_is_not_repeated_and_does_not_stop_the_others():
    called = []

    def slow():
        called.append("slow")
        time.sleep(0.02)

    times = alternate({"slow": slow, "quick": lambda: None}, repeats=5, seconds=0.01)
    assert called == ["slow", "slow"]
    assert len(times["slow"]) == 1 and times["slow"][0] >= 0.02
    assert len(times["quick"]) == 5
