"""Looking at what attention does.

- `routing_picture.py`: the README's picture of which keys each query sees.
"""
