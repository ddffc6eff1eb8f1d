"""Training of one encoder-decoder on pages, with its losses by place and on terms."""

import math
import statistics

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras import extras
from rt_keras.benchmarks import machine
from rt_keras.benchmarks.documents import pages as pages_lib
from rt_keras.benchmarks.images.kinds import head_keys
from rt_keras.benchmarks.training_runs import TESTS, training_keys, watch
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.callbacks.stop_at_nan import StopAtNaN
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment, make_optimizer
from rt_keras.training.tasks.task import label_nats

HEADS, BEAMS = 4, 4
# Pages per test during training.
TESTED = 6
# The upper bounds of the places whose losses are reported, in tokens.
PLACES = (256, 512, 1024, 2048, 4096)


def train(settings, report):
    """Trains one model.

    All kinds get the same pages, and batches of as many tokens, with padding.

    Args:
        settings: dictionary of JSON values; see `rt_keras.benchmarks.documents.run_settings`.
        report: function; see `rt_keras.benchmarks.training_runs.train_alone`.

    Returns:
        A dictionary of
        - `settings`, `machine` and `weights`, the number of weights;
        - `steps` and `nats`, lists: the steps of the tests and the nats per token of validation
          pages;
        - `losses`: dictionary from "all", the bounds of places such as "512", and the groups of
          terms "new", "near" (within `settings["keys"]` tokens), "again" and "far" (beyond
          `settings["part"]`) to the nats per token of test pages;
        - `seconds`, the median time of a step;
        - `bleu` and `chrf` for "greedy", "beam" and "random", if `settings["translated"]` is not 0.

    Raises:
        FloatingPointError: if the loss is NaN or infinite.
    """
    experiment = Experiment(make_config(config_keys(settings)))
    tokenizer = experiment.preprocessor.tokenizer
    splits = {
        split: pages_lib.read_pages(settings["directory"], split, tokenizer, settings["length"] - 2)
        for split in ("train", "validation", "test")
    }
    length = _length(settings)
    used = {**splits, "validation": splits["validation"][:TESTED]}
    examples = {split: _examples(pages, settings) for split, pages in used.items()}
    arrays = {x: _arrays(pairs, length, tokenizer) for x, pairs in examples.items()}
    keras.utils.set_random_seed(settings["seed"])
    model, size = _model(experiment), settings["batch"] * settings["length"] // length
    tests, seconds = _fit(model, arrays, size, settings, report)
    found = {
        "settings": settings,
        "machine": machine.describe(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        **tests,
        "losses": losses(_token_nats(model, arrays["test"], size), splits, tokenizer, settings),
        "seconds": statistics.median(seconds),
    }
    if settings["translated"]:
        model.preprocessor = experiment.preprocessor
        found |= translation_scores(model, splits["test"], settings, report)
    return found


def _fit(model, arrays, batch_size, settings, report):
    """Trains the model; returns the steps and losses of the tests, and the times of the steps."""

    def note(logs):
        return f"{logs['val_nats']:.3f} nats per token"

    every, seconds = settings["steps"] // TESTS, []
    training = tf.data.Dataset.from_tensor_slices(arrays["train"])
    training = training.shuffle(len(arrays["train"][1]), settings["seed"]).repeat()
    watching = watch(every, seconds, report, note)
    history = model.fit(
        training.batch(batch_size),
        steps_per_epoch=every,
        epochs=TESTS,
        validation_data=tf.data.Dataset.from_tensor_slices(arrays["validation"]).batch(batch_size),
        shuffle=False,
        callbacks=[*([CentroidEMA()] if routing_heads(model) else []), StopAtNaN(), watching],
        verbose=0,
    ).history
    steps = [every * (test + 1) for test in range(TESTS)]
    return {"steps": steps, "nats": history["val_nats"]}, seconds


def config_keys(settings):
    """Returns the keys and values of a configuration for a run."""
    kind = settings["kind"].removesuffix("_parts")
    return {
        "model.kind": "seq_2_seq_lm",
        "model.num_encoder_layers": settings["layers"],
        "model.num_layers": settings["layers"],
        "model.hidden_dim": settings["width"],
        "model.intermediate_dim": 4 * settings["width"],
        "model.sinusoidal_positions": True,
        **head_keys(kind, HEADS, settings["layers"], settings["keys"], settings["length"]),
        "tokenizer.name": "sentence_piece",
        "tokenizer.vocabulary": settings["vocabulary"],
        "data.name": "parallel_documents",
        "data.directory": settings["directory"],
        "data.sequence_length": _length(settings),
        **training_keys(settings),
    }


def _length(settings):
    """Returns the number of tokens in a sequence, of a page or of a part."""
    return settings["part"] if settings["kind"].endswith("_parts") else settings["length"]


def _examples(pages, settings):
    """Returns the pairs of token lists in pages: whole pages, or their parts."""
    if settings["kind"].endswith("_parts"):
        # The encoder's sequences have two more tokens.
        return [pair for page in pages for pair in pages_lib.parts_of(page, settings["part"] - 2)]
    return [pages_lib.joined(page) for page in pages]


def _arrays(pairs, length, tokenizer):
    """Returns (inputs, labels, weights) of pairs as arrays; see the preprocessor of the model."""
    end, pad = tokenizer.end_token_id, tokenizer.pad_token_id

    def padded(rows):
        table = np.full([len(rows), length], pad, "int32")
        for row, tokens in zip(table, rows):
            row[: len(tokens)] = tokens
        counts = np.array([len(tokens) for tokens in rows])
        return table, np.arange(length) < counts[:, None]

    read, read_mask = padded([[end, *source, end] for source, _ in pairs])
    before, before_mask = padded([[end, *target] for _, target in pairs])
    labels, _ = padded([[*target, end] for _, target in pairs])
    inputs = {
        "encoder_token_ids": read,
        "encoder_padding_mask": read_mask,
        "decoder_token_ids": before,
        "decoder_padding_mask": before_mask,
    }
    return inputs, labels, before_mask.astype("float32")


def _model(experiment):
    """Returns the compiled model."""
    model = experiment.make_model()
    # Pages differ in length; each token counts the same within a batch.
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    metric = keras.metrics.SparseCategoricalCrossentropy(name="nats", from_logits=True)
    model.compile(
        optimizer=make_optimizer(experiment.config),
        loss=loss,
        weighted_metrics=[metric],
        jit_compile=True,
    )
    return model


def _token_nats(model, arrays, batch_size):
    """Returns -ln p of the target tokens of each example, without the end of text."""

    @tf.function(jit_compile=True)
    def nats(inputs, labels):
        return label_nats(model(inputs, training=False), labels)

    inputs, labels, weights = arrays
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(batch_size)
    rows = np.concatenate([nats(*batch) for batch in batches])
    return [row[: int(count) - 1] for row, count in zip(rows, weights.sum(axis=1))]


def losses(nats, splits, tokenizer, settings):
    """Returns the mean nats per token of test pages, over all tokens and over groups of them.

    Args:
        nats: list of arrays, those of the examples of the test split.
        splits: dictionary from splits to pages; see `rt_keras.benchmarks.documents.pages`.
        tokenizer: a `SentencePieceTokenizer`.
        settings: see `train`.

    Returns:
        A dictionary; see `train`. Groups without tokens are left out.
    """
    starts = pages_lib.word_starts(tokenizer)
    common = pages_lib.common_words(splits["train"], starts)
    targets = [pages_lib.joined(page)[1] for page in splits["test"]]
    places = np.concatenate([np.arange(len(target)) for target in targets])
    back = np.concatenate([pages_lib.repetition(x, starts, common) for x in targets])
    groups = {
        "all": places >= 0,
        **{
            str(last): (places >= first) & (places < last)
            for first, last in zip((0, *PLACES), PLACES)
        },
        "new": back == 0,
        "near": (back > 0) & (back <= settings["keys"]),
        "again": back > 0,
        "far": back > settings["part"],
    }
    # Parts are in the order of the pages.
    nats = np.concatenate(nats)
    return {name: float(nats[group].mean()) for name, group in groups.items() if group.any()}


def translation_scores(model, pages, settings, report):
    """Translates test pages greedily, with beam search and by drawing; returns BLEU and chrF.

    Args:
        model: the trained model, with its preprocessor.
        pages: list of pages; the first `settings["translated"]` ones are translated.
        settings, report: see `train`.

    Returns:
        A dictionary with "bleu" and "chrf", each a dictionary of "greedy", "beam" and
        "random": tokens drawn by their probabilities, with the seed of the run.
    """
    with extras.needed("train", "Scoring translations"):
        import sacrebleu

    pages = pages[: settings["translated"]]
    tokenizer, length = model.preprocessor.tokenizer, _length(settings)
    references = [tokenizer.detokenize(pages_lib.joined(page)[1]) for page in pages]
    found = {"bleu": {}, "chrf": {}}
    samplers = {
        "greedy": "greedy",
        "beam": keras_hub.samplers.BeamSampler(num_beams=BEAMS),
        "random": keras_hub.samplers.RandomSampler(seed=settings["seed"]),
    }
    for name, sampler in samplers.items():
        model.compile(sampler=sampler)
        texts = []
        for page in pages:
            sources = [tokenizer.detokenize(source) for source, _ in _examples([page], settings)]
            prompts = {"encoder_text": sources, "decoder_text": [""] * len(sources)}
            texts.append("".join(model.generate(prompts, max_length=length)))
            report("note", f"{len(texts)} of {len(pages)} pages translated, {name}")
        found["bleu"][name] = sacrebleu.corpus_bleu(texts, [references]).score
        found["chrf"][name] = sacrebleu.corpus_chrf(texts, [references]).score
    return found
