"""The task of speech recognizers, with connectionist temporal classification."""

import keras
import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import models
from rt_keras.data import extras, speech
from rt_keras.data.batches import filled_batches
from rt_keras.data.tokenizer import fingerprint
from rt_keras.models.speech.speech_recognizer import CTCLoss, decode_labels, texts_of_labels
from rt_keras.ops.losses.ctc import ctc_loss
from rt_keras.training.tasks.text_task import TextTask


class CTCTask(TextTask):
    """Predicts the text of a sound."""

    kind = "ctc"
    model_class = models.RoutingTransformerSpeechRecognizer
    data_sets = speech.SETS
    units = (("nats_per_text", ".2f"),)
    text_units = (("character_error_rate", ".4f"), ("word_error_rate", ".4f"))
    label_name = "text"
    examples = "recordings"
    generates = "transcription"

    def make_backbone(self, section, options):
        return super().make_backbone(section, {**options, **vars(section.speech)})

    def preprocessor_options(self, experiment):
        data, num_mel_bins = experiment.data, experiment.model.speech.num_mel_bins
        return {
            "audio_converter": models.RoutingTransformerAudioConverter(num_mel_bins),
            "sequence_length": data.sequence_length,
            "label_length": data.label_length or data.sequence_length,
        }

    def load_split(self, data, split, preprocessor=None):
        examples = data_lib.load_speech(data.name, split, data.directory, data.data_dir)
        if split == "train":
            examples = speech.at_speeds(examples, data.speed_perturbation)
        return speech.joined(examples, preprocessor) if data.join_clips else examples

    def training_split(self, data):
        if data.name in self.data_sets.folders:
            return "train"
        return speech.split_of_set(data.name, "train")[0]

    def training_batches(self, experiment, **order):
        data, preprocessor = experiment.data, experiment.preprocessor
        examples = speech.usable(experiment.load_split("train"), preprocessor)
        lengths = {
            "joined": data.join_clips,
            "speed_perturbation": data.speed_perturbation,
            "sequence_length": preprocessor.sequence_length,
            "label_length": preprocessor.label_length,
            "tokenizer": fingerprint(preprocessor.tokenizer),
        }
        packed = data_lib.pack_examples(examples, *self.packed_split(data, **lengths))
        return data_lib.training_speech(packed, preprocessor, **order, num_buckets=data.num_buckets)

    def evaluation_batches(self, model, examples, batch_size, preprocessor=None):
        return data_lib.evaluation_speech(examples, preprocessor, batch_size)

    def example_spec(self, experiment, batch_size):
        nothing = tf.fill([batch_size], "")
        batch = experiment.preprocessor(nothing, nothing)
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)
        return (*specs, tf.TensorSpec([batch_size]))

    def loss(self):
        return CTCLoss()

    def loss_metric(self):
        return keras.metrics.MeanMetricWrapper(ctc_loss, name=self.loss_name)

    def figures(self, model, inputs, labels):
        return {"nats": ctc_loss(labels, model(inputs, training=False))}

    def text_scores(self, model, examples, batch_size, preprocessor):
        """Computes the shares of characters and words that must be changed, over all recordings."""
        with extras.needed("speech", "Counting the errors of transcriptions"):
            import jiwer

        texts, references = [], []
        for batch, real in filled_batches(examples, batch_size):
            logits = model.logits_of_sounds(batch["sound"], preprocessor)
            found = texts_of_labels(decode_labels(logits), preprocessor.tokenizer)
            count = int(tf.reduce_sum(tf.cast(real, tf.int32)))
            texts += found[:count]
            references += [text.decode("utf-8") for text in batch["text"].numpy()[:count]]
        return {
            "character_error_rate": jiwer.cer(references, texts),
            "word_error_rate": jiwer.wer(references, texts),
        }
