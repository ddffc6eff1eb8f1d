"""Positions of a model for longer sequences than those that it was trained on."""

import keras
import numpy as np

from rt_keras.arguments import wrong_value

EXTENSIONS = ("repeat", "interpolate")
# Arguments of KerasHub's preprocessors for the length that they pad to.
PACKED_LENGTHS = ("sequence_length", "encoder_sequence_length", "decoder_sequence_length")


def config_for_length(config, max_sequence_length, trained_length=None, scaled=True):
    """Returns an adapted backbone's configuration for longer sequences.

    Learned positions are extended; see `extended`. Positions of rotary embeddings are divided by
    `max_sequence_length / trained_length`, if they are `scaled`.

    Args:
        config: dictionary, configuration of a KerasHub backbone.
        max_sequence_length: int, new maximum length.
        trained_length: int, length that rotary embeddings were trained on. Only for rotary
            embeddings, whose configuration lacks it. Defaults to None.
        scaled: bool, whether to scale positions of rotary embeddings. Heads with a
            `rotary_distance` do not need that. Defaults to True.

    Returns:
        A dictionary.

    Raises:
        ValueError: if the length is shorter, `trained_length` is missing, or positions are learned
            and it is set.

    Source: for rotary embeddings, Chen et al. 2023, Extending Context Window of Large Language
    Models via Positional Interpolation, section 2.3.
    """
    learned = "max_sequence_length" in config
    if learned and trained_length is not None:
        raise ValueError(
            "trained_length is for rotary embeddings; this model has learned positions, "
            f"{config['max_sequence_length']}. Received: trained_length={trained_length}"
        )
    before = config["max_sequence_length"] if learned else trained_length
    if before is None:
        raise ValueError(
            "max_sequence_length requires trained_length for rotary embeddings, such as 4096 for "
            "Llama 2, because the model does not specify it"
        )
    if max_sequence_length < before:
        needed = f"at least {before}, that of the model"
        raise wrong_value("max_sequence_length", needed, max_sequence_length)
    if learned:
        return {**config, "max_sequence_length": max_sequence_length}
    # Without scaling, the model reads this length as well as the one that it was trained on.
    name, value = "trained_length", max_sequence_length
    if scaled:
        name, value = "rotary_scale", max_sequence_length / before
    return {**config, name: value}


def rotary_distance_for(config, max_sequence_length, trained_length):
    """Returns the distance of keys outside the window in sequences longer than the trained ones.

    Args:
        config: dictionary, configuration of a KerasHub backbone.
        max_sequence_length, trained_length: int or None; see `config_for_length`.

    Returns:
        int, half of the trained length; None if positions are learned, or sequences are not longer.

    >>> rotary_distance_for({}, 32768, 8192)
    4096
    """
    lengths = max_sequence_length, trained_length
    if "max_sequence_length" in config or None in lengths or lengths[0] <= lengths[1]:
        return None
    return trained_length // 2


def extended(table, length, extension):
    """Extends a table of learned positions.

    Args:
        table: float array `[positions, features]`.
        length: int, new number of positions.
        extension: "repeat" to repeat the table, as Longformer does with RoBERTa's (Beltagy et al.
            2020, section 5); or "interpolate" to interpolate linearly between consecutive
            positions, from the first to the last.

    Returns:
        `[length, features]`.

    >>> extended(np.array([[0.0], [1.0]]), 3, "repeat").ravel().tolist()
    [0.0, 1.0, 0.0]
    >>> extended(np.array([[0.0], [1.0]]), 3, "interpolate").ravel().tolist()
    [0.0, 0.5, 1.0]
    """
    count = len(table)
    if extension == "repeat":
        return np.resize(table, [length, table.shape[1]])
    places = np.linspace(0, count - 1, length)
    before = np.minimum(places.astype(int), count - 2)
    share = (places - before)[:, None]
    return (1 - share) * table[before] + share * table[before + 1]


def preprocessor_for_length(preprocessor, length):
    """Returns a KerasHub preprocessor that pads to another length, with the same tokenizer.

    Args:
        preprocessor: `keras_hub.models.Preprocessor`, or None.
        length: int, new length.

    Returns:
        A preprocessor, or None.
    """
    if not isinstance(preprocessor, keras.layers.Layer):
        return preprocessor
    config = preprocessor.get_config()
    lengths = {name: length for name in PACKED_LENGTHS if name in config}
    return type(preprocessor).from_config(
        {**config, **lengths, "tokenizer": preprocessor.tokenizer}
    )
