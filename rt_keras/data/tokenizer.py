"""What the tokenizers have in common, whatever a token is."""

import json
import os

import keras
import keras_hub


class TextTokenizer(keras_hub.tokenizers.Tokenizer):
    """Base of the tokenizers: their special tokens, and loading from a folder.

    Whichever tokenizer they are given, preprocessor, pipeline and model ask it for the same four
    things: `pad_token_id`; `end_token_id`, which closes every document; `start_token_id`, which is
    the same token, because what precedes a document is the end of the one before, and padding in
    `T2TSubwordTokenizer`, whose models start so; and `needs_utf8`, whether text must be valid
    UTF-8.
    """

    needs_utf8 = True

    def _add_pad_and_end(self, pad_token, end_token):
        self._add_special_token(pad_token, "pad_token")
        self._add_special_token(end_token, "end_token")
        self._add_special_token(end_token, "start_token")

    def _update_special_token_ids(self):
        vocabulary = set(self.get_vocabulary())
        for name in ("pad_token", "end_token"):
            token = getattr(self, name)
            if token not in vocabulary:
                raise ValueError(
                    f"{name}={token!r} is not in the vocabulary of {len(vocabulary)} entries: "
                    f"add it there, or name with {name}= the entry that plays its part"
                )
        super()._update_special_token_ids()

    @classmethod
    def from_preset(cls, preset, config_file="tokenizer.json", **kwargs):
        """The tokenizer that `save_to_preset` wrote.

        Args:
            preset: a folder, which need not hold a model beside the tokenizer, or any other handle
                that KerasHub knows.
            config_file: name of the file with the tokenizer's config.
            **kwargs: arguments of the constructor to change.

        Returns:
            A tokenizer of the class that was saved.

        Raises:
            ValueError: if that class is not this one, nor derived from it.
        """
        path = os.path.join(preset, config_file)
        if not os.path.isfile(path):
            return super().from_preset(preset, config_file=config_file, **kwargs)
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["config"].update(kwargs)
        tokenizer = keras.saving.deserialize_keras_object(config)
        if not isinstance(tokenizer, cls):
            raise ValueError(
                f"preset={preset!r} holds a {type(tokenizer).__name__}, not a {cls.__name__}"
            )
        tokenizer.load_preset_assets(preset)
        return tokenizer
