import keras_hub

from rt_keras.models.adapted.batches import batches_of
from tests.models.adapted.checks import make_backbone


def test_a_list_of_texts_is_one_batch():
    """Keras would interpret two or three texts as texts, labels and weights."""
    tokenizer = keras_hub.models.BertTokenizer(
        vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    )
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=6)
    model = keras_hub.models.BertTextClassifier(
        make_backbone("Bert"), num_classes=2, preprocessor=preprocessor
    )
    for count in (1, 2, 3, 4):
        (batch,) = batches_of(model, ["a b"] * count)
        assert batch["token_ids"].shape == (count, 6)
        sizes = [x["token_ids"].shape[0] for x in batches_of(model, [["a"] * count, ["b"]])]
        assert sizes == [count, 1]
