"""Adapted tasks in files from which they can be loaded again."""

import keras

from rt_keras.models.adapted.tokenizers import adapted_preprocessor
from rt_keras.models.litert import LiteRTExport


class SavedWhole(LiteRTExport):
    """What adapted tasks add to those of KerasHub: what they save can be loaded, or is refused."""

    @property
    def adaptation(self):
        """What each attention layer reads and keeps, an `Adaptation`; printed, a table."""
        return self.backbone.adaptation

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """See `keras.Model.save`; a preprocessor that could not be loaded raises a ValueError."""
        self._check_preprocessor()
        return super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_to_preset(self, preset_dir, **kwargs):
        """See KerasHub's; a preprocessor that could not be loaded raises a ValueError."""
        self._check_preprocessor()
        return super().save_to_preset(preset_dir, **kwargs)

    def _check_preprocessor(self):
        preprocessor = self.preprocessor
        for part in (preprocessor, getattr(preprocessor, "tokenizer", None)):
            name = keras.saving.get_registered_name(type(part))
            if part is not None and keras.saving.get_registered_object(name) is not type(part):
                raise ValueError(
                    f"{type(part).__name__} could not be loaded again. Register its class with "
                    "keras.saving.register_keras_serializable, or set preprocessor = None to save "
                    "the model alone"
                )
        # One that was set after adapt(), as of a model of KerasHub.
        self.preprocessor = adapted_preprocessor(preprocessor)
