import json

from tests.cli.checks import assert_one_line


def test_a_causal_model_sees_nothing_of_its_future(run, tiny_run, tmp_path):
    figures = tmp_path / "figures.json"
    analyze = ["analyze", "causality", "--model", tiny_run, "--sequences", 1, "--positions", 2]
    status, output, _ = run(*analyze, "--json", figures)
    assert status == 0 and "0.00% of" in output
    assert json.loads(figures.read_text())["share_changed"] == 0.0


def test_bad_arguments_give_one_line(run, tiny_run):
    analyze = ["analyze", "causality", "--model", tiny_run]
    for argument in ("--positions", "--sequences", "--changes"):
        status, _, error = run(*analyze, argument, 0)
        assert_one_line(status, error, f"{argument} must be at least 1. Received: 0")
