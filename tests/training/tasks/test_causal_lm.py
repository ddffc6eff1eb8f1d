import pytest

from rt_keras.training.config import DataConfig, make_config
from rt_keras.training.tasks import task_named
from tests.training.tasks.checks import assert_batches_are_as_specified

TASK = task_named("causal_lm")


def test_batches_are_as_specified(tiny_settings):
    config = make_config(tiny_settings)
    assert_batches_are_as_specified(TASK, config, TASK.make_preprocessor(config))


def test_data_named_by_a_user(books):
    assert TASK.data_named("pg19") == {"name": "pg19"}
    assert TASK.data_named(str(books)) == {"name": "text_folder", "directory": str(books)}
    with pytest.raises(FileNotFoundError, match="--data is no/such; there is no such folder"):
        TASK.data_named("no/such")
    with pytest.raises(ValueError, match="--data is 'pg91'; .* pg19, .* or a folder"):
        TASK.data_named("pg91")


def test_scores_are_of_bytes_and_words():
    scores = TASK.scores(nats=12.0, tokens=6.0, counts={"bytes": 3, "words": 2})
    assert list(scores) == [name for name, _ in TASK.units]
    assert scores["nats_per_token"] == 2.0
    assert scores["bits_per_byte"] == pytest.approx(12 / 0.6931472 / 3)
    assert scores["perplexity_per_word"] == pytest.approx(403.4288)


def test_a_vocabulary_is_at_least_the_tokenizers():
    assert TASK.vocabulary_size(make_config({})) == 258
    assert TASK.vocabulary_size(make_config({"model.vocabulary_size": 300})) == 300
    small = make_config({"model.vocabulary_size": 100})
    with pytest.raises(ValueError, match="vocabulary_size is 100; the tokenizer has 258 tokens"):
        TASK.vocabulary_size(small, TASK.make_preprocessor(small).tokenizer)


def test_text_must_be_utf8_for_a_tokenizer_that_needs_it(tmp_path, word_piece_vocabulary):
    (tmp_path / "words").write_text("\n".join(word_piece_vocabulary))
    (tmp_path / "text" / "test").mkdir(parents=True)
    (tmp_path / "text" / "test" / "1.txt").write_bytes(b"caf\xe9")
    settings = {"tokenizer.name": "word_piece", "tokenizer.vocabulary": str(tmp_path / "words")}
    preprocessor = TASK.make_preprocessor(make_config(settings))
    folder, prepared = str(tmp_path / "text"), str(tmp_path / "prepared")
    data = DataConfig(name="text_folder", directory=folder, data_dir=prepared)
    with pytest.raises(ValueError, match="1.txt is not UTF-8 text"):
        TASK.load_split(data, "test", preprocessor)
