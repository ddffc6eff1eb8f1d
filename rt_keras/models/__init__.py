"""Models built on KerasHub's base classes, and adaptation of KerasHub's pretrained models."""

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "RoutingTransformerAudioConverter": "speech.audio_converter",
    "RoutingTransformerBackbone": "causal_lm.causal_lm_backbone",
    "RoutingTransformerCausalLM": "causal_lm.causal_lm",
    "RoutingTransformerCausalLMPreprocessor": "causal_lm.causal_lm_preprocessor",
    "RoutingTransformerEncoderBackbone": "retrieval.encoder_backbone",
    "RoutingTransformerImageBackbone": "image.image_backbone",
    "RoutingTransformerImageLM": "image.image_lm",
    "RoutingTransformerReader": "retrieval.reader",
    "RoutingTransformerReaderPreprocessor": "retrieval.reader_preprocessor",
    "RoutingTransformerSeq2SeqBackbone": "seq_2_seq.seq_2_seq_backbone",
    "RoutingTransformerSeq2SeqLM": "seq_2_seq.seq_2_seq_lm",
    "RoutingTransformerSeq2SeqLMPreprocessor": "seq_2_seq.seq_2_seq_lm_preprocessor",
    "RoutingTransformerSpeechBackbone": "speech.speech_backbone",
    "RoutingTransformerSpeechRecognizer": "speech.speech_recognizer",
    "RoutingTransformerSpeechRecognizerPreprocessor": "speech.speech_recognizer_preprocessor",
    "RoutingTransformerTextEmbedder": "retrieval.text_embedder",
    "RoutingTransformerTextEmbedderPreprocessor": "retrieval.text_embedder_preprocessor",
    "adapt": "adapted.adapt",
    "restore": "adapted.adapt",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
