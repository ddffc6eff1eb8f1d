"""Arguments of a constructor that are attributes and entries of the configuration alike."""


class KeptArguments:
    """Mixin of layers and models, before Keras's bases: the arguments that `get_config` returns."""

    _kept_arguments = ()

    def keep_arguments(self, **arguments):
        """Makes arguments of the constructor attributes and entries of the configuration.

        Args:
            **arguments: their values, which are plain data.
        """
        self._kept_arguments = tuple(arguments)
        for name, value in arguments.items():
            setattr(self, name, value)

    def get_config(self):
        kept = {name: getattr(self, name) for name in self._kept_arguments}
        return {**super().get_config(), **kept}
