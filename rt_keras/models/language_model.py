"""What the language models share: from hidden states to logits."""

from rt_keras.layers.head_group import positive_int
from rt_keras.models.chunked_loss import ChunkedLoss
from rt_keras.models.presets import PublishedPresets


class LanguageModel(PublishedPresets, ChunkedLoss):
    """Mixin of language models, before KerasHub's bases: logits of each next token.

    ```
    logits = hidden_states(inputs) · token_embeddingᵀ
    ```

    If the backbone does not tie embeddings, a dense layer takes the place of their product. If the
    embedding has another width than the blocks, another dense layer comes before it. A subclass has
    `hidden_states(inputs, training)`.
    """

    def __init__(self, backbone, preprocessor=None, loss_chunk_size=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_projection = self.output_dense = None
        if backbone.embedding_dim not in (None, backbone.hidden_dim):
            self.output_projection = backbone.make_dense(
                backbone.embedding_dim, "output_projection"
            )
        if not backbone.tie_embeddings:
            self.output_dense = backbone.make_dense(backbone.vocabulary_size, "output_dense")

        # === Config ===
        # Before the constructor of the base class, which compiles the model.
        if loss_chunk_size is not None:
            positive_int("loss_chunk_size", loss_chunk_size)
        self.loss_chunk_size = loss_chunk_size

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.token_logits(self.hidden_states(inputs))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def token_logits(self, hidden):
        """The logits of hidden states.

        Args:
            hidden: `[..., hidden_dim]`.

        Returns:
            `[..., vocabulary_size]`.
        """
        if self.output_projection is not None:
            hidden = self.output_projection(hidden)
        if self.output_dense is not None:
            return self.output_dense(hidden)
        return self.backbone.token_embedding(hidden, reverse=True)

    @property
    def cached_decoding(self):
        """Whether generation keeps a cache, so that a token costs the same at every position.

        That is so if no output depends on a later token: with `LocalHeads`, `RoutingHeads` of
        assignment "nearest", `StridedHeads` and `FullHeads` (the last two keep all keys), of which
        `FullHeads` and `LocalHeads` can attend to an encoder. With other heads the keys that a
        query sees depend on the whole sequence: for each token, generation calls the model, or its
        decoder, on all `max_length` positions, later ones as padding, and costs as much as
        `max_length` parallel passes. With "balanced" routing and `HashedHeads` the result is that
        of the model on each prefix; with `ClusterStridedHeads`, `RandomHeads` and heads of a
        dialect it also depends on `max_length`.
        """
        return self.backbone.cached_decoding

    def get_config(self):
        return {**super().get_config(), "loss_chunk_size": self.loss_chunk_size}
