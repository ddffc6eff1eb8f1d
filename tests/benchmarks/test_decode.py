from rt_keras.benchmarks import decode
from tests.benchmarks.checks import parse


def test_seconds_are_those_of_one_token(monkeypatch):
    held = []

    def contest(contenders, *_):
        held.append(contenders)
        figure = {"seconds": 8.0, "runs": [4.0, 8.0, 12.0], "peak_bytes": 5 * 10**6}
        return {name: dict(figure) for name in contenders}

    monkeypatch.setattr(decode.workers, "contest", contest)
    small = {"window": 8, "layers": 1, "width": 16, "tokens": 16, "lengths": [64, 128]}
    result = decode.measure(parse(decode, **small, kinds=["full", "balanced_shared"]), {})
    counts = {"full": 16, "balanced_shared": 4}
    for contenders, length in zip(held, (64, 128)):
        for name, count in counts.items():
            arguments = contenders[name]["arguments"]
            assert (arguments["length"], arguments["tokens"]) == (length, count)
    assert len(result["figures"]) == 4
    for figure in result["figures"]:
        count = counts[figure["kind"]]
        assert figure["seconds"] == 8.0 / count and figure["runs"][0] == 4.0 / count
        assert figure["cached"] == (figure["kind"] == "full")
    last = decode.report(result).splitlines()[-1].split()
    assert last == ["128", "balanced", "shared", "no", "2000.000", "5", "0.25"]
