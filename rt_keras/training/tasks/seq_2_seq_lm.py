"""The task of encoder-decoder models, for translation and summarization."""

import math

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data.pairs import SETS
from rt_keras.training.config_heads import make_heads
from rt_keras.training.tasks.task import batch_spec
from rt_keras.training.tasks.text_task import TextTask, token_specs


class Seq2SeqLMTask(TextTask):
    """Predicts each token of a text from the previous tokens and from another text.

    Examples are pairs of texts. The second one is scored, up to `data.sequence_length` tokens.
    """

    kind = "seq_2_seq_lm"
    model_class = models.RoutingTransformerSeq2SeqLM
    data_sets = SETS
    examples = "documents"
    units = (("nats_per_token", ".4f"), ("perplexity_per_token", ",.3f"))

    def prompts(self, texts, model, max_length):
        return {"encoder_text": texts, "decoder_text": [""] * len(texts)}

    def head_groups(self, section):
        if section.encoder_heads is None:
            encoder = self._heads_of_blocks(section, section.num_encoder_layers)
        else:
            encoder = make_heads(section.encoder_heads, "model.encoder_heads", section.places)
        cross = make_heads(section.cross_heads, "model.cross_heads", section.places)
        groups = super().head_groups(section)
        return {**groups, "encoder_head_groups": encoder, "cross_head_groups": cross}

    def preprocessor_options(self, experiment):
        return {
            "encoder_sequence_length": _encoder_length(experiment),
            "decoder_sequence_length": experiment.data.sequence_length,
        }

    def load_split(self, data, split, preprocessor=None):
        return data_lib.load_pairs(data.name, split, data.directory, data.data_dir, data.reverse)

    def training_batches(self, experiment, **order):
        texts, data = experiment.load_split("train"), experiment.data
        packed = data_lib.pack_examples(texts, *self.packed_split(data, reverse=data.reverse))
        return data_lib.training_pairs(packed, experiment.preprocessor, **order)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return data_lib.evaluation_pairs(examples, preprocessor, batch_size)

    def example_spec(self, experiment, batch_size):
        length = experiment.data.sequence_length
        inputs = token_specs("encoder_", batch_size, _encoder_length(experiment))
        return batch_spec(inputs | token_specs("decoder_", batch_size, length), batch_size, length)

    def scores(self, sums, counts):
        nats = sums["nats"] / sums["labels"]
        return {"nats_per_token": nats, "perplexity_per_token": math.exp(nats)}


def _encoder_length(experiment):
    return experiment.data.encoder_sequence_length or experiment.data.sequence_length
