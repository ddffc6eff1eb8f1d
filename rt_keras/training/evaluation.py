"""How well a model predicts texts, images, labels or answers, in units of its task."""

import collections

import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras import progress
from rt_keras.models.training import is_replicated
from rt_keras.training.batches import shared_batches
from rt_keras.training.carried import bits_by_position, carried_sums
from rt_keras.training.tasks import task_of

CONTEXTS = ("window", "carry", "sliding")


def evaluate(model, examples, batch_size=4, verbose=0, context="window", stride=None):
    """Scores a model on examples, with each of its predictions counted once.

    With N the sum of -ln p over all tokens, the end of each text included: nats per token are
    N / tokens, bits per byte N / (ln 2 · bytes), perplexity per token exp(N / tokens), perplexity
    per word exp(N / words), with the words of `rt_keras.data.count_text` as for PG-19. Documents
    are cut into sequences of the preprocessor's length; what precedes a token is what `context`
    says, and a start token before the sequences of adapted models. Of a pair of texts the second
    one is scored, up to the preprocessor's length. Of an image each value of each channel is a
    token, and bits per dimension are N / (ln 2 · tokens). A masked language model predicts the same
    share of tokens each time, a classifier the labels of texts, and accuracy is the share that it
    gets right. Answers to questions are compared with those that people gave; see
    `rt_keras.training.answers`.

    A model that was made under a `tf.distribute` strategy is scored on all of its replicas. Several
    workers call this at the same time, and all get the scores.

    The compiled function is kept with the model, so that later calls with the same batch size do
    not compile it again.

    Args:
        model: a model of one of `rt_keras.training.tasks`, with a preprocessor if it needs one.
        examples: `tf.data.Dataset` of documents, pairs, images, labeled texts or questions, as from
            `rt_keras.data.load_documents`, `load_pairs`, `load_images`, `load_labeled_texts` or
            `load_questions`.
        batch_size: int, the number of sequences or examples in the batch of one replica. Defaults
            to 4.
        verbose: int, 1 for a progress bar. Defaults to 0.
        context: what precedes a token of a language model: "window", the default, for its sequence
            up to it; "sliding" for windows of that length, each of which begins `stride` tokens
            after the one before it and scores those that are new; or "carry" for its whole
            document, read in chunks of `batch_size` sequences by a model that carries its cache
            on. Other models know "window" alone.
        stride: int, only with "sliding", at most the length of a sequence; None, the default, for
            half of it.

    Returns:
        A dictionary of the scores that the task's `text_units` and `units` name, of what its
        `count` counted, and of the number of `tokens`, or of `labels` where those are no tokens.
        With "carry", `by_position` has bits per byte against how much came before, for ranges of
        positions; see `rt_keras.training.carried.bits_by_position`.

    Raises:
        ValueError: if there is nothing to score, or the model cannot be scored in this context.
    """
    task, strategy = task_of(model), model.distribute_strategy
    _check_context(task, context, stride)
    counts = task.count(examples)
    if context == "carry":
        length = batch_size * model.preprocessor.sequence_length
        sums = carried_sums(model, examples, length, verbose, task.start_token(model.preprocessor))
    else:
        batch_size *= strategy.num_replicas_in_sync
        batches = _batches(task, model, examples, batch_size, context, stride)
        sums = _sums(model, task, shared_batches(batches, batch_size, strategy), verbose)
    if not sums["labels"]:
        raise ValueError("there is nothing to score: nothing that the model predicts has weight")
    of_texts = task.text_scores(model, examples, batch_size, model.preprocessor)
    labels = {f"{task.label_name}s": int(sums["labels"])}
    if context == "carry":
        labels["by_position"] = bits_by_position(sums["by_position"], counts["bytes"])
    return {**of_texts, **task.scores(sums, counts), **counts, **labels}


def _check_context(task, context, stride):
    if context not in CONTEXTS:
        raise ValueError(f"context must be one of {CONTEXTS}. Received: context={context!r}")
    if context != "window" and not task.continues_text:
        raise ValueError(
            f"context must be 'window' for a model of kind {task.kind}. Received: {context!r}"
        )
    if stride is not None and context != "sliding":
        raise ValueError(
            f"stride needs context='sliding'. Received: stride={stride}, context={context!r}"
        )


def _batches(task, model, examples, batch_size, context, stride):
    """The batches that are scored."""
    if context == "window":
        return task.evaluation_batches(model, examples, batch_size, model.preprocessor)
    length = model.preprocessor.sequence_length
    stride = max(1, length // 2) if stride is None else stride
    tokenizer = model.preprocessor.tokenizer
    start_token = task.start_token(model.preprocessor)
    return data_lib.sliding_dataset(examples, tokenizer, length, batch_size, stride, start_token)


def _sums(model, task, batches, verbose):
    """The sums of the task's figures over everything that has weight, and that of the weights."""
    sums_of_batch = model.compiled_function("evaluation", lambda: _make_sums(model, task))
    sums = collections.Counter()
    for batch in progress.track(batches, "evaluating", unit="batches", verbose=verbose):
        sums.update({name: float(value) for name, value in sums_of_batch(*batch).items()})
    return sums


def _make_sums(model, task):
    """The compiled function of a batch."""
    strategy = model.distribute_strategy

    # `TPUStrategy` has the whole of what it runs compiled.
    @tf.function(jit_compile=not isinstance(strategy, tf.distribute.TPUStrategy))
    def sums(inputs, labels, weights):
        figures = task.figures(model, inputs, labels)
        sums = {name: tf.reduce_sum(values * weights) for name, values in figures.items()}
        return {**sums, "labels": tf.reduce_sum(weights)}

    @tf.function
    def sums_of_replicas(*batch):
        parts = strategy.run(sums, batch)
        return {
            name: strategy.reduce(tf.distribute.ReduceOp.SUM, part, axis=None)
            for name, part in parts.items()
        }

    return sums_of_replicas if is_replicated(strategy) else sums
