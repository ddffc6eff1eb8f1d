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


def run(sampler, jit_compile=False, stop_token_ids=None):
    call = tf.function(sampler, jit_compile=jit_compile)
    tokens = call(
        next=next_logits,
        prompt=tf.ones([1, WIDTH], tf.int32),
        index=tf.constant(BEGIN),
        mask=(tf.range(WIDTH) < BEGIN)[None],
        stop_token_ids=stop_token_ids,
    )
    return tokens.numpy()


def request_sampler(as_compiled=False, **parameters):
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0, "max_new_tokens": WIDTH}
    values.update(parameters)
    values = {name: tf.constant([value]) for name, value in values.items()}
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
    found = run(request_sampler(as_compiled, **parameters))
    np.testing.assert_array_equal(found, expected)
    assert len(set(found[0, BEGIN:])) > 5


def test_the_loop_ends_at_stop_tokens_and_limits():
    free = run(request_sampler())[0]
    stop = int(free[BEGIN + 5])
    stopped = run(request_sampler(), stop_token_ids=[stop])[0]
    first = BEGIN + list(free[BEGIN:]).index(stop)
    np.testing.assert_array_equal(stopped[: first + 1], free[: first + 1])
    np.testing.assert_array_equal(stopped[first + 1 :], 1)
    limited = run(request_sampler(max_new_tokens=4))[0]
    np.testing.assert_array_equal(limited[: BEGIN + 4], free[: BEGIN + 4])
    np.testing.assert_array_equal(limited[BEGIN + 4 :], 1)
