"""Functions of an exported model that map token ids or strings to scores or strings.

Each function consists of TensorFlow operations only and accepts any batch size: it has no state,
calls no Python, and needs no XLA. (KerasHub's byte-pair tokenizers cache the words that they have
split.)
"""

import math

import tensorflow as tf

from rt_keras.data.tokenizer import needs_utf8
from rt_keras.models.chunked_loss import positions_at_once
from rt_keras.models.generation import start_tokens, stop_tokens
from rt_keras.serving import checks
from rt_keras.serving.request_sampler import RequestSampler
from rt_keras.serving.served_tokenizer import SHARED, served_tokenizer, shared_while_used

MAX_LENGTH = 65536
# The parameters of generation and their defaults.
SAMPLING = {
    "max_new_tokens": tf.constant(64),
    "temperature": tf.constant(1.0),
    "top_p": tf.constant(1.0),
    "top_k": tf.constant(0),
    "seed": tf.constant(0, tf.int64),
}


def scoring_function(model, max_length=MAX_LENGTH):
    """Returns the signature `score` of a causal language model.

    `log_probabilities[b, i] = ln p(ids[b, i] | start, ids[b, 0], ..., ids[b, i - 1])`, with the
    start token before every sequence, or end of text without one, as in training. Padding scores
    0. If its id also occurs in texts, such as that of end of text, only trailing tokens count as
    padding. Logits are computed for a few positions at a time to save memory.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor.
        max_length: int, maximum number of tokens in a sequence. Defaults to 65,536.

    Returns:
        A `tf.function` that maps `ids`, int32 `[batch, length]`, to a dictionary with
        `log_probabilities`, float32 `[batch, length]`. Both dimensions may have any size.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> score = scoring_function(model)
    >>> score(tf.constant([[97, 98, 99]]))["log_probabilities"].shape
    TensorShape([1, 3])
    """
    vocabulary_size = model.backbone.vocabulary_size
    log_probabilities = _log_probabilities(model)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")], autograph=False
    )
    def score(ids):
        ids = checks.checked("ids", ids, 2, [checks.known_tokens(vocabulary_size)])
        lengths = tf.fill([tf.shape(ids)[0]], tf.shape(ids)[1])
        with tf.control_dependencies([checks.not_longer("ids", lengths, max_length)]):
            real = real_tokens(model.preprocessor.tokenizer, ids)
            return {"log_probabilities": log_probabilities(ids, real)}

    return score


def text_scoring_function(model, max_length=MAX_LENGTH):
    """Returns the signature `score_text` of a causal language model.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor.
        max_length: int, maximum number of tokens in a text, including end of text. Defaults to
            65,536.

    Returns:
        A `tf.function` that maps `texts`, string `[batch]`, to a dictionary of tensors `[batch]`:
        `log_probability`, float32, ln p of the whole text and its end of text; `bits_per_byte`,
        float32, -log2 p per byte of the text, or 0 for an empty text; and `tokens`, int32, the
        number of scored tokens, including end of text.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> score_text = text_scoring_function(model)
    >>> score_text(tf.constant(["abc", ""]))["tokens"].numpy().tolist()
    [4, 1]
    """
    tokenizer = model.preprocessor.tokenizer
    served, log_probabilities = served_tokenizer(tokenizer), _log_probabilities(model)
    specs = [tf.TensorSpec([None], tf.string, name="texts")]

    @tf.function(input_signature=specs, autograph=False)
    def score_text(texts):
        texts = checked_texts("texts", texts, tokenizer)
        ids = served.tokens(texts)
        end = tf.fill([ids.nrows(), 1], tokenizer.end_token_id)
        ids = tf.concat([ids, end], axis=1)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        lengths = checks.not_longer("texts", lengths, max_length)
        with tf.control_dependencies([lengths]):
            ids = ids.to_tensor(tokenizer.pad_token_id)
        real = tf.sequence_mask(lengths, tf.shape(ids)[1])
        nats = tf.reduce_sum(log_probabilities(ids, real), axis=1)
        count = tf.cast(tf.strings.length(texts), tf.float32)
        bits_per_byte = tf.math.divide_no_nan(-nats / math.log(2), count)
        return {"log_probability": nats, "bits_per_byte": bits_per_byte, "tokens": lengths}

    return score_text


def generating_function(model, max_length=MAX_LENGTH):
    """Returns the signature `generate` of a causal language model.

    Each row equals the output of `model.generate` for its prompt alone, independent of the rest of
    the batch, with a `max_length` that covers the start token, the prompt and `max_new_tokens`.
    `RequestSampler` describes the sampler. If `model.jit_generate` is True, tokens are drawn as in
    a model compiled by XLA. Strings are UTF-8, with U+FFFD in place of invalid bytes, as in
    `model.generate`.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted one, with a preprocessor.
        max_length: int, maximum number of tokens in total: the start token, a prompt and its
            continuation. Defaults to 65,536.

    Returns:
        A `tf.function` that takes `prompts`, string `[batch]`, and parameters, each a scalar or one
        value per prompt `[batch]`: `max_new_tokens`, int32, at least 1, defaults to 64;
        `temperature`, float32, above 0, defaults to 1; `top_p`, float32, above 0 and at most 1,
        defaults to 1, which disables it; `top_k`, int32, defaults to 0, which disables it; `seed`,
        int64, defaults to 0. It returns a dictionary of strings `[batch]`: `texts`, the prompts
        with their continuations, and `continuations`.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> backbone = models.RoutingTransformerBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, hidden_dim=8,
    ...     intermediate_dim=16, head_groups=[layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(tokenizer)
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> generate = generating_function(model)
    >>> written = generate(tf.constant(["abc"]), max_new_tokens=tf.constant(4))
    >>> written["texts"].numpy()[0].startswith(b"abc")
    True
    """
    tokenizer = model.preprocessor.tokenizer
    served = served_tokenizer(tokenizer)
    start = tf.constant([start_tokens(model.preprocessor)], tf.int32)
    specs = [tf.TensorSpec([None], tf.string, name="prompts")]
    specs += [tf.TensorSpec(None, value.dtype, name=name) for name, value in SAMPLING.items()]

    @tf.function(input_signature=specs, autograph=False)
    def generate(
        prompts,
        max_new_tokens=SAMPLING["max_new_tokens"],
        temperature=SAMPLING["temperature"],
        top_p=SAMPLING["top_p"],
        top_k=SAMPLING["top_k"],
        seed=SAMPLING["seed"],
    ):
        prompts = checked_texts("prompts", prompts, tokenizer)
        batch = tf.shape(prompts)[0]
        sampler = checked_sampler(model, batch, max_new_tokens, temperature, top_p, top_k, seed)
        count = sampler.max_new_tokens
        ids = served.tokens(prompts)
        ids = tf.concat([tf.tile(start, [batch, 1]), ids], axis=1)
        begins = tf.cast(ids.row_lengths(), tf.int32)
        begins = checks.checked("prompts", begins, 1, [_have_tokens])
        begins = checks.not_longer("prompts", begins, max_length)
        # Subtracted, because a sum could overflow an int32.
        room = checks.checked("max_new_tokens", max_length - begins - count, 1, [_has_room])
        ends = max_length - room

        def continued():
            width = tf.reduce_max(ends)
            places = tf.range(width)
            output = model.generate_step(
                {
                    "token_ids": ids.to_tensor(tokenizer.pad_token_id, shape=[-1, width]),
                    "padding_mask": places < begins[:, None],
                },
                stop_tokens(tokenizer),
                sampler=sampler,
            )
            written = tf.cast(output["padding_mask"], tf.bool) & (places < ends[:, None])
            new = written & (places >= begins[:, None])
            return tuple(served.strings(output["token_ids"], kept) for kept in (written, new))

        texts, new = tf.cond(batch > 0, continued, lambda: (prompts, prompts))
        return {"texts": texts, "continuations": new}

    return generate


def _have_tokens(counts):
    return counts > 0, "a prompt must have at least one token; the numbers of tokens are"


def _has_room(room):
    return room >= 0, "a prompt and its new tokens exceed the limit; the room left is"


def checked_sampler(model, batch, max_new_tokens, temperature, top_p, top_k, seed):
    """Returns the `RequestSampler` of a request's parameters, scalars or one value per row."""
    return RequestSampler(
        temperature=checks.one_a_row("temperature", temperature, batch, checks.temperature),
        top_p=checks.one_a_row("top_p", top_p, batch, checks.share),
        top_k=checks.one_a_row("top_k", top_k, batch, checks.at_least_zero),
        seed=checks.one_a_row("seed", seed, batch),
        max_new_tokens=checks.one_a_row("max_new_tokens", max_new_tokens, batch, checks.above_zero),
        as_compiled=model.jit_generate,
    )


def checked_texts(name, texts, tokenizer):
    """Checks that the tokenizer can read texts `[batch]`, and returns them."""
    conditions = [checks.valid_utf8] if needs_utf8(tokenizer) else []
    return checks.checked(name, texts, 1, conditions)


def token_before(preprocessor):
    """Returns the token before the first one of a text: the start token, or else end of text."""
    return [*start_tokens(preprocessor), preprocessor.tokenizer.end_token_id][0]


def real_tokens(tokenizer, ids):
    """Returns a mask of the ids `[batch, length]` that are not padding; see `scoring_function`."""
    real = ids != tokenizer.pad_token_id
    if tokenizer.pad_token_id in stop_tokens(tokenizer):
        real = tf.cumsum(tf.cast(real, tf.int32), axis=1, reverse=True) > 0
    return real


@shared_while_used
def _log_probabilities(model):
    """Returns a function of ids `[batch, length]` and a mask to ln p, 0 for padding."""

    def log_probabilities(ids, real):
        # The model cannot run on empty input.
        return tf.cond(
            tf.size(ids) > 0, lambda: _scored(model, ids, real), lambda: tf.cast(ids, tf.float32)
        )

    specs = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool)]
    return tf.function(log_probabilities, specs, **SHARED)


def _scored(model, ids, real):
    start = tf.fill([tf.shape(ids)[0], 1], token_before(model.preprocessor))
    # The start token is real even if its id is that of padding.
    before = [tf.concat([start, ids], axis=1), tf.concat([tf.ones_like(start) > 0, real], axis=1)]
    token_ids, mask = (tf.cast(values[:, :-1], tf.int32) for values in before)
    hidden = model.hidden_states({"token_ids": token_ids, "padding_mask": mask}, training=False)
    return tf.where(real, -nats_in_chunks(model, hidden, ids), 0.0)


def nats_in_chunks(model, hidden, ids):
    """Computes -ln p of ids `[batch, length]` from the hidden states of the previous positions."""
    chunk_size = positions_at_once(model.backbone.vocabulary_size, tf.size(ids))
    return model.token_losses(hidden, ids, chunk_size)[0]
