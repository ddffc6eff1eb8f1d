"""Looking at what attention does.

- `causality.py`: how much a language model sees of its future.
- `routing_picture.py`: the README's picture of which keys each query sees.
"""
