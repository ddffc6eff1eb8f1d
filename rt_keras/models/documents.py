"""Documents that share a row, in calls of language models."""

import contextlib
import contextvars

import tensorflow as tf

from rt_keras.models.generation import as_tensor
from rt_keras.ops.blocks import size
from rt_keras.ops.documents import number_documents, positions_in_documents, reduce_in_documents

# Inputs of a call that are not those of the functional model.
DOCUMENT_INPUTS = "segment_ids", "positions"

# Of the calls of one thread, because KerasHub's blocks pass nothing on to their attention: the
# document of each position.
SEGMENT_IDS = contextvars.ContextVar("segment_ids", default=None)


@contextlib.contextmanager
def separated(segment_ids):
    """Makes adapted attention separate documents in the calls inside this context.

    Args:
        segment_ids: int `[batch, length]`.
    """
    token = SEGMENT_IDS.set(segment_ids)
    try:
        yield
    finally:
        SEGMENT_IDS.reset(token)


def have_documents(inputs):
    """Returns whether inputs, which may be a dictionary, say where documents are."""
    return isinstance(inputs, dict) and not inputs.keys().isdisjoint(DOCUMENT_INPUTS)


def segments_of(inputs):
    """Returns the segment ids of inputs; padding before a document's first token has its own."""
    ids = inputs.get("segment_ids", tf.zeros_like(inputs["token_ids"]))
    documents = number_documents(as_tensor("segment_ids", ids, inputs["token_ids"].shape))
    position = positions_in_documents(documents)
    # [batch, length], of which padding is beyond all tokens
    token_position = tf.where(tf.cast(inputs["padding_mask"], tf.bool), position, size(position, 1))
    first = reduce_in_documents(tf.math.unsorted_segment_min, token_position, documents)
    return 2 * documents + tf.cast(position >= first, tf.int32)
