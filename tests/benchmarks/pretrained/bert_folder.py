"""Writes the folder of a tiny BERT with KerasHub."""

import keras_hub

from tests.models.adapted.checks import make_backbone

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", ".", ",")


def write_bert(folder):
    """Writes the folder and returns its path."""
    make_backbone("Bert").save_to_preset(folder)
    keras_hub.models.BertTokenizer(vocabulary=[*SPECIAL, *WORDS], lowercase=True).save_to_preset(
        folder
    )
    return folder
