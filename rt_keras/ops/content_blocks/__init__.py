"""Attention to blocks of keys that are formed from each segment of the text when it ends."""
