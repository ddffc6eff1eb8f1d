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

from rt_keras.first_use import names_on_first_use

# The public names, with the modules that define them.
_MODULES = {
    "RequestSampler": "request_sampler",
    "answering_function": "retrieval",
    "completing_function": "image_completion",
    "embedding_function": "retrieval",
    "export_saved_model": "saved_model",
    "generating_function": "signatures",
    "scoring_function": "signatures",
    "starting_function": "state_signatures",
    "state_generating_function": "state_signatures",
    "state_scoring_function": "state_signatures",
    "text_scoring_function": "signatures",
    "transcribing_functions": "transcription",
    "translating_function": "signatures",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = names_on_first_use(__name__, _MODULES)
