"""Rows of tokens that start with padding: positions count from their first token."""

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.generation import array_of, check_prompts, check_sampler, check_tokens
from rt_keras.ops.left_padding import leading_padding, roll_rows


def call_from_first_tokens(call, inputs):
    """Calls a causal backbone on rows that start with their first token.

    So windows, blocks and positions are those of rows without padding at the start.

    Args:
        call: function from the inputs to `[batch, length, hidden_dim]`.
        inputs: dictionary of "token_ids" and "padding_mask", `[batch, length]`.

    Returns:
        The outputs, at the positions of the inputs.
    """
    before = leading_padding(inputs["padding_mask"])
    outputs = call({name: roll_rows(x, -before) for name, x in inputs.items()})
    return roll_rows(outputs, before)


def generate_from_first_tokens(model, generate, mask_name, inputs, stop_token_ids=None):
    """Checks and continues prompts, which may start with padding.

    Args:
        model: the language model, with the sampler to use.
        generate: function of prompts that start with a token, and of the stop tokens.
        mask_name: string, name of the mask among the inputs.
        inputs: dictionary of tensors, arrays or nested lists, among them the prompts' token ids and
            mask, `[batch, max_length]`.
        stop_token_ids: ids that end a sequence. Defaults to None, for no stop tokens.

    Returns:
        What `generate` returns, each row after the padding of its prompt.
    """
    ids_name = mask_name.replace("padding_mask", "token_ids")
    ids = array_of(inputs, ids_name)
    prompts = {ids_name: ids, mask_name: array_of(inputs, mask_name, ids.shape)}
    inputs = {**{name: array_of(inputs, name) for name in inputs}, **prompts}
    mask = inputs[mask_name].astype(bool)  # [batch, max_length]
    check_sampler(model.sampler, model.backbone.vocabulary_size)
    check_tokens(inputs, model.backbone.vocabulary_size)
    if mask.ndim != 2 or not np.any(mask & ~mask[:, :1]):
        check_prompts(mask, mask_name)
        return generate(inputs, stop_token_ids=stop_token_ids) if len(mask) else prompts
    before = leading_padding(mask).numpy()  # [batch]
    least, width = before.min(), mask.shape[1]
    if isinstance(model.sampler, keras_hub.samplers.BeamSampler) and np.any(before > least):
        needed = "must start with equal padding in all rows for a BeamSampler"
        raise ValueError(f"{mask_name} {needed}. Received: {before.tolist()} positions of it")
    moved = {name: roll_rows(x, -before)[:, : width - least] for name, x in prompts.items()}
    check_prompts(moved[mask_name], mask_name)
    texts = generate({**inputs, **moved}, stop_token_ids=stop_token_ids)
    texts = {name: tf.pad(x, [[0, 0], [0, least]]) for name, x in texts.items()}
    # The last tokens of a row, for which there is no place, would be where its padding is.
    inside = tf.range(width) >= before[:, None]
    return {
        name: tf.where(inside, roll_rows(x, before), tf.zeros_like(x)) for name, x in texts.items()
    }
