"""Analysis of the attention of models.

- `attention_map.py`: the attention weights of each head on a text.
- `attention_mass.py`: the concentration of a pretrained model's attention.
- `causality.py`: the dependence of a language model on later tokens.
- `context_picture.py`: bits per byte by number of previous tokens.
- `heads.py`: the divergence between the heads of a layer.
- `clusters.py`: the tokens and the sizes of clusters.
"""
