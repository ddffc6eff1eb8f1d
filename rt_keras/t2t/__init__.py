"""The dialect of the paper authors' code: heads that compute the numbers of its checkpoints.

That code, google-research's `routing_transformer` on Tensor2Tensor, differs from the paper, and
from the layers here, in many small ways. What only its checkpoints need is in this folder:
`rt_keras.convert` makes models of these heads, and a configuration asks for them with
`model.dialect: t2t`. Models of your own are better off with `rt_keras.layers`.

| | in this dialect | in `rt_keras.layers` |
| --- | --- | --- |
| relative positions | a table for all heads, on keys and values | one for each head, on keys |
| in a cluster | causal by rank, distances in rank | causal by position |
| a position in several clusters | sum / (count + 0.01) | mean |
| a sequence | zero-padded to whole blocks | as long as it is |
| a query without keys | the mean over its window | 0 |
| logits of routing heads | not scaled | scaled by 1 / sqrt(depth) |
| counts of members | mixed over heads | of each head |
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
