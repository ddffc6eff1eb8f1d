"""Routing attention of each position to those of its nearest clusters.

`assign.py` finds the clusters. `attention.py` has the op, which attends in the order of clusters:
in `shared.py` if queries are keys, else in `separate.py`. `rings.py` keeps the last members of each
cluster, and attends to them by chunks or steps.
"""
