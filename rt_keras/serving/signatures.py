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
# The defaults of the parameters of generation, and their specifications.
COUNT, TEMPERATURE, TOP_P = tf.constant(64), tf.constant(1.0), tf.constant(1.0)
TOP_K, SEED = tf.constant(0), tf.constant(0, tf.int64)
SAMPLING = [
    tf.TensorSpec(None, tf.int32, name="max_new_tokens"),
    tf.TensorSpec(None, tf.float32, name="temperature"),
    tf.TensorSpec(None, tf.float32, name="top_p"),
    tf.TensorSpec(None, tf.int32, name="top_k"),
    tf.TensorSpec(None, tf.int64, name="seed"),
]


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
    log_probabilities = _log_probabilities(model)
    specs = [tf.TensorSpec([None, None], tf.int32, name="ids")]

    @tf.function(input_signature=specs, autograph=False)
    def score(ids):
        ids = checked_ids(model, ids, max_length)
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
        end = tf.fill([tf.size(texts), 1], tokenizer.end_token_id)
        ids = tf.concat([served.tokens(texts), end], axis=1)
        lengths = checks.not_longer("texts", tf.cast(ids.row_lengths(), tf.int32), max_length)
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
    specs = [tf.TensorSpec([None], tf.string, name="prompts"), *SAMPLING]

    @tf.function(input_signature=specs, autograph=False)
    def generate(
        prompts, max_new_tokens=COUNT, temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K, seed=SEED
    ):
        prompts = checked_texts("prompts", prompts, tokenizer)
        batch = tf.shape(prompts)[0]
        sampler = checked_sampler(model, batch, max_new_tokens, temperature, top_p, top_k, seed)
        ids = tf.concat([tf.tile(start, [batch, 1]), served.tokens(prompts)], axis=1)
        begins = tf.cast(ids.row_lengths(), tf.int32)
        begins = checks.checked("prompts", begins, 1, [_have_tokens])
        begins = checks.not_longer("prompts", begins, max_length)
        # Subtracted, because a sum could overflow an int32.
        room = max_length - begins - sampler.max_new_tokens
        ends = max_length - checks.checked("max_new_tokens", room, 1, [_has_room])

        def continued():
            width = tf.reduce_max(ends)
            inputs = {
                "token_ids": ids.to_tensor(tokenizer.pad_token_id, shape=[-1, width]),
                "padding_mask": tf.sequence_mask(begins, width),
            }
            tokens, written, new = with_continuations(model, inputs, sampler)
            return served.strings(tokens, written), served.strings(tokens, new)

        texts, new = tf.cond(batch > 0, continued, lambda: (prompts, prompts))
        return {"texts": texts, "continuations": new}

    return generate


def translating_function(model, max_length=MAX_LENGTH):
    """Returns the signature `translate` of an encoder-decoder language model.

    Each row equals the output of `model.generate` for its text alone, independent of the rest of
    the batch, as for `generating_function`.

    Args:
        model: a `RoutingTransformerSeq2SeqLM` with a preprocessor.
        max_length: int, maximum number of tokens of a text, including the two ends of text around
            it, and of a translation, including the end of text before it. Defaults to 65,536.

    Returns:
        A `tf.function` that takes `texts`, string `[batch]`, and the parameters of
        `generating_function`. It returns a dictionary of strings `[batch]`: `translations`.

    >>> from rt_keras import data, layers, models
    >>> tokenizer = data.ByteTokenizer()
    >>> heads = [layers.FullHeads(2)]
    >>> backbone = models.RoutingTransformerSeq2SeqBackbone(
    ...     vocabulary_size=tokenizer.vocabulary_size(), num_encoder_layers=1, num_layers=1,
    ...     hidden_dim=8, intermediate_dim=16, encoder_head_groups=heads, head_groups=heads,
    ...     cross_head_groups=heads)
    >>> preprocessor = models.RoutingTransformerSeq2SeqLMPreprocessor(tokenizer, 32, 32)
    >>> model = models.RoutingTransformerSeq2SeqLM(backbone, preprocessor)
    >>> translate = translating_function(model)
    >>> made = translate(tf.constant(["abc", ""]), max_new_tokens=tf.constant(4))
    >>> made["translations"].shape
    TensorShape([2])
    """
    tokenizer = model.preprocessor.tokenizer
    served = served_tokenizer(tokenizer)
    specs = [tf.TensorSpec([None], tf.string, name="texts"), *SAMPLING]

    @tf.function(input_signature=specs, autograph=False)
    def translate(
        texts, max_new_tokens=COUNT, temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K, seed=SEED
    ):
        texts = checked_texts("texts", texts, tokenizer)
        batch = tf.shape(texts)[0]
        sampler = checked_sampler(model, batch, max_new_tokens, temperature, top_p, top_k, seed)
        room = max_length - 1 - sampler.max_new_tokens
        ends = max_length - checks.checked("max_new_tokens", room, 1, [_has_room])
        start = tf.fill([batch, 1], tokenizer.start_token_id)
        end = tf.fill([batch, 1], tokenizer.end_token_id)
        ids = tf.concat([start, served.tokens(texts), end], axis=1)
        lengths = checks.not_longer("texts", tf.cast(ids.row_lengths(), tf.int32), max_length)

        def translated():
            width = tf.reduce_max(ends)
            inputs = {
                "encoder_token_ids": ids.to_tensor(tokenizer.pad_token_id),
                "encoder_padding_mask": tf.sequence_mask(lengths),
                "decoder_token_ids": tf.pad(start, [[0, 0], [0, width - 1]]),
                "decoder_padding_mask": tf.sequence_mask(tf.ones([batch], tf.int32), width),
            }
            tokens, _, new = with_continuations(model, inputs, sampler, "decoder_")
            return served.strings(tokens, new)

        return {"translations": tf.cond(batch > 0, translated, lambda: texts)}

    return translate


def _have_tokens(counts):
    return counts > 0, "a prompt must have at least one token; the numbers of tokens are"


def _has_room(room):
    return room >= 0, "the tokens exceed the limit of the model; the room left is"


def with_continuations(model, inputs, sampler, prefix=""):
    """Continues prompts.

    Args:
        model: a language model.
        inputs: dictionary as for `generate_step` of the model.
        sampler: a `RequestSampler`.
        prefix: string, prefix of the names of the decoder's inputs. Defaults to `""`.

    Returns:
        Token ids, and masks of the prompts with their continuations and of the continuations alone,
        `[batch, max_length]`.
    """
    stops = stop_tokens(model.preprocessor.tokenizer)
    output = model.generate_step(inputs, stops, sampler=sampler)
    lengths = tf.cast(inputs[f"{prefix}padding_mask"], tf.int32)
    begins = tf.reduce_sum(lengths, axis=1, keepdims=True)  # [batch, 1]
    tokens, written = output[f"{prefix}token_ids"], output[f"{prefix}padding_mask"]
    places = tf.range(tf.shape(tokens)[1])
    ends = begins + sampler.max_new_tokens[:, None]
    written = tf.cast(written, tf.bool) & (places < ends)
    return tokens, written, written & (places >= begins)


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


def checked_ids(model, ids, max_length, *conditions):
    """Checks the ids `[batch, length]` of sequences to score, and returns them."""
    known = checks.from_0_to(model.backbone.vocabulary_size - 1)
    ids = checks.checked("ids", ids, 2, [known, *conditions])
    lengths = tf.fill([tf.shape(ids)[0]], tf.shape(ids)[1])
    with tf.control_dependencies([checks.not_longer("ids", lengths, max_length)]):
        return tf.identity(ids)


def checked_texts(name, texts, tokenizer):
    """Checks that the tokenizer can read texts `[batch]`, and returns them."""
    return checks.checked(name, texts, 1, [checks.valid_utf8] if needs_utf8(tokenizer) else [])


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

    def scored(ids, real):
        start = tf.fill([tf.shape(ids)[0], 1], token_before(model.preprocessor))
        # The start token is real even if its id is that of padding.
        mask = tf.concat([tf.ones_like(start), tf.cast(real, tf.int32)], axis=1)[:, :-1]
        inputs = {"token_ids": tf.concat([start, ids], axis=1)[:, :-1], "padding_mask": mask}
        hidden = model.hidden_states(inputs, training=False)
        return tf.where(real, -nats_in_chunks(model, hidden, ids), 0.0)

    def log_probabilities(ids, real):
        # The model cannot run on empty input.
        nothing = tf.cast(ids, tf.float32)
        return tf.cond(tf.size(ids) > 0, lambda: scored(ids, real), lambda: nothing)

    specs = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool)]
    return tf.function(log_probabilities, specs, **SHARED)


def nats_in_chunks(model, hidden, ids):
    """Computes -ln p of ids `[batch, length]` from the hidden states of the previous positions."""
    chunk_size = positions_at_once(model.backbone.vocabulary_size, tf.size(ids))
    return model.token_losses(hidden, ids, chunk_size)[0]
