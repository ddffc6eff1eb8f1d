import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.serving import RequestSampler

samplers = keras_hub.samplers
WIDTH, BEGIN, VOCABULARY = 24, 3, 50
TABLE = np.random.default_rng(0).normal(size=[VOCABULARY, VOCABULARY]).astype("float32") * 2


def next_logits(tokens, cache, index):
    """Returns logits that depend on the last token."""
    return tf.gather(TABLE, tf.gather(tokens, index - 1, axis=1)), None, cache


def run(sampler, rows=1, begins=None, jit_compile=False, stop_token_ids=None):
    begins = tf.constant(begins or [BEGIN] * rows)
    call = tf.function(sampler, jit_compile=jit_compile)
    tokens = call(
        next=next_logits,
        prompt=tf.ones([rows, WIDTH], tf.int32),
        index=tf.reduce_min(begins),
        mask=tf.range(WIDTH) < begins[:, None],
        stop_token_ids=stop_token_ids,
    )
    return tokens.numpy()


def request_sampler(rows, as_compiled=False, **parameters):
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0, "max_new_tokens": WIDTH}
    values.update(parameters)
    values = {name: tf.repeat(tf.constant(value), rows) for name, value in values.items()}
    return RequestSampler(**values, as_compiled=as_compiled)


@pytest.mark.parametrize("as_compiled", [False, True])
@pytest.mark.parametrize(
    "sampler, parameters",
    [
        (samplers.RandomSampler(temperature=0.7, seed=5), {"temperature": 0.7, "seed": 5}),
        (samplers.TopKSampler(k=7, seed=6), {"top_k": 7, "seed": 6}),
        (samplers.TopPSampler(p=0.8, seed=7), {"top_p": 0.8, "seed": 7}),
        (samplers.TopPSampler(p=0.8, k=5, seed=8), {"top_p": 0.8, "top_k": 5, "seed": 8}),
    ],
)
def test_draws_are_those_of_keras_hub(sampler, parameters, as_compiled):
    # The generator's state is reset to the seed for each way of running it.
    sampler.seed_generator.state.assign([sampler.seed, 0])
    expected = run(sampler, jit_compile=as_compiled)
    found = run(request_sampler(1, as_compiled, **parameters))
    np.testing.assert_array_equal(found, expected)
    assert len(set(found[0, BEGIN:])) > 5


def test_rows_are_drawn_alone_with_parameters_of_their_own():
    begins = [3, 9, 3, 5]
    parameters = {
        "temperature": [1.0, 0.5, 1.0, 2.0],
        "top_p": [1.0, 0.7, 1.0, 0.9],
        "top_k": [0, 5, 0, 7],
        "seed": [1, 2, 1, 3],
        "max_new_tokens": [WIDTH] * 4,
    }
    sampler = RequestSampler(**{name: tf.constant(x) for name, x in parameters.items()})
    together = run(sampler, rows=4, begins=begins)
    for row in range(4):
        own = {name: x[row] for name, x in parameters.items()}
        alone = run(request_sampler(1, **own), begins=begins[row : row + 1])
        np.testing.assert_array_equal(together[row], alone[0])
    assert (together[0] != together[3]).any()


def test_the_loop_ends_at_stop_tokens_and_limits():
    free = run(request_sampler(1))[0]
    stop = int(free[BEGIN + 5])
    stopped = run(request_sampler(1), stop_token_ids=[stop])[0]
    first = BEGIN + list(free[BEGIN:]).index(stop)
    np.testing.assert_array_equal(stopped[: first + 1], free[: first + 1])
    np.testing.assert_array_equal(stopped[first + 1 :], 1)
    limited = run(request_sampler(1, max_new_tokens=4))[0]
    np.testing.assert_array_equal(limited[: BEGIN + 4], free[: BEGIN + 4])
    np.testing.assert_array_equal(limited[BEGIN + 4 :], 1)
