import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer
from rt_keras.models import RoutingTransformerReaderPreprocessor as Preprocessor
from rt_keras.models.retrieval.reader_preprocessor import tokens_to_answer

# All tokenizers of the tests know these words.
TEXT = st.lists(st.sampled_from(["the", "quick", "fox", "dog", "jumps"]), max_size=5).map(" ".join)
LENGTHS = {"num_passages": 3, "passage_length": 4, "question_length": 3, "answer_length": 5}


def part(tokenizer, text, length):
    """The tokens of a part of a sequence, with its end."""
    return [*map(int, tokenizer(text))][:length] + [tokenizer.end_token_id]


def before_the_answer(preprocessor, question, passages):
    """The tokens of passages and a question, in a loop."""
    tokenizer, tokens = preprocessor.tokenizer, [preprocessor.tokenizer.start_token_id]
    missing = [""] * (preprocessor.num_passages - len(passages))
    for passage in reversed([*passages, *missing]):
        tokens += part(tokenizer, passage, preprocessor.passage_length)
    return tokens + part(tokenizer, question, preprocessor.question_length)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "sentence_piece", "t2t_subwords"], indirect=True)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=TEXT, passages=st.lists(TEXT, max_size=3), answer=TEXT)
def test_a_sequence_has_its_parts_in_order(tokenizer, question, passages, answer):
    preprocessor = Preprocessor(tokenizer, **LENGTHS)
    length = preprocessor.sequence_length
    assert length == 1 + 3 * 5 + 4 + 6
    before = before_the_answer(preprocessor, question, passages)
    own = part(tokenizer, answer, 5)
    # The other row of the batch has no effect.
    x = {
        "question": [question, "the fox"],
        "passages": [passages, ["dog"] * len(passages)],
        "answer": [answer, "fox"],
    }
    inputs, labels, weights = preprocessor(x)
    tokens = [*before, *own]
    row = tokens + [tokenizer.pad_token_id] * (length + 1 - len(tokens))
    assert inputs["token_ids"][0].numpy().tolist() == row[:-1]
    assert inputs["padding_mask"][0].numpy().tolist() == [i < len(tokens) for i in range(length)]
    assert labels[0].numpy().tolist() == row[1:]
    # Exactly the answer and its end are predicted.
    assert labels[0][weights[0]].numpy().tolist() == own
    assert np.flatnonzero(weights[0]).tolist() == [len(before) - 1 + i for i in range(len(own))]
    prompt = preprocessor.generate_preprocess({k: x[k] for k in ("question", "passages")})
    assert prompt["token_ids"][0].numpy().tolist()[: len(before)] == before
    assert int(np.sum(prompt["padding_mask"][0])) == len(before)
    known = preprocessor.passage_tokens(x["passages"]).to_list()[0]
    assert known + preprocessor.question_tokens([question]).to_list()[0] == before


def test_questions_that_cannot_be_answered():
    preprocessor = Preprocessor(ByteTokenizer(), **LENGTHS)
    assert tokens_to_answer("abc", preprocessor).numpy().tolist() == [99, 100, 101, 1]
    with pytest.raises(TypeError, match="question must be a string"):
        tokens_to_answer(5, preprocessor)
    with pytest.raises(ValueError, match="question must be valid UTF-8"):
        tokens_to_answer("\udcff", preprocessor)
