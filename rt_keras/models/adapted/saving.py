"""Saving of adapted tasks, so that they can be loaded again."""

import keras

from rt_keras.models.adapted.tokenizers import adapted_preprocessor


class SavedWhole:
    """Mixin of adapted tasks: tokenizers of their home; no saving of what could not be loaded."""

    def __setattr__(self, name, value):
        # Before Keras sees a layer of the model in it.
        value = adapted_preprocessor(value) if name == "preprocessor" else value
        super().__setattr__(name, value)

    @property
    def adaptation(self):
        """Summary of each attention layer, an `Adaptation`; `print` shows a table."""
        return self.backbone.adaptation

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """See `keras.Model.save`. Raises a ValueError if the preprocessor could not be loaded."""
        self._check_preprocessor()
        return super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_to_preset(self, preset_dir, **kwargs):
        """See KerasHub's. Raises a ValueError if the preprocessor could not be loaded."""
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
