"""Training of KerasHub's text embedders on adapted backbones."""

from rt_keras.models.retrieval.contrastive import Contrastive


class AdaptedTextEmbedder(Contrastive):
    """Mixin of adapted text embedders: training on questions and passages; see `Contrastive`."""
