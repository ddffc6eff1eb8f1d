"""The function of an exported encoder-decoder, from strings to strings."""

import tensorflow as tf

from rt_keras.models.generation import stop_tokens
from rt_keras.serving import checks
from rt_keras.serving.served_tokenizer import served_tokenizer
from rt_keras.serving.signatures import MAX_LENGTH, SAMPLING, checked_sampler, checked_texts


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
    specs = [tf.TensorSpec([None], tf.string, name="texts")]
    specs += [tf.TensorSpec(None, value.dtype, name=name) for name, value in SAMPLING.items()]

    @tf.function(input_signature=specs, autograph=False)
    def translate(
        texts,
        max_new_tokens=SAMPLING["max_new_tokens"],
        temperature=SAMPLING["temperature"],
        top_p=SAMPLING["top_p"],
        top_k=SAMPLING["top_k"],
        seed=SAMPLING["seed"],
    ):
        texts = checked_texts("texts", texts, tokenizer)
        batch = tf.shape(texts)[0]
        sampler = checked_sampler(model, batch, max_new_tokens, temperature, top_p, top_k, seed)
        room = max_length - 1 - sampler.max_new_tokens
        room = checks.checked("max_new_tokens", room, 1, [_has_room])
        ends = max_length - room
        start, end = (
            tf.fill([batch, 1], token)
            for token in (tokenizer.start_token_id, tokenizer.end_token_id)
        )
        ids = tf.concat([start, served.tokens(texts), end], axis=1)
        lengths = checks.not_longer("texts", tf.cast(ids.row_lengths(), tf.int32), max_length)

        def translated():
            read, width = tf.range(tf.reduce_max(lengths)), tf.reduce_max(ends)
            places = tf.range(width)
            output = model.generate_step(
                {
                    "encoder_token_ids": ids.to_tensor(tokenizer.pad_token_id),
                    "encoder_padding_mask": read < lengths[:, None],
                    "decoder_token_ids": tf.pad(start, [[0, 0], [0, width - 1]]),
                    "decoder_padding_mask": tf.fill([batch, width], False) | (places == 0),
                },
                stop_tokens(tokenizer),
                sampler=sampler,
            )
            written = tf.cast(output["decoder_padding_mask"], tf.bool)
            new = written & (places > 0) & (places < ends[:, None])
            return served.strings(output["decoder_token_ids"], new)

        return {"translations": tf.cond(batch > 0, translated, lambda: texts)}

    return translate


def _has_room(room):
    return room >= 0, "it exceeds the limit of a translation; the room left is"
