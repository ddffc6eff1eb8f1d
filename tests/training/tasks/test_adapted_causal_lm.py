import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import LocalHeads
from rt_keras.training.evaluation import evaluate
from rt_keras.training.tasks import TASKS, task_of
from tests.models.adapted.llama_folder import write_llama

TEXTS = ["the cat and the dog", "a café"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    adapted = rt_keras.adapt(write_llama(tmp_path_factory.mktemp("llama")), [LocalHeads(4, 8)])
    adapted.preprocessor.sequence_length = 12
    return adapted


def test_the_task_is_no_kind_of_a_configuration(model):
    task = task_of(model)
    assert task.continues_text and task.generates == "text"
    assert task not in TASKS.values()


def nats_of(model, tokens):
    """-ln p of each token but the first."""
    ids = np.asarray(tokens)[None]
    logits = model({"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, :-1])})
    return tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits).numpy()[0]


@pytest.mark.end_to_end
@pytest.mark.parametrize("context", ["window", "sliding", "stateful"])
def test_scores_are_those_of_sequences_after_a_start_token(model, context):
    tokenizer = model.preprocessor.tokenizer
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    assert start != end
    # One text, so that the boundaries of sequences are simple.
    text = " and ".join(TEXTS)
    stream = [start, *np.asarray(tokenizer(text)).tolist(), end]
    nats = nats_of(model, stream if context == "stateful" else stream[:12]).sum()
    if context == "window":
        for first in range(11, len(stream) - 1, 11):
            nats += nats_of(model, [start, *stream[first : first + 12]])[1:].sum()
    if context == "sliding":
        # 6 of the 11 tokens after the start token are new.
        for first in range(6, len(stream) - 6, 6):
            nats += nats_of(model, [start, *stream[first : first + 12]])[6:].sum()
    scores = evaluate(model, tf.data.Dataset.from_tensors(text), 1, context=context)
    tokens, count = len(stream) - 1, len(text.encode())
    assert (scores["tokens"], scores["bytes"]) == (tokens, count)
    assert scores["nats_per_token"] == pytest.approx(nats / tokens, rel=1e-4)
    assert scores["bits_per_byte"] == pytest.approx(nats / np.log(2) / count, rel=1e-4)


def test_prompts_are_texts_that_fit(model):
    task = task_of(model)
    assert task.prompts(["café".encode()], model, 12) == ["café"]
    with pytest.raises(ValueError, match="prompt 1 must have at most 12 tokens"):
        task.prompts([b"a", b"a" * 12], model, 12)
    with pytest.raises(ValueError, match="prompt must be valid UTF-8"):
        task.prompts([b"\xff"], model, 12)
