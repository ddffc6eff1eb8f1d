"""The attention of the authors' code as pure functions; see `rt_keras.t2t`.

Shapes are as in `rt_keras.ops`, except that all heads share the tables of relative positions,
`[1, 2 m + 1, depth]`.
"""

from rt_keras.t2t.ops.clusters import cluster_attention
from rt_keras.t2t.ops.local import local_attention, local_cross_step, local_step
from rt_keras.t2t.ops.strided import strided_attention, strided_step

__all__ = [
    "cluster_attention",
    "local_attention",
    "local_cross_step",
    "local_step",
    "strided_attention",
    "strided_step",
]
