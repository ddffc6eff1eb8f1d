"""Training of text embedders on pairs of a question and passages."""

import keras
import numpy as np
import tensorflow as tf

from rt_keras.arguments import POSITIVE, check, wrong_value
from rt_keras.data import progress
from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.models.generation import bucket
from rt_keras.models.training import ModelCall, Training

# Number of texts that are embedded at once.
TEXTS_AT_ONCE = 32
# Score of a passage that does not count.
NO_SCORE = -1e9


class Contrastive(Training):
    """Mixin of text embedders that `fit` trains on questions and their passages.

    In a batch, all passages of the other questions are wrong answers to a question:

    ```
    s_ij = question_i · passage_j / temperature
    loss_i = -log(exp(s_ii) / Σ_j exp(s_ij))
    ```

    With several replicas, j goes over the passages of all of them.

    List the mixin before KerasHub's base classes. It adds a second kind of inputs to a call: a
    dictionary of "question", the inputs of one text, and "passages", the inputs of `passages` texts
    `[batch, passages, ...]`, the first of which belongs to the question. The output is then
    `[batch, 1 + passages, embedding_dim]`, with the question first, divided by the temperature.

    Args:
        *args, **kwargs: arguments of the model.
        temperature: float, divisor of the similarities in the loss. Defaults to 0.05.
        question_length: int, number of tokens at which questions are truncated. Defaults to None,
            for the preprocessor's `sequence_length`.

    Source: Krishna et al. 2021, Hurdles to Progress in Long-form Question Answering, section 2.1,
    and Karpukhin et al. 2020, Dense Passage Retrieval, section 3.2.
    """

    loss_reads_all_replicas = True

    def __init__(self, *args, temperature=0.05, question_length=None, **kwargs):
        check("temperature", temperature, POSITIVE)
        positive_int_or_none("question_length", question_length)
        super().__init__(*args, **kwargs)
        self.temperature, self.question_length = temperature, question_length

    def get_config(self):
        options = {"temperature": self.temperature, "question_length": self.question_length}
        return {**super().get_config(), **options}

    def compile_arguments(self, optimizer="auto", loss="auto", **kwargs):
        if loss == "auto":
            loss = InBatchLoss()
        return (optimizer, loss), kwargs

    def __call__(self, inputs, training=None, **kwargs):
        if not (isinstance(inputs, dict) and "question" in inputs):
            return super().__call__(inputs, training=training, **kwargs)
        return ModelCall(self, self._embed_pairs)(inputs, training=training)

    def _embed_pairs(self, inputs, training):
        passages = inputs["passages"]
        counts = tf.shape(tf.nest.flatten(passages)[0])[:2]
        # [batch, passages, ...] -> [batch * passages, ...]
        passages = tf.nest.map_structure(
            lambda x: tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0)), passages
        )
        question = self(inputs["question"], training=training) / self.temperature
        passages = self(passages, training=training)
        # [batch, passages, embedding_dim]
        passages = tf.reshape(passages, tf.concat([counts, [passages.shape[-1]]], axis=0))
        return tf.concat([question[:, None], passages], axis=1)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        """Applies the preprocessor, also to a dictionary of "question" and "passages".

        Without labels, all questions count.
        """
        if self.preprocessor is None or not (isinstance(x, dict) and "question" in x):
            return super().preprocess_samples(x, y, sample_weight)
        y = tf.ones_like(x["question"], tf.int32) if y is None else y
        x = pair_inputs(self.preprocessor, question_length=self.question_length, **x)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def embed_texts(self, texts, sequence_length=None, preprocessor=None, verbose=0):
        """Computes the embeddings of texts, batch by batch.

        Args:
            texts: list, array or tensor of strings.
            sequence_length: int, number of tokens at which a text is truncated. Defaults to the
                preprocessor's.
            preprocessor: the preprocessor. Defaults to the model's.
            verbose: int, 1 for a progress bar. Defaults to 0.

        Returns:
            float32 array `[texts, embedding_dim]`.

        Raises:
            ValueError: if there is no preprocessor, `texts` is one string, or an embedding is not
                finite.
        """
        preprocessor = preprocessor or self.preprocessor
        if preprocessor is None:
            raise ValueError("preprocessor must be given, since the model has none")
        preprocessor = shorter(preprocessor, sequence_length)
        if isinstance(texts, (str, bytes)):
            raise wrong_value("texts", "a list of strings", texts)
        texts = texts.numpy().tolist() if tf.is_tensor(texts) else list(texts)
        # Texts of similar lengths need less padding.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        embeddings = np.zeros([len(texts), self.output_shape[-1]], np.float32)
        batches = [order[x : x + TEXTS_AT_ONCE] for x in range(0, len(order), TEXTS_AT_ONCE)]
        for rows in progress.track(batches, "embedding", len(batches), verbose):
            embeddings[rows] = self._embed_batch([texts[row] for row in rows], preprocessor)
        if not np.isfinite(embeddings).all():
            raise ValueError(
                "embeddings must be finite. The model computes others, as after a training that "
                "diverged"
            )
        return embeddings

    def _embed_batch(self, texts, preprocessor):
        """Embeds at most `TEXTS_AT_ONCE` texts, in one compiled call for each bucket of lengths."""
        # As many as in all batches of several texts, so that few programs are compiled.
        size = 1 if len(texts) == 1 else TEXTS_AT_ONCE
        inputs = preprocessor(tf.constant([*texts, *[""] * (size - len(texts))]))
        mask = inputs["padding_mask"]
        longest = int(tf.reduce_max(tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)))
        length = bucket(longest, mask.shape[1])
        embeddings = self.compiled_call({name: x[:, :length] for name, x in inputs.items()})
        return np.asarray(embeddings, np.float32)[: len(texts)]


def shorter(preprocessor, sequence_length):
    """Returns a preprocessor of text embedders with another sequence length.

    Args:
        preprocessor: a `keras_hub.models.TextEmbedderPreprocessor`.
        sequence_length: int; or None, for the preprocessor itself.
    """
    if sequence_length in (None, preprocessor.sequence_length):
        return preprocessor
    return type(preprocessor)(
        preprocessor.tokenizer, sequence_length=sequence_length, truncate=preprocessor.truncate
    )


def pair_inputs(preprocessor, question, passages, question_length=None):
    """Converts questions and their passages to inputs of `Contrastive`.

    Args:
        preprocessor: the preprocessor of the embedder.
        question: strings `[batch]`.
        passages: strings `[batch, passages]`.
        question_length: int, number of tokens of a question. Defaults to the preprocessor's
            `sequence_length`.

    Returns:
        A dictionary of "question" and "passages"; see `Contrastive`.
    """
    count = passages.shape[1]
    flat = preprocessor(tf.reshape(passages, [-1]))
    return {
        "question": shorter(preprocessor, question_length)(question),
        "passages": {
            name: tf.reshape(values, [-1, count, *values.shape[1:]])
            for name, values in flat.items()
        },
    }


def scores_of_batch(y_true, y_pred):
    """Computes the scores of all passages of a batch for each question of this replica.

    Args:
        y_true: `[batch]`, 0 for padding, whose passages do not count.
        y_pred: embeddings `[batch, 1 + passages, embedding_dim]`, from `Contrastive`.

    Returns:
        Scores `[batch, all passages]`, and the index of each question's own passage, int
        `[batch]`.
    """
    y_pred = tf.cast(y_pred, tf.float32)
    batch, texts, _ = tf.unstack(tf.shape(y_pred))
    # [batch] and [batch, passages, embedding_dim]
    real, passages, first = tf.cast(y_true, tf.bool), y_pred[:, 1:], 0
    replica = tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        # A replica's share of the last batch may be smaller.
        shares = replica.all_gather(batch[None], axis=0)
        first = tf.cumsum(shares, exclusive=True)[replica.replica_id_in_sync_group]
        real = replica.all_gather(tf.cast(real, tf.int32), axis=0) > 0
        passages = _gather_replicas(passages, first)
    real = tf.repeat(tf.reshape(real, [-1]), texts - 1)
    # [all questions, passages, embedding_dim] -> [all passages, embedding_dim]
    passages = tf.reshape(passages, [-1, y_pred.shape[-1]])
    scores = tf.matmul(y_pred[:, 0], passages, transpose_b=True)  # [batch, all passages]
    return tf.where(real, scores, NO_SCORE), (first + tf.range(batch)) * (texts - 1)


def _gather_replicas(values, first):
    """Returns the rows of all replicas, of which this one's begin at `first`.

    The gradient is that of the losses of all replicas.
    """
    replica = tf.distribute.get_replica_context()

    @tf.custom_gradient
    def gather(rows):
        def gradient(upstream):
            total = replica.all_reduce(tf.distribute.ReduceOp.SUM, upstream)
            return total[first : first + tf.shape(rows)[0]]

        return replica.all_gather(rows, axis=0), gradient

    return gather(values)


@keras.saving.register_keras_serializable(package="rt_keras")
class InBatchLoss(keras.losses.Loss):
    """Cross entropy of each question's own passage among all passages of a batch.

    See `Contrastive`, which computes `y_pred`. `y_true` is 0 for padding and 1 for questions.
    """

    def call(self, y_true, y_pred):
        scores, labels = scores_of_batch(y_true, y_pred)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)


def found_in_batch(y_true, y_pred):
    """Returns 1 for each question whose own passage has the highest score in the batch, else 0.

    Args:
        y_true, y_pred: see `scores_of_batch`.

    Returns:
        float32 `[batch]`.
    """
    scores, labels = scores_of_batch(y_true, y_pred)
    return tf.cast(tf.argmax(scores, axis=1, output_type=tf.int32) == labels, tf.float32)
