"""Losses: cross entropy over large vocabularies, and connectionist temporal classification."""

from rt_keras.ops.losses.cross_entropy import chunked_cross_entropy
from rt_keras.ops.losses.ctc import ctc_loss

__all__ = ["chunked_cross_entropy", "ctc_loss"]
