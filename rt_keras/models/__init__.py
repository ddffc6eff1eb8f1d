"""Models built on KerasHub's base classes, and adaptation of KerasHub's pretrained models."""

from rt_keras.models.adapted import adapt, restore
from rt_keras.models.causal_lm.causal_lm import RoutingTransformerCausalLM
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone
from rt_keras.models.causal_lm.causal_lm_preprocessor import (
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.models.image.image_backbone import RoutingTransformerImageBackbone
from rt_keras.models.image.image_lm import RoutingTransformerImageLM
from rt_keras.models.retrieval.encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.retrieval.reader import RoutingTransformerReader
from rt_keras.models.retrieval.reader_preprocessor import (
    RoutingTransformerReaderPreprocessor,
)
from rt_keras.models.retrieval.text_embedder import RoutingTransformerTextEmbedder
from rt_keras.models.retrieval.text_embedder_preprocessor import (
    RoutingTransformerTextEmbedderPreprocessor,
)
from rt_keras.models.seq_2_seq.seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone
from rt_keras.models.seq_2_seq.seq_2_seq_lm import RoutingTransformerSeq2SeqLM
from rt_keras.models.seq_2_seq.seq_2_seq_lm_preprocessor import (
    RoutingTransformerSeq2SeqLMPreprocessor,
)
from rt_keras.models.speech.audio_converter import RoutingTransformerAudioConverter
from rt_keras.models.speech.speech_backbone import RoutingTransformerSpeechBackbone
from rt_keras.models.speech.speech_recognizer import RoutingTransformerSpeechRecognizer
from rt_keras.models.speech.speech_recognizer_preprocessor import (
    RoutingTransformerSpeechRecognizerPreprocessor,
)

__all__ = [
    "RoutingTransformerAudioConverter",
    "RoutingTransformerSpeechBackbone",
    "RoutingTransformerSpeechRecognizer",
    "RoutingTransformerSpeechRecognizerPreprocessor",
    "RoutingTransformerBackbone",
    "RoutingTransformerCausalLM",
    "RoutingTransformerCausalLMPreprocessor",
    "RoutingTransformerEncoderBackbone",
    "RoutingTransformerImageBackbone",
    "RoutingTransformerImageLM",
    "RoutingTransformerReader",
    "RoutingTransformerReaderPreprocessor",
    "RoutingTransformerSeq2SeqBackbone",
    "RoutingTransformerSeq2SeqLM",
    "RoutingTransformerSeq2SeqLMPreprocessor",
    "adapt",
    "restore",
    "RoutingTransformerTextEmbedder",
    "RoutingTransformerTextEmbedderPreprocessor",
]
