"""Training of SentencePiece vocabularies, which give back every text unchanged."""

import io
import tempfile
from pathlib import Path

from rt_keras import extras

with extras.needed("train", "Training a vocabulary"):
    import sentencepiece

# Number of lines that are read at most, chosen at random.
LINES = 1_000_000


def compute_sentence_piece_proto(texts, vocabulary_size, characters=False):
    """Trains a SentencePiece vocabulary of the unigram model.

    Line breaks and spaces are tokens like others, and characters without a token become their
    bytes, so that `detokenize` gives back a text as it was, except for U+2581, SentencePiece's own
    sign for a space, which becomes a space. Texts are split into lines, which are the sentences of
    the training.

    Args:
        texts: iterable of bytes, UTF-8.
        vocabulary_size: int, maximum number of tokens; 256 of them are bytes, and 4 are special.
        characters: bool, whether each token is a single character. Defaults to False.

    Returns:
        bytes, the proto of a `SentencePieceTokenizer`.

    Raises:
        ValueError: if there is no text, or the size is too small for the characters of the texts.

    Source: Kudo 2018, Subword Regularization, section 3.2, as SentencePiece implements it.

    >>> from rt_keras.data import SentencePieceTokenizer
    >>> proto = compute_sentence_piece_proto([b"a rose is\\na rose"] * 9, vocabulary_size=280)
    >>> tokenizer = SentencePieceTokenizer(proto)
    >>> tokenizer.detokenize(tokenizer("is  a rose\\nor café?"))
    'is  a rose\\nor café?'
    """
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        # Without rules, SentencePiece prints that it has none whenever the vocabulary is loaded.
        # This one replaces its own sign for a space, which comes back as a space anyway.
        rules = Path(folder, "rules.tsv")
        rules.write_text("2581\t20\n")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(line for text in texts for line in text.splitlines() if line),
                model_writer=model,
                model_type="char" if characters else "unigram",
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                normalization_rule_tsv=str(rules),
                remove_extra_whitespaces=False,
                byte_fallback=True,
                user_defined_symbols=["\n"],
                input_sentence_size=LINES,
                max_sentence_length=2**30,
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"vocabulary_size must fit the texts. Received: vocabulary_size={vocabulary_size}; "
                f"{str(error).rpartition('] ')[2].strip() or 'there is no text'}"
            ) from error
    return model.getvalue()
