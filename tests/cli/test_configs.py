import json

from rt_keras.training import config_files


def test_every_file_is_listed_with_its_summary(run, tmp_path):
    status, output, _ = run("configs", "--json", tmp_path / "configs.json")
    assert status == 0
    found = json.loads((tmp_path / "configs.json").read_text())
    assert list(found) == config_files.published_names()
    header, *lines = output.splitlines()
    assert header.split() == ["name", "strictly", "causal", "summary"]
    for line, (name, config) in zip(lines, found.items()):
        assert line.startswith(name) and line.endswith(config["summary"])
        assert config["summary"].endswith(".")
        assert line.split()[1] == ("yes" if config["strictly_causal"] else "no")
    assert found["pg19_nearest8k"]["strictly_causal"]
    assert not found["pg19_local_cluster8k"]["strictly_causal"]


def test_every_key_is_listed(run, tmp_path):
    status, output, _ = run("configs", "--keys", "--json", tmp_path / "keys.json")
    assert status == 0
    found = json.loads((tmp_path / "keys.json").read_text())
    assert found["optimizer.beta_1"] == {
        "default": 0.9,
        "allowed": "at least 0 and below 1",
        "meaning": "decay rate of the first moment, for adam and adamw",
    }
    assert all(line.startswith(name) for line, name in zip(output.splitlines()[1:], found))
    assert "model.heads" in found and "model.image.height" in found
