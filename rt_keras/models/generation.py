"""Generation shared by the models: checks, lengths and masks."""

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.data.tokenizer import check_strings, needs_utf8
from rt_keras.ops.blocks import size

# The smallest bucket of prompt lengths.
SHORTEST_BUCKET = 64
# Logits divided by a lower temperature could overflow float32.
LOWEST_TEMPERATURE = 1e-30


def check_prompts(mask, name="padding_mask"):
    """Checks that prompts can be continued.

    Args:
        mask: bool or int array `[batch, max_length]`, True at the tokens of prompts, which are
            left-aligned.
        name: string, name of the argument in error messages. Defaults to `"padding_mask"`.

    Returns:
        Int, the length of the shortest prompt; 1 for an empty batch.

    Raises:
        ValueError: if `mask` does not have two dimensions, or if a prompt is empty or has padding
            inside.
    """
    mask = np.asarray(mask).astype(bool)
    if mask.ndim != 2:
        raise ValueError(f"{name} must be [batch, max_length]. Received: shape {mask.shape}")
    empty = np.flatnonzero(~mask[:, :1].any(axis=1))
    if len(empty):
        raise ValueError(
            f"{name}: row {empty[0]} is an empty prompt. A prompt must have at least one token, "
            "such as end-of-text, with which the preprocessors start every text"
        )
    gaps = np.flatnonzero((mask[:, 1:] & ~mask[:, :-1]).any(axis=1))
    if len(gaps):
        raise ValueError(f"{name}: row {gaps[0]} has padding inside its prompt")
    return int(mask.sum(axis=1).min()) if len(mask) else 1


def as_tensor(name, rows, shape=None):
    """Converts rows of token ids or of a mask; raises a ValueError if they have another shape."""
    try:
        x = tf.convert_to_tensor(rows)
    except ValueError as error:
        needed = "rows of one length. Pad the shorter rows, and mask the padding"
        lengths = [np.size(row) for row in rows]
        raise ValueError(f"{name} must have {needed}. Received: lengths {lengths}") from error
    if not x.shape.is_compatible_with(shape):
        raise ValueError(f"{name} must be [batch, length], here {shape}. Received: {x.shape}")
    return x


def array_of(inputs, name, shape=None):
    """Returns token ids or a mask from a model's inputs; raises a ValueError without them."""
    if not isinstance(inputs, dict) or name not in inputs:
        given = list(inputs) if isinstance(inputs, dict) else type(inputs).__name__
        needed = f'a dictionary with "{name}", without a preprocessor'
        raise ValueError(f"inputs must be {needed}. Received: {given}")
    return np.asarray(as_tensor(name, inputs[name], shape))


def check_tokens(inputs, vocabulary_size):
    """Raises a ValueError if token ids are out of range or no whole numbers.

    Args:
        inputs: dictionary of the inputs of a model, of which names ending in "token_ids" are
            checked.
        vocabulary_size: int, number of token ids.
    """
    for name, ids in inputs.items():
        if name.endswith("token_ids"):
            ids = np.asarray(ids)
            wrong = ids[(ids < 0) | (ids >= vocabulary_size) | (ids % 1 != 0)]
            if wrong.size:
                raise ValueError(
                    f"{name} must be from 0 to {vocabulary_size - 1}. Received: {wrong[0]}"
                )


def check_sampler(sampler, vocabulary_size):
    """Raises a ValueError if a sampler cannot draw tokens with the arguments of `generate`.

    Args:
        sampler: a `keras_hub.samplers.Sampler`.
        vocabulary_size: int, number of token ids.
    """
    if isinstance(sampler, keras_hub.samplers.SpeculativeSampler):
        given = "a SpeculativeSampler, which needs a draft model; KerasHub's is for Gemma 4"
        raise ValueError(f"sampler must draw from the model alone. Received: {given}")
    # KerasHub checks no argument.
    temperature = getattr(sampler, "temperature", 1.0)
    if not LOWEST_TEMPERATURE <= temperature < float("inf"):
        _refuse(sampler, "temperature", f"finite and at least {LOWEST_TEMPERATURE}")
    if not 0 < getattr(sampler, "p", 1.0) <= 1:
        _refuse(sampler, "p", "above 0 and at most 1")
    k = getattr(sampler, "k", None)
    if k is not None and not 1 <= k <= vocabulary_size:
        _refuse(sampler, "k", f"from 1 to {vocabulary_size}, the number of token ids")
    if getattr(sampler, "num_beams", 1) < 1:
        _refuse(sampler, "num_beams", "at least 1")


def _refuse(sampler, name, allowed):
    raise ValueError(
        f"{name} of {type(sampler).__name__} must be {allowed}. "
        f"Received: {name}={getattr(sampler, name)}"
    )


def check_room(longest, max_length):
    """Raises a ValueError if the longest of some prompts has more tokens than `max_length`."""
    if longest > max_length:
        raise ValueError(
            f"max_length must be at least {longest}, the number of tokens of the longest prompt. "
            f"Received: max_length={max_length}"
        )


def check_positions(length, longest):
    """Raises a ValueError if a sequence has more positions than learned positions.

    Args:
        length: int, number of positions, or None if unknown, which raises no error.
        longest: int, number of learned positions; None for a model without them.
    """
    if None not in (length, longest) and length > longest:
        raise ValueError(
            f"A sequence must have at most max_sequence_length={longest} positions, the number of "
            f"position embeddings. Received: length {length}"
        )


def check_texts(name, texts, tokenizer, limit, added=1):
    """Raises an error if a text has too many tokens or is not a valid string.

    Nothing is checked inside TensorFlow functions, for which `rt_keras.serving` has checks.

    Args:
        name: string, name of the argument in error messages.
        texts: a string, or strings `[batch]`.
        tokenizer: the tokenizer of the texts.
        limit: int, maximum number of tokens.
        added: int, number of special tokens added to each text. Defaults to 1.

    Raises:
        TypeError: if `texts` are not strings.
        ValueError: if a text has too many tokens or is not the UTF-8 that the tokenizer needs.
    """
    if not tf.executing_eagerly():
        return
    if isinstance(texts, bytes):
        raise TypeError(f"{name} must be a string, or a list of strings or bytes. Received: bytes")
    check_strings(name, texts, needs_utf8(tokenizer))
    texts = np.atleast_1d(np.asarray(tf.convert_to_tensor(texts))).tolist()
    for place, text in enumerate(texts):
        row = f"{name} {place}" if len(texts) > 1 else name
        count = len(tokenizer(tf.constant(text))) + added
        if count > limit:
            raise ValueError(
                f"{row} must have at most {limit} tokens, including special tokens. Received: "
                f"{count} tokens"
            )


def start_tokens(preprocessor):
    """Returns a list of the token before a text; empty without one, as in Qwen 3 and SmolLM3."""
    token = preprocessor.tokenizer.start_token_id
    return [token] if getattr(preprocessor, "add_start_token", True) and token is not None else []


def stop_tokens(tokenizer):
    """Returns the default stop tokens of KerasHub's `generate`.

    Args:
        tokenizer: the tokenizer of a causal language model.

    Returns:
        A list of ints.
    """
    tokens = [tokenizer.end_token_id]
    # Llama 3 has two end tokens. Gemma 3 ends its turn in a chat with another token.
    if hasattr(tokenizer, "end_token2_id"):
        tokens.append(tokenizer.end_token2_id)
    if isinstance(tokenizer, keras_hub.tokenizers.Gemma3Tokenizer):
        tokens.append(tokenizer.token_to_id("<end_of_turn>"))
    return tokens


def no_tokens(length, prefix=""):
    """Creates the inputs of generation for an empty batch, which KerasHub does not support.

    Args:
        length: int, number of tokens.
        prefix: string, prefix of the names. Defaults to `""`.

    Returns:
        Dictionary of "token_ids" and "padding_mask", `[0, length]`.
    """
    tokens, mask = tf.zeros([0, length], tf.int32), tf.zeros([0, length], tf.bool)
    return {f"{prefix}token_ids": tokens, f"{prefix}padding_mask": mask}


def bucket(length, max_length):
    """Rounds a length up to a power of two of at least 64, but not above `max_length`.

    Args:
        length: int, at least 1.
        max_length: int.

    >>> [bucket(length, 1000) for length in (1, 64, 65, 700)]
    [64, 64, 128, 1000]
    """
    return min(max(SHORTEST_BUCKET, 1 << (length - 1).bit_length()), max_length)


def shortest_prompt(mask):
    """Computes the length of the shortest prompt, at least 1, in a graph.

    Args:
        mask: bool `[batch, length]`, True at the prompts.

    Returns:
        Int scalar tensor.
    """
    return tf.maximum(tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1)), 1)


def read_chunks(read, tokens, counts, cache, chunk_size):
    """Reads the first tokens of each row chunk by chunk, in a graph.

    Args:
        read: function of the tokens of a chunk, `[batch, chunk_size]`, the cache before it, its
            first position and its number of valid tokens, int `[batch]`; returns the cache after
            the chunk.
        tokens: int `[batch, length]`.
        counts: int `[batch]`, number of tokens to read in each row.
        cache: cache before the first chunk.
        chunk_size: int, number of tokens in a chunk.

    Returns:
        The cache after the last chunk.
    """
    padded = tf.pad(tokens, [[0, 0], [0, chunk_size]])

    def read_chunk(start, cache):
        # [batch, chunk_size]
        chunk = tf.slice(padded, [0, start], [size(tokens, 0), chunk_size])
        cache = read(chunk, cache, start, tf.clip_by_value(counts - start, 0, chunk_size))
        return start + chunk_size, cache

    last = tf.reduce_max(counts)
    return tf.while_loop(lambda start, _: start < last, read_chunk, (0, cache))[1]


def written_tokens(tokens, prompt_mask, stop_token_ids=None):
    """Computes the mask of tokens up to and including the first stop token after the prompt.

    Args:
        tokens: int `[batch, length]`.
        prompt_mask: bool `[batch, length]`, True at the prompt.
        stop_token_ids: ids that end a sequence. Defaults to None, for no stop tokens.

    Returns:
        Bool `[batch, length]`.
    """
    if stop_token_ids is None:
        return tf.ones_like(prompt_mask)
    # [batch, length, stop tokens] -> [batch, length]
    stops = tf.reduce_any(tokens[..., None] == tf.constant(list(stop_token_ids)), axis=-1)
    stops = tf.cast(stops & ~prompt_mask, tf.int32)
    return tf.cumsum(stops, axis=-1, exclusive=True) == 0


def int32_seed(seed):
    """Reduces seeds to int32, as Keras's random generators do.

    >>> int32_seed(tf.constant([7, -1, 2**40], tf.int64)).numpy().tolist()
    [7, 2147483645, 1024]
    """
    return tf.cast(tf.math.floormod(tf.cast(seed, tf.int64), tf.int32.max - 1), tf.int32)
