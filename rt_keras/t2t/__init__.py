"""Heads in the dialect of the authors' code, which reproduce its checkpoints exactly.

That code, google-research's `routing_transformer` on Tensor2Tensor, differs from the paper and from
`rt_keras.layers` in many details. This package holds what only its checkpoints need:
`rt_keras.convert` builds models with these heads, and a configuration selects them with
`model.dialect: t2t`. For new models use `rt_keras.layers`.

| | this dialect | `rt_keras.layers` |
| --- | --- | --- |
| relative positions | one table for all heads, for keys and values | one per head, for keys |
| causality in a cluster | by rank, distances in ranks | by position |
| position in several clusters | sum / (count + 0.01) | mean |
| sequence length | zero-padded to whole blocks | unchanged |
| query without keys | mean over its window | 0 |
| logits of routing heads | not scaled | scaled by 1 / sqrt(depth) |
| member counts | mixed over heads | per head |
"""

from rt_keras.t2t.cluster_strided_heads import T2TClusterStridedHeads
from rt_keras.t2t.hashed_heads import T2THashedHeads
from rt_keras.t2t.local_heads import T2TLocalHeads
from rt_keras.t2t.routing_heads import T2TRoutingHeads
from rt_keras.t2t.strided_heads import T2TStridedHeads

__all__ = [
    "T2TClusterStridedHeads",
    "T2THashedHeads",
    "T2TLocalHeads",
    "T2TRoutingHeads",
    "T2TStridedHeads",
]
