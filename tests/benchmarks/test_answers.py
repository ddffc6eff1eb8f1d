import json

import pytest

from rt_keras import cli


@pytest.mark.weekly
def test_the_table_has_all_controls(retrieval_folder, tmp_path, capsys):
    for split in ("train", "test"):
        lines = [
            {"question": f"what is the {word}", "answers": [f"a {word} that is very blue"]}
            for word in ("sky", "sea", "cat")
        ]
        lines = [{**line, "passages": ["It is."], "documents": ["sky"]} for line in lines]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--model", retrieval_folder / "reader", "--data", tmp_path, "--questions", 2]
    words += ["--index", retrieval_folder / "index", "--json", tmp_path / "figures.json"]
    assert cli.main(["benchmark", "answers", *map(str, words)]) == 0, capsys.readouterr().err
    assert "have a paraphrase in training" in capsys.readouterr().out
    rows = json.loads((tmp_path / "figures.json").read_text())["figures"]
    names = ["its passages", "random passages", "no passages", "question"]
    assert [row["answer"].split(maxsplit=1)[1] for row in rows[:4]] == names and len(rows) == 6
    assert all(row["nats_per_token"] > 0 for row in rows[:3])
    assert "r_precision" in rows[0] and "r_precision" not in rows[1]
