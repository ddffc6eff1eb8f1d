import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow


def split(outputs, name):
    """Splits the result of a signature into one output and the state."""
    return outputs.pop(name), outputs


def random_ids(rows, length):
    return np.random.default_rng(0).integers(3, 250, [rows, length])


def scored(served, ids, state):
    return split(served.ask("score_next", ids=ids, **state), "log_probabilities")


def test_chunks_whose_rows_may_have_fewer_tokens_score_what_the_whole_does(served):
    ids = random_ids(2, 30)
    expected = served.ask("score", ids=ids)["log_probabilities"]
    padded = ids[:, :20] * (np.arange(20) < np.array([[20], [12]]))
    first, state = scored(served, padded, served.ask("new_state", rows=2))
    np.testing.assert_allclose(first[0], expected[0, :20], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(first[1, 12:], 0)
    nothing, state = scored(served, np.zeros([2, 3]), state)
    np.testing.assert_array_equal(nothing, 0)
    rest, _ = scored(served, np.stack([ids[0, 20:30], ids[1, 12:22]]), state)
    np.testing.assert_allclose(rest[0], expected[0, 20:], rtol=0, atol=1e-4)
    np.testing.assert_allclose(rest[1], expected[1, 12:22], rtol=0, atol=1e-4)


def test_a_chat_goes_on_where_it_was(served):
    prompts = ["once upon", "the"]
    expected = served.ask("generate", prompts=prompts, top_k=1, max_new_tokens=9)
    # The prompts are given in two parts, as ids and as texts.
    ids = tf.ragged.constant([[x + 2 for x in text.encode()] for text in ("once ", "t")])
    _, state = scored(served, ids.to_tensor().numpy(), served.ask("new_state", rows=2))
    found = []
    for more, count in ((["upon", "he"], [4, 2]), (["", ""], [5, 7])):
        outputs = served.ask("generate_next", prompts=more, top_k=1, max_new_tokens=count, **state)
        texts, state = split(outputs, "continuations")
        found.append(texts)
    together = [b"".join(parts) for parts in zip(*found)]
    assert together == expected["continuations"].tolist()


# A tensor in the state of one text, and the error about it.
SHAPE = "_must_have_the_shape_of_new_state"
BAD_STATES = [
    ("state_00", np.zeros([1, 1, 15, 8], "float32"), f"state_00{SHAPE}"),
    ("state_05", np.int32(3), f"state_05{SHAPE}"),
    ("state_05", [-1], "state_05: it must be from 0 to .* but is.*-1"),
    ("state_05", [2**31 - 1], "state_05: it must be from 0 to .*2147483647"),
    ("state_06", [258], "state_06: it must be from 0 to 257.*258"),
]


def test_a_tensor_that_is_of_no_state_is_named(served):
    one, three = (served.ask("new_state", rows=rows) for rows in (1, 3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="state_00: it must have a row for"):
        served.ask("score_next", ids=random_ids(2, 4), **three)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids: padding must be at the end"):
        served.ask("score_next", ids=[[5, 0, 6]], **one)
    for name, value, message in BAD_STATES:
        for signature, inputs in (
            ("score_next", {"ids": [[5, 6, 7]]}),
            ("generate_next", {"prompts": ["ab"]}),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                served.ask(signature, **inputs, **{**one, name: value})
            assert len(served.ask(signature, **inputs, **one)) == 8
