"""Scores of a model on texts, images, labels or answers, in units of its task."""

import collections

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras.arguments import wrong_value
from rt_keras.data import progress
from rt_keras.models.programs import make_once
from rt_keras.models.training import is_replicated
from rt_keras.training.batches import shared_batches
from rt_keras.training.stateful_scores import bits_by_position, stateful_sums
from rt_keras.training.tasks import task_of

CONTEXTS = ("window", "stateful", "sliding")


def evaluate(model, examples, batch_size=4, verbose=0, context="window", stride=None):
    """Scores a model on examples. Each prediction counts once.

    Let N be the sum of -ln p over all tokens, end-of-text tokens included. Nats per token are
    N / tokens, bits per byte N / (ln 2 · bytes), perplexity per token exp(N / tokens), and
    perplexity per word exp(N / words), with the words of `rt_keras.data.count_text` as for PG-19.

    Documents are cut into sequences of the preprocessor's length, and `context` sets what precedes
    a token. The sequences of adapted models begin with a start token. For a pair of texts, the
    second one is scored, up to the preprocessor's length. For an image, each value of each channel
    is a token, and bits per dimension are N / (ln 2 · tokens). Of a retriever, accuracy is the
    share of questions whose passage is found.

    A model created under a `tf.distribute` strategy is scored on all of its replicas. With several
    workers, all of them call this function at the same time and get the same scores.

    The compiled function is kept with the model, so later calls with the same batch size do not
    compile it again.

    Args:
        model: a model of one of `rt_keras.training.tasks`, with a preprocessor if it needs one.
        examples: `tf.data.Dataset` of documents, pairs, images, recordings or questions, as from
            `rt_keras.data.load_documents`, `load_pairs`, `load_images`, `load_speech` or
            `load_question_answers`.
        batch_size: int, the number of sequences or examples in the batch of one replica. Defaults
            to 4.
        verbose: int, 1 for a progress bar. Defaults to 0.
        context: string, the context of a token of a language model. "window" is the part of its
            sequence before it. "sliding" uses overlapping windows of that length: each window
            begins `stride` tokens after the previous one and scores the new tokens. "stateful" is
            the whole document before the token, read in chunks of `batch_size` sequences with the
            cache of the previous chunks. Other models support only "window". Defaults to "window".
        stride: int, at most the length of a sequence; for "sliding" only. Defaults to None, for
            half of that length.

    Returns:
        A dictionary of the scores in the task's `text_units` and `units`, the counts of its
        `count`, and the number of `tokens`, or of `labels` if labels are not tokens. With
        "stateful", `by_position` has bits per byte for ranges of positions; see
        `rt_keras.training.stateful_scores.bits_by_position`.

    Raises:
        ValueError: if there is nothing to score, or the model does not support the context.

    >>> from rt_keras.training.config import make_config
    >>> from rt_keras.training.experiment import Experiment
    >>> settings = {"model.num_layers": 1, "model.hidden_dim": 16, "data.sequence_length": 64}
    >>> experiment = Experiment(make_config(settings))
    >>> model = experiment.make_model()
    >>> model.preprocessor = experiment.preprocessor
    >>> texts = tf.data.Dataset.from_tensors("Once upon a time")
    >>> scores = evaluate(model, texts, batch_size=1)
    >>> scores["bytes"], scores["tokens"]
    (16, 17)
    """
    task, strategy = task_of(model), model.distribute_strategy
    _check_context(task, context, stride)
    counts = task.count(examples)
    if context == "stateful":
        length = batch_size * model.preprocessor.sequence_length
        sums = stateful_sums(model, examples, length, verbose, task.start_token(model.preprocessor))
    else:
        batch_size *= strategy.num_replicas_in_sync
        batches = _batches(task, model, examples, batch_size, context, stride)
        sums = _sums(model, task, shared_batches(batches, batch_size, strategy), verbose)
    if not sums["labels"]:
        raise ValueError("there is nothing to score: all predictions of the model have weight 0")
    of_texts = task.text_scores(model, examples, batch_size, model.preprocessor)
    labels = {f"{task.label_name}s": int(sums["labels"])}
    if context == "stateful":
        labels["by_position"] = bits_by_position(sums["by_position"], counts["bytes"])
    return {**of_texts, **task.scores(sums, counts), **counts, **labels}


def _check_context(task, context, stride):
    if context not in CONTEXTS:
        raise wrong_value("context", f"one of {CONTEXTS}", context)
    if context != "window" and not task.continues_text:
        raise wrong_value("context", f"'window' for a model of kind {task.kind}", context)
    if stride is not None and context != "sliding":
        received = f"stride={stride}, context={context!r}"
        raise ValueError(f"stride needs context='sliding'. Received: {received}")


def _batches(task, model, examples, batch_size, context, stride):
    """Returns the batches to score."""
    if context == "window":
        return task.evaluation_batches(model, examples, batch_size, model.preprocessor)
    length = model.preprocessor.sequence_length
    stride = max(1, length // 2) if stride is None else stride
    tokenizer = model.preprocessor.tokenizer
    start_token = task.start_token(model.preprocessor)
    return data_lib.sliding_dataset(examples, tokenizer, length, batch_size, stride, start_token)


def _sums(model, task, batches, verbose):
    """Returns the weighted sums of the task's figures, and the sum of the weights."""
    sums_of_batch = make_once(model, "evaluation", lambda: _make_sums(model, task))
    sums = collections.Counter()
    for batch in progress.track(batches, "evaluating", verbose=verbose):
        sums.update({name: float(value) for name, value in sums_of_batch(*batch).items()})
    return sums


def _make_sums(model, task):
    """Returns the compiled function that scores one batch."""
    strategy = model.distribute_strategy

    # `TPUStrategy` compiles everything that it runs.
    @tf.function(jit_compile=not isinstance(strategy, tf.distribute.TPUStrategy), autograph=False)
    def sums(inputs, labels, weights):
        figures = task.figures(model, inputs, labels)
        sums = {name: tf.reduce_sum(values * weights) for name, values in figures.items()}
        return {**sums, "labels": tf.reduce_sum(weights)}

    @tf.function(autograph=False)
    def sums_of_replicas(*batch):
        parts = strategy.run(sums, batch)
        return {
            name: strategy.reduce(tf.distribute.ReduceOp.SUM, part, axis=None)
            for name, part in parts.items()
        }

    return sums_of_replicas if is_replicated(strategy) else sums
