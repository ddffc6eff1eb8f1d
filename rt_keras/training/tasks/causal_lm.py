"""Language models: each token of a text from those before it."""

import math

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data import documents as documents_lib
from rt_keras.data.tokenizer import fingerprint
from rt_keras.training.tasks.task import bits
from rt_keras.training.tasks.text_task import TextTask, token_specs
from rt_keras.training.tokenizer import make_tokenizer


class CausalLMTask(TextTask):
    """Predicts each token of a text from those before it.

    Examples are documents. They are put one after the other, and the result is cut into sequences
    of `data.sequence_length` tokens; a token sees what precedes it in its sequence.
    """

    kind = "causal_lm"
    model_class = models.RoutingTransformerCausalLM
    keys = (*TextTask.keys, "model.reversible")
    data_names = f"one of {', '.join(documents_lib.NAMES)}"
    folder_sets = documents_lib.OF_FOLDERS
    units = (
        ("bits_per_byte", ".4f"),
        ("nats_per_token", ".4f"),
        ("perplexity_per_token", ",.3f"),
        ("perplexity_per_word", ",.1f"),
    )
    continues_text = True

    def check(self, config):
        super().check(config)
        model = config.model
        if model.reversible and (model.remat or not model.normalize_first):
            raise ValueError(
                f"model.reversible is true, model.remat {model.remat} and model.normalize_first "
                f"{model.normalize_first}; reversible blocks need remat false, normalize_first true"
            )

    def knows_data(self, name):
        return name in documents_lib.NAMES

    def make_preprocessor(self, config):
        return models.RoutingTransformerCausalLMPreprocessor(
            make_tokenizer(config.tokenizer), sequence_length=config.data.sequence_length
        )

    def load_split(self, data, split, preprocessor=None):
        return data_lib.load_documents(
            data.name,
            split,
            directory=data.directory,
            data_dir=data.data_dir,
            require_utf8=preprocessor.tokenizer.needs_utf8,
        )

    def make_builder(self, data):
        return documents_lib.make_builder(data.name, data.directory, data.data_dir)

    def training_batches(self, config, preprocessor=None, first_step=0, share=(0, 1)):
        tokenizer = preprocessor.tokenizer
        documents = self.load_split(config.data, "train", preprocessor)
        place = self.packed_split(config.data, tokenizer=fingerprint(tokenizer))
        return data_lib.training_dataset(
            data_lib.pack_documents(documents, tokenizer, *place),
            config.data.sequence_length,
            batch_size=config.data.batch_size,
            seed=config.trainer.seed,
            first_batch=first_step,
            share=share,
        )

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return data_lib.evaluation_dataset(
            examples, preprocessor.tokenizer, preprocessor.sequence_length, batch_size
        )

    def example_spec(self, config, batch_size):
        shape = [batch_size, config.data.sequence_length]
        inputs = token_specs("", *shape)
        return inputs, tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def count(self, examples):
        counts = data_lib.count_text(examples)
        if counts["bytes"] == 0:
            raise ValueError("there is no text to evaluate: every document is empty")
        return counts

    def scores(self, nats, tokens, counts):
        return {
            "bits_per_byte": bits(nats) / counts["bytes"],
            "nats_per_token": nats / tokens,
            "perplexity_per_token": math.exp(nats / tokens),
            "perplexity_per_word": math.exp(nats / max(counts["words"], 1)),
        }
