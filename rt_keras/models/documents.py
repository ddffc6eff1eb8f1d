"""Documents that share a row, in calls of language models."""

import contextlib
import contextvars

from rt_keras.models.generation import as_tensor
from rt_keras.ops.documents import without_leading_padding

# Inputs of a call that are not those of the functional model.
OF_DOCUMENTS = "segment_ids", "positions"

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
    return isinstance(inputs, dict) and not inputs.keys().isdisjoint(OF_DOCUMENTS)


def segments_of(inputs):
    """Returns the segment ids of inputs, in which documents begin with their first tokens."""
    ids = as_tensor("segment_ids", inputs["segment_ids"], inputs["token_ids"].shape)
    return without_leading_padding(ids, inputs["padding_mask"])
