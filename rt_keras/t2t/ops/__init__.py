"""What the paper authors' code computes, as pure functions; see `rt_keras.t2t`.

Shapes are those of `rt_keras.ops`, but for the tables of relative positions, `[1, 2 m + 1, depth]`,
which all heads share.
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
