import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import (
    ByteTokenizer,
    evaluation_labeled_texts,
    load_labeled_texts,
    pack_examples,
    training_labeled_texts,
)
from rt_keras.data.labeled_texts import check_labels
from rt_keras.models import RoutingTransformerTextClassifierPreprocessor
from tests.data.checks import write_set

PREPROCESSOR = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 12)
TEXTS = {"one": 0, "two": 1, "three": 1}


def dataset():
    return tf.data.Dataset.from_tensor_slices({"text": list(TEXTS), "label": list(TEXTS.values())})


def test_a_set_of_glue(tmp_path):
    examples = [{"sentence": text, "label": label, "idx": 0} for text, label in TEXTS.items()]
    hidden = [{"sentence": "four", "label": -1, "idx": 0}]
    write_set("glue/sst2", tmp_path, {"train": examples, "test": hidden})
    texts = load_labeled_texts("glue/sst2", "train", data_dir=tmp_path)
    assert texts.element_spec["label"] == tf.TensorSpec([], tf.int32)
    found = {x["text"].decode(): int(x["label"]) for x in texts.as_numpy_iterator()}
    assert found == TEXTS
    check_labels(texts, num_classes=2)
    with pytest.raises(ValueError, match="from 0 to 0, as model.num_classes is 1. .* label 1$"):
        check_labels(texts, num_classes=1)
    test = load_labeled_texts("glue/sst2", "test", data_dir=tmp_path)
    with pytest.raises(ValueError, match="a label -1, which stands for an unpublished"):
        check_labels(test, num_classes=2)


def test_pairs_come_in_their_order_and_splits_of_mnli_match(tmp_path):
    example = {"premise": "it rains", "hypothesis": "it is wet", "label": 0, "idx": 0}
    other = {**example, "premise": "it snows"}
    splits = {"validation_matched": [example], "validation_mismatched": [other]}
    write_set("glue/mnli", tmp_path, splits)
    (found,) = load_labeled_texts("glue/mnli", "validation", data_dir=tmp_path)
    assert found["text"] == "it rains" and found["text_pair"] == "it is wet"


def test_names_that_are_none():
    for name in ("glue", "glue/stsb", "glue/ax", "sst2"):
        with pytest.raises(ValueError, match=f"name must be csv_folder or .* name='{name}'"):
            load_labeled_texts(name, "train")
    with pytest.raises(ValueError, match="directory must be the path to read for csv_folder"):
        load_labeled_texts("csv_folder", "train")


def test_training_and_evaluation_batches(tmp_path):
    packed = pack_examples(dataset(), tmp_path)
    batches = list(training_labeled_texts(packed, PREPROCESSOR, 3, seed=1).take(2))
    for inputs, labels, weights in batches:
        texts = ByteTokenizer().detokenize(inputs["token_ids"]).numpy()
        assert {t.decode(): int(y) for t, y in zip(texts, labels)} == TEXTS
        assert np.all(weights == 1)
    again = training_labeled_texts(packed, PREPROCESSOR, 3, seed=1, first_batch=1)
    _, later, _ = next(iter(again))
    np.testing.assert_array_equal(later, batches[1][1])
    first, last = evaluation_labeled_texts(dataset(), PREPROCESSOR, 2)
    assert first[1].numpy().tolist() == [0, 1] and last[1].numpy().tolist() == [1, 0]
    assert last[2].numpy().tolist() == [1, 0]
    # Padding examples are not empty, or they would have no mean.
    assert last[0]["padding_mask"].numpy()[1].any()
