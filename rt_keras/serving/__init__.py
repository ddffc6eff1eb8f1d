"""Serving: models as SavedModels.

- `saved_model.py`: writes a model with its signatures.
- `score.py`: scores token ids with what was written, with TensorFlow alone.
"""

from rt_keras.serving.saved_model import export_saved_model, scoring_function

__all__ = ["export_saved_model", "scoring_function"]
