"""Serving: models as SavedModels that TensorFlow Serving runs.

- `saved_model.py`: writes a model, its signatures and its warm-up requests.
- `signatures.py`: what the SavedModel takes and gives, strings included.
- `checks.py`: what is asked of inputs, in the graph.
- `request_sampler.py`: draws of KerasHub's samplers, row by row and without state.
- `warm_up.py`: requests that the server answers before it takes others.
- `foreign_ops.py`: which operations a server must have beside TensorFlow's own.
- `score.py`: scores token ids with what was written, with TensorFlow alone.
"""

from rt_keras.serving.request_sampler import RequestSampler
from rt_keras.serving.saved_model import export_saved_model
from rt_keras.serving.signatures import (
    generating_function,
    scoring_function,
    text_scoring_function,
)

__all__ = [
    "RequestSampler",
    "export_saved_model",
    "generating_function",
    "scoring_function",
    "text_scoring_function",
]
