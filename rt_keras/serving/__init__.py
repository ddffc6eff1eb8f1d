"""Export of models as SavedModels for TensorFlow Serving.

- `saved_model.py`: writes a model, its signatures and its warm-up requests.
- `signatures.py`: the functions of the SavedModel, with strings as inputs and outputs.
- `image_completion.py`: the function of image models.
- `transcription.py`: the functions of speech recognizers.
- `retrieval.py`: the functions of retrievers and readers.
- `state_signatures.py`: functions that continue from a recurrent state.
- `served_tokenizer.py`: the tokenizer, as functions that they share.
- `checks.py`: checks of their inputs, in the graph.
- `request_sampler.py`: KerasHub's samplers, per row and without state.
- `warm_up.py`: requests that a server runs while it loads the model.
- `foreign_ops.py`: the operations that a server needs besides TensorFlow's own.
- `score.py`: scores token ids with a SavedModel, using only TensorFlow.

Exporting needs the extra `serving`.
"""

from rt_keras.serving.image_completion import completing_function
from rt_keras.serving.request_sampler import RequestSampler
from rt_keras.serving.retrieval import answering_function, embedding_function
from rt_keras.serving.saved_model import export_saved_model
from rt_keras.serving.signatures import (
    generating_function,
    scoring_function,
    text_scoring_function,
    translating_function,
)
from rt_keras.serving.state_signatures import (
    starting_function,
    state_generating_function,
    state_scoring_function,
)
from rt_keras.serving.transcription import transcribing_functions

__all__ = [
    "RequestSampler",
    "answering_function",
    "completing_function",
    "embedding_function",
    "export_saved_model",
    "generating_function",
    "scoring_function",
    "starting_function",
    "state_generating_function",
    "state_scoring_function",
    "text_scoring_function",
    "transcribing_functions",
    "translating_function",
]
