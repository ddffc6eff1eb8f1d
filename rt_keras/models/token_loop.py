"""Decoding token by token: one program for equal blocks, called in a loop that is not compiled.

The caches of a call are variables, which the programs of the blocks update in place. They belong to
the call, so calls do not disturb one another. A model has `token_logits(hidden)` and
`states_in_place(tokens, caches, position, *encoded)`, which returns the hidden states of one token
of each row, `[batch, 1, features]`, and updates the caches.
"""

import functools

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.programs import compile_function, compile_once, make_once
from rt_keras.ops.blocks import size

# A cache has room for twice as many positions as a text needs, rounded up to a power of two, so
# that other texts need no other programs; beyond `LARGE_ROOM` positions of all rows, not for twice
# as many.
LEAST_ROOM, LARGE_ROOM = 1024, 2**14


def continue_tokens(model, tokens, lengths, caches, start, offset, ends, stops, steps, encoded=()):
    """Adds tokens to each row.

    A row whose cache is shorter than its known tokens reads these first.

    Args:
        model: a language model, compiled with the sampler to use.
        tokens: int `[batch, width]`.
        lengths: int `[batch]`, number of known tokens in each row.
        caches: nested variables, the cache of each block. They are updated.
        start: int `[batch]`, number of tokens of each row in the caches, fewer than `lengths`.
        offset: int `[batch]`, number of positions before the first token.
        ends: int `[batch]`, number of tokens at which a row ends.
        stops: int `[any]`, tokens of which each ends its row, if it is not a known token.
        steps: int scalar, maximum number of tokens to read.
        encoded: tuple of the arguments that the blocks take from an encoder. Defaults to `()`.

    Returns:
        int `[batch, width]`.
    """
    even = all(np.all(x == x[0]) for x in (start, offset))
    make = functools.partial(_make_loop, model, even)
    loop = make_once(model, f"tokens, {even=}", make)
    numbers = (tf.constant(x, tf.int32) for x in (start, offset, lengths, ends, stops, steps))
    # [batch, room], so that texts of other lengths use the same function.
    width = tokens.shape[1]
    tokens = tf.pad(tokens, [[0, 0], [0, room_for(width, 1) - width]])
    return loop(tf.cast(tokens, tf.int32), caches, *numbers, encoded)[:, :width]


def _make_loop(model, even):
    """Returns the compiled loop of `continue_tokens`. If `even`, all rows are at one position."""
    choose = compile_function(model, lambda hidden: _draw(model, model.token_logits(hidden)[:, 0]))

    def loop(tokens, caches, start, offset, lengths, ends, stops, steps, encoded):
        def goes_on(step, _, done):
            return (step < steps) & ~tf.reduce_all(done)

        def add_token(step, tokens, done):
            # A row that has ended stays at its last position, for which there is room.
            last = tf.minimum(start + step, ends - 1)
            position = last + offset
            token = tf.gather(tokens, last, axis=1, batch_dims=1)[:, None]  # [batch, 1]
            position = position[0] if even else position
            hidden = model.states_in_place(token, caches, position, *encoded)
            chosen = choose(hidden)  # [batch]
            place = start + step + 1
            is_new = place >= lengths
            written = tf.where(is_new & (place < ends), place, -1)
            here = tf.range(size(tokens, 1)) == written[:, None]  # [batch, room]
            tokens = tf.where(here, chosen[:, None], tokens)
            stopped = is_new & tf.reduce_any(chosen[:, None] == stops, axis=1)
            return step + 1, tokens, done | stopped | (place + 1 >= ends)

        begin = tf.constant(0), tokens, start + 1 >= ends
        return tf.while_loop(goes_on, add_token, begin, parallel_iterations=1)[1]

    return compile_function(model, loop, jit_compile=False)


def draws_in_place(model):
    """Returns whether `continue_tokens` continues texts as the sampler and the model do.

    A sampler that compares continuations does not draw one token at a time. A subclass or a wrapper
    may change the logits of `call_with_cache`, which `continue_tokens` does not call.
    """
    function = getattr(model.call_with_cache, "__func__", None)
    is_ours = function is not None and function.__module__.startswith("rt_keras.")
    return is_ours and type(model.sampler).__call__ is keras_hub.samplers.Sampler.__call__


def add_tokens(model, tokens, cache, index, count):
    """Adds a few tokens to one row, for `rt_keras.models.streaming.stream`.

    Args:
        model: a language model, compiled with the sampler to use.
        tokens: int `[1, width]`, of which the first `index` are known.
        cache: the cache of the first `index - 1` tokens.
        index, count: ints.

    Returns:
        The tokens, of which `index + count` are known, and their cache but the last.
    """
    if model.cached_decoding and draws_in_place(model):
        caches, index = as_variables(cache), np.array([index])
        numbers = index - 1, np.zeros_like(index), index + count, (), count
        return continue_tokens(model, tokens, index, caches, *numbers), caches

    def add_token(tokens, cache, place):
        logits, _, cache = model.next_logits(tokens, cache, place)
        here = tf.range(size(tokens, 1)) == place
        return tf.where(here, _draw(model, logits)[:, None], tokens), cache

    add = compile_once(model, "token", add_token, of_blocks=True)
    for place in range(index, index + count):
        tokens, cache = add(tokens, cache, tf.constant(place))
    return tokens, cache


def _draw(model, logits):
    """Returns the sampler's choice of a token, int `[batch]`, from `[batch, vocabulary_size]`."""
    probabilities = model.sampler.compute_probabilities(logits)
    return tf.cast(model.sampler.get_next_token(probabilities), tf.int32)


def as_variables(caches):
    """Returns caches as variables, those that are variables already as they are."""
    return tf.nest.map_structure(
        lambda x: x if isinstance(x, tf.Variable) else tf.Variable(x, trainable=False), caches
    )


def room_for(length, batch):
    """Returns the number of positions that the cache of a text has room for.

    Args:
        length: int, number of positions that it needs.
        batch: int, number of rows.

    >>> room_for(30, 1), room_for(700, 1), room_for(700, 64)
    (1024, 2048, 1024)
    """
    room = 1 << (length - 1).bit_length()
    return max(2 * room if 2 * room * batch <= LARGE_ROOM else room, LEAST_ROOM)
