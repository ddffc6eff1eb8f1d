"""Small models of retrieval, and documents."""

import json

import keras
import numpy as np

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads

# Tokens of a passage that the retriever sees.
LENGTH = 30
TEXTS = {
    "sky": "The sky is blue at noon, and red when the sun sets behind the hills.",
    "sea": "Whales live in the deep sea. So do squids, é, which they eat.",
    "iron": "Iron rusts in wet air. Gold does not.",
}
LINES = [{"id": name, "title": name, "text": text} for name, text in TEXTS.items()]


def write_documents(path, lines=LINES):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def with_random_weights(model, seed=0):
    """Weights like those of a trained model, the same in every process."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def make_retriever(sequence_length=LENGTH + 2, dtype=None, **options):
    keras.utils.set_random_seed(0)
    heads = [LocalHeads(2, 4)]
    backbone = models.RoutingTransformerEncoderBackbone(258, 1, 8, 16, heads, dtype=dtype)
    preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(
        ByteTokenizer(), sequence_length
    )
    model = models.RoutingTransformerTextEmbedder(
        backbone, preprocessor, **{"question_length": 20, **options}
    )
    model.compile(jit_compile=False)
    return with_random_weights(model)


def make_reader():
    keras.utils.set_random_seed(0)
    backbone = models.RoutingTransformerBackbone(258, 1, 8, 16, [LocalHeads(2, 4)])
    preprocessor = models.RoutingTransformerReaderPreprocessor(ByteTokenizer(), 2, LENGTH, 16, 8)
    # With these weights, questions have different answers, of one byte for each character.
    return with_random_weights(models.RoutingTransformerReader(backbone, preprocessor), seed=2)
