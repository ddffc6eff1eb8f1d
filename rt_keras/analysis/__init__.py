"""Analysis of what attention does.

- `attention_map.py`: which tokens attend to which across a text.
- `causality.py`: how much a language model sees of its future.
- `heads.py`: how differently the heads of a layer attend.
- `clusters.py`, `clusters_picture.py`: which tokens share a cluster, and how large clusters are.
"""
