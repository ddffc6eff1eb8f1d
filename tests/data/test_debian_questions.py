import json

from rt_keras.data import debian_questions
from rt_keras.data.text_folder import SPLITS, split_of

LONG = (
    "It is long enough to be kept, since it has more letters than a line of a list would have. " * 2
)


def test_questions_and_documents_are_written_and_errors_are_told(tmp_path, capsys):
    source, out = tmp_path / "list", tmp_path / "out"
    packages = [f"Package: p{n}\nDescription: Short {n}\n Number {n}.\n {LONG}\n" for n in range(9)]
    source.write_text("\n".join(packages))
    arguments = ["packages", str(out), "--source", str(source), "--limit", "8"]
    assert debian_questions.main(arguments) == 0
    assert capsys.readouterr().out.endswith("8 documents\nleft out: 1 over the limit\n")
    documents = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    found = {}
    for split in SPLITS:
        lines = (out / f"{split}.jsonl").read_text() if (out / f"{split}.jsonl").exists() else ""
        for line in map(json.loads, lines.splitlines()):
            assert split_of(*line["documents"]) == split
            found[line["documents"][0]] = line["passages"][0]
    assert found == {x["id"]: x["text"] for x in documents} and len(found) == 8
    assert debian_questions.main(arguments) == 1
    assert "already exists; name a new or an empty folder" in capsys.readouterr().err
