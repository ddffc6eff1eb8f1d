"""Export of models, also for LiteRT, the runtime for devices."""

from rt_keras.layers import HeadGroup
from rt_keras.layers.layers_inside import layers_inside


class LiteRTExport:
    """Mixin of backbones and tasks, before KerasHub's bases: `export` knows what LiteRT can run.

    It also keeps quiet: Keras prints a line for each weight.
    """

    def export(self, filepath, format="tf_saved_model", verbose=False, **kwargs):
        """Exports the model as Keras does; for LiteRT, only if LiteRT can run it.

        Args:
            filepath: path of the file or folder to write.
            format: "tf_saved_model", the default, or another format of `keras.Model.export`.
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
