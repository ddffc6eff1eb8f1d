from rt_keras.benchmarks import input_pipeline, model, rivals
from tests.benchmarks.checks import parse

SECONDS = {"local": 2.0, "nearest_shared": 4.0, "routing_transformer": 8.0, model.INPUT: 0.5}
RIVALS = {"routing_transformer": ("torch", "routing_transformer")}


def test_tokens_a_second_and_ratios_come_from_the_same_contest(monkeypatch):
    contests = []

    def contest(contenders, *_):
        contests.append(contenders)
        return {name: {"seconds": SECONDS[name], "peak_bytes": 5 * 10**6} for name in contenders}

    monkeypatch.setattr(model.workers, "contest", contest)
    monkeypatch.setattr(rivals, "versions", lambda chosen: {})
    small = {"length": 64, "batch": 2, "window": 8, "layers": 1, "width": 16}
    args = parse(model, "--relative-positions", kinds=["nearest_shared", "local"], **small)
    result = model.measure(args, RIVALS)
    (contenders,) = contests
    # Relative positions are for our heads alone.
    assert contenders["local"]["arguments"]["relative_positions"] is True
    assert "relative_positions" not in contenders["routing_transformer"]["arguments"]
    found = {figure["kind"]: figure for figure in result["figures"]}
    assert found["nearest_shared"]["tokens_per_second"] == 128 / 4.0
    assert found["nearest_shared"]["times_as_fast_as"] == {"local": 0.5, "routing_transformer": 2.0}
    assert found["routing_transformer"]["package"] == "routing-transformer"
    rate = input_pipeline.tokens_of_a_run(64, 2) / 0.5
    assert result["input"]["tokens_per_second"] == rate
    assert result["input"]["times_the_fastest_step"] == rate / (128 / 2.0)
    lines = model.report(result).splitlines()
    assert lines[-5].split() == ["nearest", "shared", "4.0000", "32", "5", "0.50", "2.00"]
