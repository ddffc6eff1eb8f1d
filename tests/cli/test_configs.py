import json


def test_every_file_is_listed_with_its_summary(run, tmp_path):
    status, output, _ = run("configs", "--json", tmp_path / "configs.json")
    assert status == 0
    summaries = json.loads((tmp_path / "configs.json").read_text())
    assert {"books", "quickstart"} <= set(summaries)
    assert all(name in output and summary in output for name, summary in summaries.items())
