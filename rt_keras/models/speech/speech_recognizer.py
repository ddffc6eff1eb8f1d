"""Speech recognizer with connectionist temporal classification."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.models.causal_lm.causal_lm_preprocessor import strings_of_tokens
from rt_keras.models.compatible_parts import check_backbone
from rt_keras.models.generation import bucket
from rt_keras.models.presets import Loadable
from rt_keras.models.speech.sound_windows import join_windows, windows_of_sounds
from rt_keras.models.speech.speech_backbone import (
    RoutingTransformerSpeechBackbone,
    positions_of_frames,
)
from rt_keras.models.speech.speech_recognizer_preprocessor import (
    RoutingTransformerSpeechRecognizerPreprocessor,
)
from rt_keras.models.training import Training
from rt_keras.ops.losses.ctc import ctc_loss

# The maximum number of positions of a sound, those of a day.
LONGEST = 25 * 60 * 60 * 24
# The class of the blank, and the logit of what padding cannot be.
BLANK, IMPOSSIBLE = 0, -1e9


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpeechRecognizer(Loadable, Training, keras_hub.models.Task):
    """A model that writes down what is said, by connectionist temporal classification.

    ```
    logits = backbone(inputs) W + b        classes: the blank, and the tokens
    ```

    A text is read off the most likely class of each position: of equal neighbors one is kept, and
    then blanks are left out. Padding is always blank. Train it with `CTCLoss` and
    `rt_keras.callbacks.CentroidEMA`.

    Args:
        backbone: a `RoutingTransformerSpeechBackbone`.
        preprocessor: a `RoutingTransformerSpeechRecognizerPreprocessor`. Defaults to None, for
            inputs of features.
        **kwargs: keyword arguments of `keras_hub.models.Task`, such as `name`.

    Call arguments:
        inputs: dictionary of the inputs of the backbone.
        training: bool, whether to apply dropout and masks, and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, float32 `[batch, frames / 4, vocabulary_size]`.

    Raises:
        TypeError: if the backbone is of another class.
        ValueError: if the backbone has fewer tokens or other features than the preprocessor.

    Source: Graves et al. 2006, Connectionist Temporal Classification; Vyas et al. 2020, Fast
    Transformers with Clustered Attention, section 4.2.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras import models
    >>> from rt_keras.layers import LocalHeads
    >>> heads = [LocalHeads(2, block_size=16)]
    >>> backbone = RoutingTransformerSpeechBackbone(258, 1, 32, 64, heads, num_mel_bins=40)
    >>> preprocessor = RoutingTransformerSpeechRecognizerPreprocessor(
    ...     ByteTokenizer(), models.RoutingTransformerAudioConverter(40)
    ... )
    >>> model = RoutingTransformerSpeechRecognizer(backbone, preprocessor)
    >>> model(preprocessor(tf.zeros([1, 6400]))).shape
    TensorShape([1, 10, 258])
    >>> len(model.transcribe(tf.zeros([1, 6400])))
    1
    """

    kind = "ctc"
    backbone_cls = RoutingTransformerSpeechBackbone
    preprocessor_cls = RoutingTransformerSpeechRecognizerPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        check_backbone(backbone, self.backbone_cls, preprocessor)
        bins = preprocessor and preprocessor.audio_converter.num_mel_bins
        if bins not in (None, backbone.num_mel_bins):
            raise ValueError(
                f"backbone must have the {bins} features of the preprocessor. Received: "
                f"num_mel_bins={backbone.num_mel_bins}"
            )

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        # float32 also under mixed precision.
        self.output_dense = backbone.make_dense(backbone.vocabulary_size, "logits", "float32")
        self.padding_to_blank = PaddingToBlank(dtype="float32", name="padding_to_blank")

        # === Functional Model ===
        inputs = backbone.input
        mask = positions_of_frames(inputs["padding_mask"])
        outputs = self.padding_to_blank(self.output_dense(backbone(inputs)), mask)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile_arguments(self, optimizer="auto", loss="auto", **kwargs):
        """Adds the defaults of `compile`: Adam at 5e-4, with clipped gradients, and `CTCLoss`."""
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(5e-4, global_clipnorm=1.0)
        loss = CTCLoss() if loss == "auto" else loss
        return (), {"optimizer": optimizer, "loss": loss, **kwargs}

    def transcribe(self, x, beam_width=1):
        """Writes down what is said.

        Sounds that are longer than the preprocessor's `sequence_length` are heard in windows of
        that length, which overlap by a quarter.

        Args:
            x: strings `[batch]`, the bytes of WAV files; or float `[batch, samples]`, of 16 kHz.
            beam_width: int, number of texts that are compared. Defaults to 1, for the most likely
                class of each position.

        Returns:
            A list of strings.

        Raises:
            ValueError: if the model has no preprocessor or `beam_width` is less than 1.
        """
        if self.preprocessor is None:
            raise ValueError("model must have a preprocessor to transcribe sounds")
        positive_int("beam_width", beam_width)
        if isinstance(x, (list, tuple)) and not x:
            return []
        labels = decode_labels(self.logits_of_sounds(x), beam_width)
        return texts_of_labels(labels, self.preprocessor.tokenizer)

    def logits_of_sounds(self, x, preprocessor=None):
        """Computes the logits of sounds; see `transcribe`.

        Args:
            x: sounds.
            preprocessor: a preprocessor. Defaults to None, for that of the model.

        Returns:
            float32 `[batch, positions, vocabulary_size]`.
        """
        preprocessor = preprocessor or self.preprocessor

        def logits_of(samples, counts):
            features, mask = preprocessor.audio_converter(samples, counts=counts)
            inputs = {"features": features, "padding_mask": tf.cast(mask, tf.int32)}
            return self.compiled_call(inputs)

        samples, counts = preprocessor.samples(x, truncate=False)
        positions = -(-samples.shape[1] // preprocessor.position_samples)
        window = preprocessor.sequence_length
        if window is not None and positions > window:
            windows = zip(*windows_of_sounds(samples, counts, preprocessor))
            # [windows, batch, positions, classes]
            logits = tf.stack([logits_of(*window) for window in windows])
            return join_windows(logits, counts, preprocessor)
        # Few lengths, so that few programs are compiled.
        length = bucket(max(positions, 1), window or LONGEST) * preprocessor.position_samples
        return logits_of(tf.pad(samples, [[0, 0], [0, length - samples.shape[1]]]), counts)


@keras.saving.register_keras_serializable(package="rt_keras")
class PaddingToBlank(keras.layers.Layer):
    """Makes the blank certain at padding, so that the loss and the texts need no lengths.

    Args:
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: logits, `[batch, length, classes]`.
        mask_of_positions: bool or int `[batch, length]`, 0 for padding.

    Returns:
        Logits of the same shape.

    >>> PaddingToBlank()(tf.ones([1, 2, 2]), tf.constant([[1, 0]])).numpy().tolist()
    [[[1.0, 1.0], [0.0, -1000000000.0]]]
    """

    def call(self, inputs, mask_of_positions):
        blank = tf.range(inputs.shape[-1]) == BLANK
        certain = tf.where(blank, tf.constant(0.0, inputs.dtype), IMPOSSIBLE)  # [classes]
        return tf.where(tf.cast(mask_of_positions, bool)[:, :, None], inputs, certain)

    def compute_output_shape(self, inputs_shape, mask_of_positions_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="rt_keras")
class CTCLoss(keras.losses.Loss):
    """The mean over a batch of `rt_keras.ops.ctc_loss`, in nats per text.

    `keras.losses.CTC` computes the same in a time that grows with the square of the text.

    Args:
        name: string. Defaults to `"ctc"`.
        **kwargs: other keyword arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: int `[batch, labels]`, padded with 0.
        y_pred: logits, `[batch, length, classes]`.

    >>> loss = CTCLoss()(tf.constant([[1]]), tf.zeros([1, 2, 2]))
    >>> round(float(tf.exp(-loss)), 4)
    0.75
    """

    def __init__(self, name="ctc", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        return ctc_loss(y_true, y_pred, BLANK)


def decode_labels(logits, beam_width=1):
    """Finds the likely labels.

    Args:
        logits: float32 `[batch, length, classes]`.
        beam_width: int, number of label sequences that are compared; 1 for the most likely class
            of each position. Defaults to 1.

    Returns:
        int32 `[batch, length]`, padded with the blank.

    >>> logits = tf.one_hot([[1, 1, 0, 1, 2]], 3)
    >>> decode_labels(logits).numpy().tolist()
    [[1, 1, 2, 0, 0]]
    """
    options = {"strategy": "greedy"}
    if beam_width > 1:
        options = {"strategy": "beam_search", "beam_width": beam_width}
    lengths = tf.fill(tf.shape(logits)[:1], tf.shape(logits)[1])
    labels, _ = keras.ops.ctc_decode(logits, lengths, mask_index=BLANK, **options)
    return tf.maximum(tf.cast(labels[0], tf.int32), BLANK)


def texts_of_labels(labels, tokenizer):
    """Converts labels to texts.

    Args:
        labels: int `[batch, labels]`, padded with the blank.
        tokenizer: a tokenizer of `rt_keras.data`.

    Returns:
        A list of strings.

    >>> from rt_keras.data import ByteTokenizer
    >>> texts_of_labels([[112, 113, 0], [0, 0, 0]], ByteTokenizer())
    ['no', '']
    """
    labels = tf.convert_to_tensor(labels)
    return strings_of_tokens(tokenizer, labels, labels != BLANK)
