from rt_keras.benchmarks.timing import alternate


def test_functions_take_turns_until_each_has_enough_runs_or_took_long_or_failed():
    called = []
    seconds = {
        "slow": [2.0] * 9,
        "slower": [9.0],
        "quick": [0.1, 0.2, 0.3, 0.4, 0.5],
        "fails": [1, None],
    }
    found = {name: iter(values) for name, values in seconds.items()}

    def run(name):
        called.append(name)
        return next(found[name])

    runs = {name: lambda name=name: run(name) for name in seconds}
    seconds["slow"] = [2.0, 2.0]
    assert alternate(runs, repeats=5, seconds=4.0) == seconds
    assert called == [*seconds, "slow", "quick", "fails", "quick", "quick", "quick"]
