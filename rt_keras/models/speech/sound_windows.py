"""Windows of sounds that are longer than those in training."""

import tensorflow as tf

# A share of a window on each side, whose logits are those of the windows before and after.
MARGIN = 8


def windows_of_sounds(samples, counts, preprocessor):
    """Cuts sounds into windows of the preprocessor's `sequence_length`, which overlap.

    Args:
        samples: float32 `[batch, samples]`.
        counts: int32 `[batch]`, number of samples of each sound.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor` with a `sequence_length`.

    Returns:
        float32 `[windows, batch, samples of a window]`; and int32 `[windows, batch]`, the number of
        samples in each window.

    >>> import types
    >>> preprocessor = types.SimpleNamespace(sequence_length=8, position_samples=2)
    >>> windows, counts = windows_of_sounds(tf.ones([1, 30]), tf.constant([30]), preprocessor)
    >>> windows.shape, counts.numpy().tolist()
    (TensorShape([3, 1, 16]), [[16], [16], [6]])
    """
    length = preprocessor.sequence_length * preprocessor.position_samples
    hop = _hop_positions(preprocessor) * preprocessor.position_samples
    windows = tf.signal.frame(samples, length, hop, pad_end=True)  # [batch, windows, length]
    starts = hop * tf.range(tf.shape(windows)[1])
    counts = tf.clip_by_value(counts[None] - starts[:, None], 0, length)
    return tf.transpose(windows, [1, 0, 2]), counts


def join_windows(logits, counts, preprocessor):
    """Joins the logits of windows, without the margins where they overlap.

    A sound that one window holds has the logits of that window, as if it was alone.

    Args:
        logits: `[windows, batch, positions, classes]`, of windows from `windows_of_sounds`.
        counts, preprocessor: the same.

    Returns:
        `[batch, all positions, classes]`, where all positions are at least those of the sounds.
    """
    margin, hop = preprocessor.sequence_length // MARGIN, _hop_positions(preprocessor)
    first = logits[0, :, :margin]
    # [windows, batch, hop, classes] -> [batch, windows, hop, classes]
    rest = tf.transpose(logits[:, :, margin : margin + hop], [1, 0, 2, 3])
    batch, classes = tf.shape(rest)[0], logits.shape[-1]
    joined = tf.concat([first, tf.reshape(rest, [batch, -1, classes])], axis=1)
    length = preprocessor.sequence_length
    begin = joined[:, :length]
    short = (counts <= length * preprocessor.position_samples)[:, None, None]
    begin = tf.where(short, logits[0, :, : tf.shape(begin)[1]], begin)
    return tf.concat([begin, joined[:, length:]], axis=1)


def _hop_positions(preprocessor):
    """Returns the number of positions from one window to the next."""
    return preprocessor.sequence_length - 2 * (preprocessor.sequence_length // MARGIN)
