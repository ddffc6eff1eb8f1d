"""Small models of retrieval, and documents."""

import keras

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from tests.data.checks import write_lines
from tests.models.checks import as_if_trained

# Tokens of a passage that the retriever sees.
LENGTH = 30
TEXTS = {
    "sky": "The sky is blue at noon, and red when the sun sets behind the hills.",
    "sea": "Whales live in the deep sea. So do squids, é, which they eat.",
    "iron": "Iron rusts in wet air. Gold does not.",
}
LINES = [{"id": name, "title": name, "text": text} for name, text in TEXTS.items()]


def write_documents(path, lines=LINES):
    return write_lines(path, *lines)


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
    return as_if_trained(model)


def make_reader():
    keras.utils.set_random_seed(0)
    backbone = models.RoutingTransformerBackbone(258, 1, 8, 16, [LocalHeads(2, 4)])
    preprocessor = models.RoutingTransformerReaderPreprocessor(ByteTokenizer(), 2, LENGTH, 16, 8)
    # With these weights, questions have different answers, of one byte for each character.
    return as_if_trained(models.RoutingTransformerReader(backbone, preprocessor), seed=2)
