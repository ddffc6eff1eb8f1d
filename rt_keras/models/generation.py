"""What the models share of generation: how a prompt is taken, and which function is compiled."""

import numpy as np
import tensorflow as tf

from rt_keras.data.tokenizer import check_strings

# The shortest stretch of a prompt that the compiled function is made for.
SHORTEST_BUCKET = 64


class CompiledGeneration:
    """What models have before KerasHub's bases: how `compile` has generation compiled."""

    # Whether XLA compiles generation; see `compile`.
    jit_generate = True
    # The compiled functions of `rt_keras.models.streaming`, for the sampler of the last `compile`.
    stream_functions = None

    def compile(self, *args, jit_compile="auto", **kwargs):
        """As that of KerasHub's base class; "auto" lets XLA compile generation anywhere."""
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.jit_generate = bool(jit_compile)
        self.generate_function = self.stream_functions = None


def make_generate_function(model, mask_name="padding_mask"):
    """The function that KerasHub's `generate` calls on a batch of prompts.

    XLA compiles it, on every device, unless the model was compiled with `jit_compile=False`: only
    so are caches changed in place. It is compiled once for each shape of its inputs and each bucket
    of the prompts' lengths: the power of two, from 64 up, that holds the shortest prompt.

    Args:
        model: with `generate_step(inputs, stop_token_ids, prefill_length=...)` and `jit_generate`.
        mask_name: of the input that is True where a prompt is.

    Returns:
        A function of `(inputs, stop_token_ids)`.
    """
    step = model.generate_step
    if not model.run_eagerly:
        step = tf.function(step, jit_compile=model.jit_generate)

    def generate(inputs, stop_token_ids=None):
        check_sampler(model.sampler)
        check_tokens(inputs, model.backbone.vocabulary_size)
        mask = np.asarray(inputs[mask_name])
        shortest = check_prompts(mask, mask_name)
        length = bucket(shortest, mask.shape[1]) if model.cached_decoding else None
        return step(inputs, stop_token_ids=stop_token_ids, prefill_length=length)

    return generate


def check_prompts(mask, name="padding_mask"):
    """The length of the shortest prompt; an error where prompts cannot be continued.

    Args:
        mask: bool or int array `[batch, max_length]`, which tokens are prompts.
        name: what the error calls it.

    Raises:
        ValueError: if a row has no token or its tokens do not stand at the left.
    """
    mask = np.asarray(mask).astype(bool)
    if mask.ndim != 2:
        raise ValueError(f"{name} must be [batch, max_length]. Received: shape {mask.shape}")
    empty = np.flatnonzero(~mask[:, :1].any(axis=1))
    if mask[empty].any():
        raise ValueError(f"{name}: row {empty[0]} starts with padding; prompts stand at the left")
    if len(empty):
        raise ValueError(
            f"{name}: row {empty[0]} has no token to go on from. A prompt has at least one, such "
            "as end-of-text, with which the preprocessors start every text."
        )
    gaps = np.flatnonzero((mask[:, 1:] & ~mask[:, :-1]).any(axis=1))
    if len(gaps):
        raise ValueError(f"{name}: row {gaps[0]} has padding inside of its prompt")
    return int(mask.sum(axis=1).min()) if len(mask) else 1


def check_tokens(inputs, vocabulary_size):
    """Raises a ValueError where inputs named token_ids hold an id that is of no token."""
    for name, ids in inputs.items():
        if name.endswith("token_ids"):
            ids = np.asarray(ids)
            wrong = ids[(ids < 0) | (ids >= vocabulary_size)]
            if wrong.size:
                raise ValueError(f"{name}: {wrong[0]} must be from 0 to {vocabulary_size - 1}")


def check_sampler(sampler):
    """Raises a ValueError where a sampler's numbers are out of range, which KerasHub takes."""
    name = type(sampler).__name__
    temperature = getattr(sampler, "temperature", 1.0)
    if not temperature > 0:
        raise ValueError(f"{name} has temperature={temperature}; it must be above 0")
    share = getattr(sampler, "p", 1.0)
    if not 0 < share <= 1:
        raise ValueError(f"{name} has p={share}; it must be above 0 and at most 1")
    for option in ("k", "num_beams"):
        count = getattr(sampler, option, None)
        if count is not None and count < 1:
            raise ValueError(f"{name} has {option}={count}; it must be at least 1")


def check_texts(name, texts, tokenizer, limit, added=1):
    """Raises a ValueError where a text is too long to be taken whole, or cannot be read.

    Inside TensorFlow functions nothing is checked: `rt_keras.serving` has checks for those.

    Args:
        name: what the error calls the texts.
        texts: a string, or strings `[batch]`.
        tokenizer: that which reads them.
        limit: the most tokens that there is room for.
        added: tokens that are put around each text.
    """
    if not tf.executing_eagerly():
        return
    check_strings(name, texts, tokenizer.needs_utf8)
    texts = np.atleast_1d(np.asarray(tf.convert_to_tensor(texts))).tolist()
    for place, text in enumerate(texts):
        row = f"{name} {place}" if len(texts) > 1 else name
        count = len(tokenizer(text)) + added
        if count > limit:
            raise ValueError(
                f"{row}: it makes {count} tokens, those put around it included; there is room for "
                f"{limit}"
            )


def bucket(length, max_length):
    """The smallest power of two from 64 up that is at least `length`, but at most `max_length`.

    >>> [bucket(length, 1000) for length in (1, 64, 65, 700)]
    [64, 64, 128, 1000]
    """
    return min(max(SHORTEST_BUCKET, 1 << (length - 1).bit_length()), max_length)


def shortest_prompt(mask):
    """The number of tokens of the shortest prompt, at least 1, as a scalar tensor."""
    return tf.maximum(tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1)), 1)


def pad_length(x, length):
    """`[batch, n, ...]` with zeros behind, to make `length` of n."""
    after = length - tf.shape(x)[1]
    return tf.pad(x, [[0, 0], [0, after]] + [[0, 0]] * (x.shape.rank - 2))


def written_tokens(tokens, prompt_mask, stop_token_ids=None):
    """Which tokens count: all up to the first stop token behind the prompt.

    Args:
        tokens: int `[batch, length]`.
        prompt_mask: bool `[batch, length]`, True where the prompt is.
        stop_token_ids: ids that end a sequence, or None.

    Returns:
        bool `[batch, length]`.
    """
    if stop_token_ids is None:
        return tf.ones_like(prompt_mask)
    stops = tf.reduce_any(tokens[..., None] == tf.constant(list(stop_token_ids)), axis=-1)
    stops = tf.cast(stops & ~prompt_mask, tf.int32)
    return tf.cumsum(stops, axis=-1, exclusive=True) == 0
