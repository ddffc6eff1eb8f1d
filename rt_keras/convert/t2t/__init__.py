"""Import of models of the authors' TensorFlow 1 code, and its heads, which reproduce its numbers.

That code, google-research's `routing_transformer` on Tensor2Tensor, differs from the paper and from
`rt_keras.layers` in many details. The heads and ops here follow it, so that its checkpoints have
the same outputs. Only the models that `model.py` builds have these heads. For new models use
`rt_keras.layers`.

| | in that code, and here | `rt_keras.layers` |
| --- | --- | --- |
| relative positions | one table for all heads, for keys and values | one per head, for keys |
| causality in a cluster | by rank, distances in ranks | by position |
| position in several clusters | sum / (count + 0.01) | mean |
| sequence length | zero-padded to whole blocks | unchanged |
| query without keys | mean over its window | 0 |
| logits of routing heads | not scaled | scaled by 1 / sqrt(depth) |
| member counts | mixed over heads | per head |
"""
