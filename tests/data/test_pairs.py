import functools

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer, evaluation_pairs, load_pairs, pack_examples, training_pairs
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor
from tests.data.checks import check_order, hashed, write_set

SENTENCES = {"eins": "one", "zwei": "two", "drei": "three"}


def preprocessor():
    return RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 5)


def texts(pairs):
    return {
        pair["encoder_text"].decode(): pair["decoder_text"].decode()
        for pair in pairs.as_numpy_iterator()
    }


def test_translation_and_summaries(tmp_path):
    examples = [{"de": de, "en": en} for de, en in SENTENCES.items()]
    splits = {"train": examples, "validation": examples[:1], "test": examples[1:]}
    name = "wmt14_translate/de-en"
    write_set(name, tmp_path, splits)
    pairs = load_pairs(name, "train", data_dir=tmp_path)
    string = tf.TensorSpec([], tf.string)
    assert pairs.element_spec == {"encoder_text": string, "decoder_text": string}
    assert texts(pairs) == SENTENCES
    assert texts(load_pairs(name, "validation", data_dir=tmp_path)) == {"eins": "one"}
    to_german = load_pairs(name, "test", data_dir=tmp_path, reverse=True)
    assert texts(to_german) == {"two": "zwei", "three": "drei"}
    papers = [{"article": "long", "abstract": "short", "section_names": "1"}]
    write_set("scientific_papers/arxiv", tmp_path, {"train": papers})
    pairs = load_pairs("scientific_papers/arxiv", "train", data_dir=tmp_path)
    assert texts(pairs) == {"long": "short"}


def test_bad_names(tmp_path):
    for name in ("wmt14_translate", "../x_translate/de-en"):
        with pytest.raises(ValueError, match="name must be pairs_folder, "):
            load_pairs(name, "train", data_dir=tmp_path)


def dataset_of(pairs):
    columns = {"encoder_text": list(pairs), "decoder_text": list(pairs.values())}
    return tf.data.Dataset.from_tensor_slices(columns)


@pytest.fixture
def packed(tmp_path):
    return pack_examples(dataset_of(SENTENCES), tmp_path / "packed")


def test_training_begins_with_any_batch(packed):
    check_order(functools.partial(training_pairs, packed, hashed, 2))


def test_evaluation_has_every_pair_once():
    batches = list(evaluation_pairs(dataset_of(SENTENCES), preprocessor(), 2).as_numpy_iterator())
    columns = {"encoder_text": list(SENTENCES), "decoder_text": list(SENTENCES.values())}
    found = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_array_equal(x[:3], y), found, preprocessor()(columns)
    )
    inputs, _, weights = found
    # Letters and one end of text per text, except that "three" lacks its last letter.
    assert weights.sum() == 4 + 4 + 5 and not weights[3].any()
    # Padding examples are not empty for the encoder, or its softmax would sum over nothing.
    assert inputs["encoder_padding_mask"][3].any()
