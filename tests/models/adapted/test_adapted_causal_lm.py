import concurrent.futures
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import LocalHeads, StridedHeads
from rt_keras.models.adapted import prompt_reading
from rt_keras.models.streaming import stream
from tests.models.adapted.llama_folder import write_llama

HEADS = [LocalHeads(4, block_size=4)]
PROMPTS = ["the cat and the dog and the end", "the"]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    task = rt_keras.adapt(write_llama(tmp_path_factory.mktemp("llama")), HEADS)
    task.compile(sampler="greedy", jit_compile=False)
    return task


def count_tokens(task, text):
    return 1 + len(task.preprocessor.tokenizer(text))


def test_token_ids_have_room_for_new_tokens(task):
    ids = np.random.default_rng(0).integers(3, 20, size=[2, 12])
    mask = np.arange(12) < np.array([[8], [3]])
    inputs = {"token_ids": ids * mask, "padding_mask": mask}
    preprocessor, task.preprocessor = task.preprocessor, None
    try:
        found = task.generate(inputs, stop_token_ids=None, max_new_tokens=2)
        whole = task.generate(inputs, stop_token_ids=None)
    finally:
        task.preprocessor = preprocessor
    ends = np.array([[10], [5]])
    np.testing.assert_array_equal(found["padding_mask"], np.arange(12) < ends)
    np.testing.assert_array_equal(found["token_ids"], whole["token_ids"] * (np.arange(12) < ends))


@pytest.mark.slow
def test_questions_follow_what_was_read_once(task):
    state = task.read(PROMPTS[0], verbose=0)
    questions = [" and the cat", " dog"]
    found = task.generate(questions, state=state, max_new_tokens=4, stop_token_ids=None)
    for question, answer in zip(questions, found):
        whole = task.generate(PROMPTS[0] + question, max_new_tokens=4, stop_token_ids=None)
        assert whole == PROMPTS[0] + answer
    read_on = task.read(questions[:1], state=state, verbose=0)
    # Without another start token.
    assert read_on["count"] == state["count"] + count_tokens(task, questions[0]) - 1


def test_contrastive_search_needs_the_hidden_states_of_all_tokens(task):
    state = task.read(PROMPTS[1], verbose=0)
    task.compile(sampler="contrastive")
    with pytest.raises(ValueError, match="state must be None for a ContrastiveSampler"):
        task.generate(" and", state=state)
    task.compile(sampler="greedy", jit_compile=False)


def test_rows_of_a_state_have_their_own_positions(task):
    # These heads read a text one token at a time.
    task = rt_keras.adapt(rt_keras.restore(task), [StridedHeads(4, 4)])
    rng = np.random.default_rng(0)
    for weight in task.trainable_weights:
        # Large enough that answers depend on what was read.
        weight.assign(weight + 0.5 * rng.normal(size=weight.shape))
    task.compile(sampler="greedy", jit_compile=False)
    options, questions = {"max_new_tokens": 4, "stop_token_ids": None}, [" and the"] * 2
    found = task.generate(questions, state=task.read(PROMPTS, 40, verbose=0), **options)
    for text, question, answer in zip(PROMPTS, questions, found):
        state = task.read(text, 40, verbose=0)
        assert task.generate(question, state=state, **options) == answer


def test_threads_do_not_disturb_one_another(task):
    """Calls of eight threads, beside one that traces new functions, as on a server."""
    state = task.read(PROMPTS[0], 40, verbose=0)
    tokens = np.arange(3, 15)[None]
    calls = [
        lambda: task.generate("the cat", max_new_tokens=3),
        lambda: task.generate("the cat", max_length=9),
        lambda: task.generate(" dog", max_new_tokens=5, state=state),
        lambda: task.read(PROMPTS, 40, verbose=0)["count"].tolist(),
        lambda: list(stream(task, "the dog", max_length=9)),
        lambda: np.round(task.score(tokens), 3).tolist(),
    ]
    expected = [call() for call in calls]
    task.compile(sampler="greedy", jit_compile=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: calls[i % len(calls)](), range(60)))
    finally:
        sys.setswitchinterval(interval)
    assert found == expected * 10


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_long_prompts_are_read_in_chunks(task, monkeypatch, jit_compile):
    ids = np.random.default_rng(0).integers(3, 20, size=[2, 40])
    task.compile(sampler="greedy", jit_compile=jit_compile)
    whole = task.read(ids, verbose=0)
    monkeypatch.setattr(prompt_reading, "PROMPT_CHUNK", 16)
    in_chunks = task.read(ids, verbose=0)
    caches = (tf.nest.flatten(read["cache"]) for read in (in_chunks, whole))
    for found, expected in zip(*caches, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_error_in_a_chunk_reaches_the_caller_instead_of_the_chunks_that_wait(task, monkeypatch):
    monkeypatch.setattr(prompt_reading, "PROMPT_CHUNK", 16)
    monkeypatch.setattr(prompt_reading, "CHUNKS_AT_ONCE", 3)
    programs = task._block_programs(in_place=False, jit_compile=False)

    def fail(trainable, non_trainable, x, cache, position, *others):
        if int(position[0]) == 16:
            raise MemoryError("of the second chunk")
        return programs[-1](trainable, non_trainable, x, cache, position, *others)

    monkeypatch.setattr(task, "_block_programs", lambda **_: [*programs[:-1], fail])
    with pytest.raises(MemoryError, match="of the second chunk"):
        task.read(np.arange(3, 51)[None], verbose=0)


def test_a_room_smaller_than_the_prompt_is_refused(task):
    count = count_tokens(task, PROMPTS[0])
    with pytest.raises(ValueError, match=f"max_length must be at least {count}, .*prompt"):
        task.read(PROMPTS, max_length=4)
    with pytest.raises(ValueError, match=f"prompt must have at most 4 .* Received: {count}"):
        next(stream(task, PROMPTS[0], max_length=4))
    with pytest.raises(ValueError, match="max_length must be at least 49, .*: max_length=48"):
        task.generate("x" * 48)
    state = task.read(PROMPTS[0], max_length=count, verbose=0)
    with pytest.raises(ValueError, match=f"room for {count} tokens.*: {count + 2} tokens with"):
        task.read("xx", state=state)


def test_warnings_of_lengths(task, monkeypatch):
    monkeypatch.setattr(task, "_generate_tokens", lambda inputs, **_: inputs)
    with pytest.warns(UserWarning, match="exceeds the 48 positions"):
        task.generate("the", max_length=60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.generate("the", max_length=6)


def test_lengths_that_are_refused(task):
    for arguments, message in (
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1. Received: max_new_tokens=0"),
        ({"max_length": 9, "max_new_tokens": 2}, "max_length or max_new_tokens, not both"),
    ):
        with pytest.raises(ValueError, match=message):
            task.generate("the", **arguments)
    for texts in (PROMPTS, np.array(PROMPTS), tf.constant(PROMPTS)):
        with pytest.raises(ValueError, match="max_length must be at least .*: max_length=4"):
            task.generate(texts, max_length=4)
