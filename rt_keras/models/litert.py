"""Export of models, including to LiteRT, the on-device runtime."""

from rt_keras.layers import HeadGroup
from rt_keras.layers.layers_inside import layers_inside


class LiteRTExport:
    """Mixin whose `export` refuses models that LiteRT cannot run.

    By default, it does not print a line for each weight, as Keras does. List it before KerasHub's
    base classes.
    """

    def export(self, filepath, format="tf_saved_model", verbose=False, **kwargs):
        """Exports the model, to LiteRT only if LiteRT can run it.

        Args:
            filepath: path of the file or folder to write.
            format: string, a format of `keras.Model.export`. Defaults to `"tf_saved_model"`.
            verbose: bool, whether to print the signatures and every weight. Defaults to False.
            **kwargs: other keyword arguments of `keras.Model.export`.

        Raises:
            ValueError: if `format` is "litert" and LiteRT would abort on the model's heads.
        """
        if format == "litert":
            groups = layers_inside(self, HeadGroup)
            names = sorted({type(x).__name__ for x in groups if not x.runs_in_litert})
            if names:
                raise ValueError(
                    "format must not be 'litert' for a model with heads that compare tensors of "
                    "more than four dimensions, on which LiteRT aborts. Received: a model with "
                    f"{', '.join(names)}"
                )
        super().export(filepath, format=format, verbose=verbose, **kwargs)
