import pytest

from rt_keras import config_files


def test_a_file_builds_on_a_published_configuration_and_on_a_file_beside_it(tmp_path):
    (tmp_path / "first.yaml").write_text("base: books\nmodel: {local_routing: {num_heads: 8}}\n")
    (tmp_path / "second.yaml").write_text("base: first.yaml\ndata: {batch_size: 7}\n")
    books = config_files.read_config("books")
    second = config_files.read_config(tmp_path / "second.yaml")
    heads = books["model"]["local_routing"]
    assert second["model"]["local_routing"] == {**heads, "num_heads": 8}
    assert second["data"] == {**books["data"], "batch_size": 7}
    assert second["optimizer"] == books["optimizer"]
    assert "base" not in second


@pytest.mark.parametrize(
    "content, message",
    [
        (b"# nothing but a comment\n", "mine.yaml is empty"),
        (b"\x80\x02\xff", "mine.yaml is not a YAML file: it is not UTF-8 text"),
        (b"model: {num_layers: 2", "mine.yaml is not valid YAML"),
        (b"- model", "mine.yaml must hold sections with keys, not list"),
        (b"model: &m\n  routing: *m\n", "mine.yaml is nested too deeply.*anchor"),
        (b"[" * 1_000, "mine.yaml is nested too deeply"),
        (
            b"model: {num_layers: 2}\ndata:\n  name: a\n  batch_size: 1\n  name: b\n",
            "mine.yaml is not .*: the key 'name' is given twice, in lines 3 and 5",
        ),
        (b"model: {num_layers: 2, num_layers: 3}\n", "'num_layers' is given twice, in line 1"),
        (b"base: 3\n", "mine.yaml: base must be the name or path of a configuration, not 3"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(content, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        config_files.read_config(path)


def test_a_key_of_a_merged_mapping_may_be_given_again(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "model: &m {num_layers: 2, hidden_dim: 8}\ntrainer: {<<: *m, num_layers: 4}\n"
    )
    trainer = config_files.read_config(tmp_path / "mine.yaml")["trainer"]
    assert trainer == {"num_layers": 4, "hidden_dim": 8}


def test_two_files_that_build_on_each_other_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ValueError, match="cannot build on itself: a builds on b builds on a"):
        config_files.read_config(tmp_path / "a.yaml")


def test_what_is_missing_is_named_with_the_nearest_name(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: pg19_nearest\n")
    message = "there is no configuration 'pg19_nearest'; give .* such as 'pg19_nearest8k'"
    for missing in (tmp_path / "mine.yaml", "pg19_nearest"):
        with pytest.raises(FileNotFoundError, match=message):
            config_files.read_config(missing)
