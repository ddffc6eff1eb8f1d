"""Analysis of what attention does.

- `attention_map.py`: which tokens attend to which across a text.
- `causality.py`: how much a language model sees of its future.
- `routing_picture.py`: the README's picture of which keys each query sees.
"""
