import io

import hypothesis
import pytest

# First calls trace and compile, so the time of one example says nothing.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def sentence_piece_model():
    """A tiny SentencePiece model, padding 0, end of text 1."""
    import sentencepiece

    text = "the quick brown fox jumps over the lazy dog, and the dog sleeps on"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 20),
        model_writer=model,
        vocab_size=34,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="session")
def word_piece_vocabulary():
    """A tiny WordPiece vocabulary, padding 0, end of text 2."""
    return ["[PAD]", "[UNK]", "[SEP]", "the", "quick", "fox", "jump", "##s", "dog", ",", "."]


@pytest.fixture(params=["bytes", "sentence_piece", "word_piece"])
def tokenizer(request):
    """Each of the tokenizers in turn."""
    from rt_keras import data

    if request.param == "bytes":
        return data.ByteTokenizer()
    if request.param == "sentence_piece":
        return data.SentencePieceTokenizer(request.getfixturevalue("sentence_piece_model"))
    return data.WordPieceTokenizer(request.getfixturevalue("word_piece_vocabulary"))
