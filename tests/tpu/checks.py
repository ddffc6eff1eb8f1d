"""Helpers for the tests of the TPU check."""

TINY = {
    "model.num_layers": 1,
    "model.hidden_dim": 16,
    "model.intermediate_dim": 16,
    "model.vocabulary_size": 32,
    "model.local_routing.num_heads": 0,
    "model.local.num_heads": 1,
    "model.local.block_size": 8,
    "model.routing.num_heads": 1,
    "model.routing.num_clusters": 2,
    "model.routing.window_size": 8,
    "data.sequence_length": 16,
    "trainer.mixed_bfloat16": True,
}
