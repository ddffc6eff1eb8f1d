import pytest

from rt_keras.training import config_files
from rt_keras.training.config import load_config


def test_a_file_builds_on_a_published_configuration_and_on_a_file_beside_it(tmp_path):
    (tmp_path / "first.yaml").write_text("base: books\nmodel:\n  heads[0].num_heads: 8\n")
    (tmp_path / "second.yaml").write_text("base: first.yaml\ndata: {batch_size: 7}\n")
    (tmp_path / "third.yaml").write_text("base: first.yaml\nmodel: {heads: [{class: FullHeads}]}\n")
    books, second = load_config("books"), load_config(tmp_path / "second.yaml")
    assert second.model.heads == [{**books.model.heads[0], "num_heads": 8}]
    assert second.data.batch_size == 7 and second.data.directory == books.data.directory
    assert second.optimizer == books.optimizer
    # A list replaces that of the base, with what the base has changed in it.
    assert load_config(tmp_path / "third.yaml").model.heads == [{"class": "FullHeads"}]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"# nothing but a comment\n", "mine.yaml is empty"),
        (b"\x80\x02\xff", "mine.yaml is not a YAML file: it is not UTF-8 text"),
        (b"model: {num_layers: 2", "mine.yaml is not valid YAML"),
        (b"- model", "mine.yaml is not a configuration: it must hold sections with keys"),
        (b"model: &m\n  routing: *m\n", "mine.yaml is not a config.* no anchor that refers to it"),
        (b"[" * 1_000, "mine.yaml is not a configuration"),
        (
            b"model: {num_layers: 2}\ndata:\n  name: a\n  batch_size: 1\n  name: b\n",
            "mine.yaml is not .*: the key 'name' is given twice, in lines 3 and 5",
        ),
        (b"base: 3\n", "mine.yaml: base must be the name or path of a configuration, not 3"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(content, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        config_files.read_config(path)


def test_a_key_of_a_merged_mapping_may_be_given_again(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: &m {num_layers: 2, rate: 1e-3}\ntrainer: {<<: *m, num_layers: 4}\n")
    ((values, _),) = config_files.read_config(path)
    assert (values["trainer.num_layers"], values["trainer.rate"]) == (4, 1e-3)


def test_two_files_that_build_on_each_other_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ValueError, match="cannot build on itself: a builds on b builds on a"):
        load_config(tmp_path / "a.yaml")


def test_what_is_missing_is_named_with_the_nearest_name(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: pg19_nearest\n")
    message = "there is no configuration 'pg19_nearest'; give .* such as 'pg19_nearest8k'"
    for missing in (tmp_path / "mine.yaml", "pg19_nearest"):
        with pytest.raises(FileNotFoundError, match=message):
            load_config(missing)
