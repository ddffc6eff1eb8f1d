"""Pretrained models that read and continue a sequence: KerasHub's own and adapted ones."""

import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras.benchmarks.pretrained.kinds import head_groups
from rt_keras.keras_internals import build_cache
from rt_keras.models.adapted.attention_layers import num_heads
from rt_keras.models.adapted.backbones import attention_layers, backbone_of
from rt_keras.models.adapted.default_heads import few_look_far
from rt_keras.models.adapted.folders import load_model

# Number of positions that a cache has room for after the sequence.
ROOM = 32
# Number of positions whose logits are computed at once.
LOGITS_AT_ONCE = 512


class Reader:
    """A language model that reads one sequence at a time.

    Args:
        model: a KerasHub task, or an adapted one.
        few: bool, whether few layers of the original look far, see `few_look_far`.
    """

    def __init__(self, model, few):
        self.model, self.few = model, few
        tokenizer = model.preprocessor.tokenizer
        starts = model.preprocessor.add_start_token
        self.start = [tokenizer.start_token_id] if starts else []

    def read(self, ids):
        """Reads a sequence.

        Args:
            ids: int array `[length]`.

        Returns:
            Tuple of the last hidden states, an array `[length, hidden_dim]`, and a cache with room
            for `ROOM` more positions.
        """
        raise NotImplementedError

    def tokens(self, text):
        """Returns the tokens of a text, int32 `[length]`."""
        return np.asarray(self.model.preprocessor.tokenizer(text), np.int32)

    def logits(self, hidden):
        """Returns the logits of hidden states, `[count, vocabulary_size]`."""
        return self.model.backbone.token_embedding(tf.constant(hidden), reverse=True)

    def losses(self, hidden, ids):
        """Returns the loss of each token except the first, in nats, given the previous tokens."""
        found = [np.zeros(0)]
        for start in range(0, len(ids) - 1, LOGITS_AT_ONCE):
            labels = ids[start + 1 : start + 1 + LOGITS_AT_ONCE]
            logits = tf.cast(self.logits(hidden[start : start + len(labels)]), tf.float32)
            found.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy())
        return np.concatenate(found)

    def write(self, cache, position, count):
        """Generates tokens after a sequence.

        Args:
            cache: cache of the sequence, from `read`.
            position: int, length of the sequence.
            count: int scalar tensor, number of tokens.

        Returns:
            int `[1, 1]`, the last token.
        """

        def step(number, token, cache):
            logits, _, cache = self.model.call_with_cache(token, cache, position + number)
            return number + 1, tf.argmax(logits, axis=-1, output_type=tf.int32), cache

        state = (tf.constant(0), tf.ones([1, 1], tf.int32), cache)
        return tf.while_loop(lambda number, *_: number < count, step, state)[1]


class Original(Reader):
    """A model as KerasHub computes it. It reads the whole sequence at once."""

    def __init__(self, model, few):
        super().__init__(model, few)
        self._build = tf.function(lambda ids: build_cache(model, ids), jit_compile=True)

    def read(self, ids):
        hidden, cache = self._build(tf.constant(np.pad(ids, [0, ROOM])[None]))
        return hidden[0, : len(ids)].numpy(), cache


class Adapted(Reader):
    """An adapted model. It reads in chunks if its heads support this."""

    def __init__(self, model, few):
        super().__init__(model, few)
        self._forward = tf.function(model.hidden_states, jit_compile=True)

    def read(self, ids):
        if self.model._reads_chunks():
            counts, room = np.array([len(ids)]), len(ids) + ROOM
            cache, hidden, _ = self.model._read_prompts(
                ids[None], counts, None, room, verbose=0, with_hidden=True
            )
            return hidden[0], cache
        inputs = {"token_ids": tf.constant(ids[None])}
        inputs["padding_mask"] = tf.ones_like(inputs["token_ids"])
        hidden = self._forward(inputs)[0].numpy()
        return hidden, self.model.new_cache(1, len(ids) + ROOM)


def load(folder, kind, length):
    """Loads a pretrained model with a kind of heads in the layers without a window.

    Args:
        folder: string, see `rt_keras.adapt`.
        kind: string, see `rt_keras.benchmarks.pretrained.kinds`.
        length: int, number of tokens of a sequence.

    Returns:
        A `Reader`.

    Raises:
        ValueError: if the model or the kind does not exist, the model is not a language model, or
            its files lack the trained length that the kind needs.
    """
    model, trained_length = load_model(folder)
    if not hasattr(model, "call_with_cache"):
        raise ValueError(f"--model {folder} must be a causal language model")
    backbone = backbone_of(model)
    heads = num_heads(attention_layers(backbone)[0])
    few = few_look_far(backbone)
    groups = head_groups(kind, heads, few=few)
    if groups is None:
        return Original(model, few)
    options = {}
    if kind == "full_scaled":
        if trained_length is None:
            raise ValueError(f"--kinds full_scaled: the files of {folder} lack its trained length")
        length = max(length, trained_length)
        options = {"max_sequence_length": length, "trained_length": trained_length}
    return Adapted(rt_keras.adapt(model, groups, layers="global", **options), few)
