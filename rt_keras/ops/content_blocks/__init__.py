"""Attention to blocks of keys that are formed from each segment of the text when it ends."""

from rt_keras.ops.content_blocks.attend import check_memory_length, selected_blocks_attention
from rt_keras.ops.content_blocks.cache import selected_blocks_cache, selected_blocks_chunk
from rt_keras.ops.content_blocks.select import NODE_SIZE

__all__ = [
    "NODE_SIZE",
    "check_memory_length",
    "selected_blocks_attention",
    "selected_blocks_cache",
    "selected_blocks_chunk",
]
