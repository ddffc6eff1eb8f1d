"""Writes a SentencePiece vocabulary of the texts for training in a folder.

python docs/benchmarks/recipes/vocabulary.py DATA FOLDER SIZE FILE [characters]

DATA is `question_folder`, `parallel_documents` or `speech_folder`. With `characters`, pieces are
single characters.
"""

import sys
from pathlib import Path

import numpy as np

from rt_keras import data

LOADERS = {
    "question_folder": data.load_question_answers,
    "parallel_documents": data.load_pairs,
    "speech_folder": data.load_speech,
}
TEXTS = ("question", "answers", "passages", "encoder_text", "decoder_text", "text")


def main(name, folder, size, file, characters=""):
    examples = LOADERS[name](name, "train", folder).as_numpy_iterator()
    texts = [x for example in examples for key in TEXTS for x in np.ravel(example.get(key, []))]
    options = {"characters": characters == "characters"}
    Path(file).write_bytes(data.compute_sentence_piece_proto(texts, int(size), **options))


if __name__ == "__main__":
    main(*sys.argv[1:])
