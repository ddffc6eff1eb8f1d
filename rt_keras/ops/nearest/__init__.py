"""Routing attention of each position to those of its nearest clusters.

`assign.py` finds the clusters. `attention.py` has the op, which attends in the order of clusters:
in `shared.py` if queries are keys, else in `separate.py`. `rings.py` keeps the last members of each
cluster, and attends to them by chunks or steps.
"""

from rt_keras.ops.nearest.assign import ROUTED_KEYS
from rt_keras.ops.nearest.attention import nearest_attention
from rt_keras.ops.nearest.rings import nearest_cache, nearest_chunk, nearest_step

__all__ = ["ROUTED_KEYS", "nearest_attention", "nearest_cache", "nearest_chunk", "nearest_step"]
