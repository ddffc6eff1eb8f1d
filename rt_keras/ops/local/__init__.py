"""Local attention: `windows.py` for whole sequences, `cached.py` for chunks and decode steps."""

from rt_keras.ops.local.cached import local_cache, local_chunk, local_cross_step, local_step
from rt_keras.ops.local.windows import check_sliding_window, local_attention, per_dimension

__all__ = [
    "check_sliding_window",
    "local_attention",
    "local_cache",
    "local_chunk",
    "local_cross_step",
    "local_step",
    "per_dimension",
]
