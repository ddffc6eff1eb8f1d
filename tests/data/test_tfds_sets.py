import pytest
import tensorflow_datasets as tfds

from rt_keras.data import tfds_sets
from rt_keras.data.text_folder import TextFolder
from tests.data.checks import write_set


class Unreachable(tfds.core.GeneratorBasedBuilder):
    """A set whose server is gone."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        raise AssertionError("no answer from example.org")

    def _generate_examples(self):
        raise NotImplementedError


def write_articles(folder):
    keys = ("article", "abstract", "section_names")
    articles = [dict.fromkeys(keys, f"text {number}") for number in range(10)]
    write_set("scientific_papers/arxiv", folder, {"train": articles, "test": articles[:2]})


def texts(builder, *split):
    return [example["article"] for example in tfds_sets.read(builder, *split).as_numpy_iterator()]


def test_what_is_prepared_is_read_in_an_order_that_stays(tmp_path):
    write_articles(tmp_path)
    builder = tfds_sets.download("scientific_papers/arxiv", tmp_path)
    train = texts(builder, "train")
    assert sorted(train) == [f"text {number}".encode() for number in range(10)]
    assert texts(tfds_sets.download("scientific_papers/arxiv", tmp_path), "train") == train
    assert texts(builder, "train", "[:80%]") == train[:8]
    assert texts(builder, "train", "[80%:]") == train[8:]


def test_split_that_does_not_exist(tmp_path):
    write_articles(tmp_path)
    builder = tfds_sets.download("scientific_papers/arxiv", tmp_path)
    with pytest.raises(ValueError, match="must be one of train, test .*'validation'"):
        tfds_sets.read(builder, "validation")


def test_no_such_set(tmp_path):
    for name in ("no_such_set", "wmt14_translate/de-xx"):
        with pytest.raises(
            ValueError, match=f"a set of TensorFlow Datasets. Received: name='{name}'"
        ):
            tfds_sets.download(name, tmp_path)


def test_a_download_that_fails(tmp_path):
    message = (
        r"unreachable/1.0.0 could not be downloaded and prepared \(AssertionError: no answer from "
        r"example.org\). .* the folder that holds unreachable/1.0.0"
    )
    with pytest.raises(OSError, match=message):
        tfds_sets.download("unreachable", tmp_path)
    assert not (tmp_path / "unreachable" / "1.0.0").exists()


def test_preparing_a_set_is_one_line_and_only_once(tmp_path, books, capfd):
    for expected in ("preparing text_folder\n", ""):
        tfds_sets.prepare(TextFolder(books, data_dir=tmp_path))
        assert capfd.readouterr() == ("", expected)
