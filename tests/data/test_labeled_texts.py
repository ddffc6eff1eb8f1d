import functools

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
from tests.data.checks import check_order, write_set

PREPROCESSOR = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 12)
TEXTS = {"one": 0, "two": 1, "three": 1}


@pytest.mark.slow
def test_sets_of_glue_become_batches(tmp_path):
    examples = [{"sentence": text, "label": label, "idx": 0} for text, label in TEXTS.items()]
    write_set("glue/sst2", tmp_path, {"train": examples})
    texts = load_labeled_texts("glue/sst2", "train", data_dir=tmp_path)
    check_labels(texts, num_classes=2)
    with pytest.raises(ValueError, match="from 0 to 0, as model.num_classes is 1. .* label 1$"):
        check_labels(texts, num_classes=1)
    packed = pack_examples(texts, tmp_path / "packed")
    for inputs, labels, weights in training_labeled_texts(packed, PREPROCESSOR, 3).take(2):
        found = ByteTokenizer().detokenize(inputs["token_ids"]).numpy()
        assert {t.decode(): int(y) for t, y in zip(found, labels)} == TEXTS
        assert np.all(weights == 1)

    def hashed(texts, labels):
        return tf.strings.to_hash_bucket_fast(texts[0], 10**9), labels

    check_order(functools.partial(training_labeled_texts, packed, hashed, 2))
    _, (inputs, _, weights) = evaluation_labeled_texts(texts, PREPROCESSOR, 2)
    assert weights.numpy().tolist() == [1, 0]
    # Padding examples are not empty, or they would have no mean.
    assert inputs["padding_mask"].numpy()[1].any()


def test_pairs_come_in_their_order_and_splits_of_mnli_match(tmp_path):
    example = {"premise": "it rains", "hypothesis": "it is wet", "label": 0, "idx": 0}
    write_set("glue/mnli", tmp_path, {"validation_matched": [example]})
    (found,) = load_labeled_texts("glue/mnli", "validation", data_dir=tmp_path)
    assert found["text"] == "it rains" and found["text_pair"] == "it is wet"
